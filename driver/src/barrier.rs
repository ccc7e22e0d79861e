//! The order of stores and loads that the device and the CPU agree on, stated once.
//!
//! Posting work is: WQE, [`before_doorbell_record`], doorbell record, [`before_doorbell`], UAR write. The device may
//! fetch as soon as it sees either of the latter two, so each must find what it points at. Polling is: ownership
//! bit, [`after_ownership`], rest of the CQE or EQE; the device writes the ownership bit last.
//!
//! On x86-64 stores stay in order, loads too, and an uncached UAR store comes after both, so that only the compiler
//! has to be held back. vfio-pci maps BARs uncached; a write-combining mapping would need `sfence` here. On aarch64
//! the outer-shareable barriers order normal memory against the device and against device memory.
#![allow(unsafe_code)] // The aarch64 barriers are one instruction each, for which the language has no name.

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
