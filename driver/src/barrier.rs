//! The order of stores and loads that the device and the CPU agree on, stated once.
//!
//! Posting work is: WQE, [`before_doorbell_record`], doorbell record, [`before_doorbell`], UAR write. The device may
//! fetch as soon as it sees either of the latter two, so each must find what it points at. Polling is: ownership
//! bit, [`after_ownership`], rest of the CQE or EQE; the device writes the ownership bit last.
//!
//! With BlueFlame the UAR write is to memory that may be write-combining, and is: [`before_write_combining`] in place of
//! [`before_doorbell`], the stores, [`flush_write_combining`]; see `ring::blueflame`.
//!
//! On x86-64 stores stay in order, loads too, and an uncached UAR store comes after both, so that only the compiler
//! has to be held back; but write-combining stores pass all others and wait in their buffers, until `sfence`. On aarch64
//! the outer-shareable barriers order normal memory against the device and against device memory; that write-combining stores
//! (to Normal Non-cacheable memory) have left the CPU is known after `dsb st` alone. These are the barriers that
//! rdma-core has in the same places (`udma_barrier.h`), but for one: where it has `dmb oshst`, which orders stores alone, here
//! is `dmb osh` (Linux's `dma_mb`), since a store to a doorbell record or a UAR also gives entries and buffers back, and the loads
//! from them must not come after it. The fences are for the compiler, and for a device that is a thread of this process; on
//! aarch64 they order the inner-shareable domain alone (`dmb ish`), which has no device in it.
//!
//! vfio-pci maps BARs as Device memory on aarch64, where an aligned store of 8 bytes is one access, none is gathered with
//! another, and all to one device stay in order. So a doorbell needs nothing behind it.
//!
//! `tests/orders` tries these functions in all orders that the C11 memory model has; `scripts/test-aarch64` looks for the
//! instructions in what the compiler makes of them.
#![allow(unsafe_code)] // The barriers are one instruction each, for which the language has no name.

use crate::sync::atomic::{Ordering, fence};

/// Makes the WQEs written so far visible to the device before the doorbell record that counts them, and ends the reads of
/// what that record lets it write: CQEs that were polled, the bytes of a receive's buffer.
#[inline(always)]
pub fn before_doorbell_record() {
    to_device();
}

/// Makes the doorbell record (and everything before it) visible to the device before the UAR write, and ends the reads of
/// EQEs that it gives back.
#[inline(always)]
pub fn before_doorbell() {
    to_device();
}

/// Makes the doorbell record (and everything before it) visible to the device before stores to write-combining memory.
#[inline(always)]
pub fn before_write_combining() {
    flush_write_combining();
}

/// Sends stores to write-combining memory off to the device, and keeps those that follow from being combined with them
/// or from passing them.
#[inline(always)]
pub fn flush_write_combining() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a barrier instruction, which each x86-64 CPU has, touches neither memory nor registers.
    unsafe {
        core::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction touches neither memory nor registers.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    fence(Ordering::Release);
}

/// Keeps reads of a CQE's, EQE's or command's body behind the read of the bit that says that the CPU owns it.
#[inline(always)]
pub fn after_ownership() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction touches neither memory nor registers.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    fence(Ordering::Acquire);
}

#[inline(always)]
fn to_device() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction touches neither memory nor registers.
    unsafe {
        core::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
    fence(Ordering::Release);
}
