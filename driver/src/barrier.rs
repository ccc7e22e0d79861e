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
//! rdma-core has in the same places (`udma_barrier.h`).
#![allow(unsafe_code)] // The barriers are one instruction each, for which the language has no name.

use core::sync::atomic::{Ordering, fence};

/// Makes the WQEs written so far visible to the device before the doorbell record that counts them.
#[inline(always)]
pub fn before_doorbell_record() {
    store_barrier();
}

/// Makes the doorbell record (and everything before it) visible to the device before the UAR write.
#[inline(always)]
pub fn before_doorbell() {
    store_barrier();
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
fn store_barrier() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction touches neither memory nor registers.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    fence(Ordering::Release);
}
