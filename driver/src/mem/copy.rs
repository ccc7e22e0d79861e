//! The one way to move bytes in and out of memory that the device, or another thread, may change meanwhile.
//!
//! Neither a slice nor `ptr::copy` may touch such memory: the compiler may read twice, or assume that what it read
//! stays. Here each byte is accessed exactly once. What was written meanwhile arrives whole or not at all for each
//! aligned 8 bytes at most, nothing more is promised.
//!
//! Short runs go word by word as relaxed atomics. Long ones go through an instruction sequence that the compiler can't
//! look into (relaxed atomics alone reach a fraction of memory bandwidth). Miri, and CPUs without a sequence here, take
//! the words for all.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Runs from here on take the instruction sequence.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG: usize = 1024;

/// Copies from shared memory at `from` into `to`.
///
/// # Safety
/// `to.len()` bytes at `from` must be mapped and readable, and not be part of `to` or of any Rust value that is
/// accessed otherwise than by this module or atomically.
pub(super) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if to.len() >= LONG {
        // SAFETY: as promised by the caller; `to` is writable.
        return unsafe { copy_long(from, to.as_mut_ptr(), to.len()) };
    }
    let head = from.align_offset(8).min(to.len());
    let (first, rest) = to.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<8>();
    let mut at = from.cast_mut();
    for byte in first {
        // SAFETY: `at` runs over the bytes the caller vouches for.
        unsafe {
            *byte = AtomicU8::from_ptr(at).load(Relaxed);
            at = at.add(1);
        }
    }
    for word in words {
        // SAFETY: as above; `at` is aligned to 8 since the head was taken off.
        unsafe {
            *word = AtomicU64::from_ptr(at.cast()).load(Relaxed).to_ne_bytes();
            at = at.add(8);
        }
    }
    for byte in last {
        // SAFETY: as above.
        unsafe {
            *byte = AtomicU8::from_ptr(at).load(Relaxed);
            at = at.add(1);
        }
    }
}

/// Copies `from` into shared memory at `to`.
///
/// # Safety
/// As for [`copy_out`], with `to` writable.
pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if from.len() >= LONG {
        // SAFETY: as promised by the caller; `from` is readable.
        return unsafe { copy_long(from.as_ptr(), to, from.len()) };
    }
    let head = to.align_offset(8).min(from.len());
    let (first, rest) = from.split_at(head);
    let (words, last) = rest.as_chunks::<8>();
    let mut at = to;
    for byte in first {
        // SAFETY: `at` runs over the bytes the caller vouches for.
        unsafe {
            AtomicU8::from_ptr(at).store(*byte, Relaxed);
            at = at.add(1);
        }
    }
    for word in words {
        // SAFETY: as above; `at` is aligned to 8 since the head was taken off.
        unsafe {
            AtomicU64::from_ptr(at.cast()).store(u64::from_ne_bytes(*word), Relaxed);
            at = at.add(8);
        }
    }
    for byte in last {
        // SAFETY: as above.
        unsafe {
            AtomicU8::from_ptr(at).store(*byte, Relaxed);
            at = at.add(1);
        }
    }
}

/// Fills `len` bytes of shared memory at `to`.
///
/// # Safety
/// As for [`copy_in`].
pub(super) unsafe fn fill(to: *mut u8, len: usize, value: u8) {
    let block = [value; 512];
    let mut done = 0;
    while done < len {
        let now = block.len().min(len - done);
        // SAFETY: `done + now` <= `len`.
        unsafe { copy_in(&block[..now], to.add(done)) };
        done += now;
    }
}

/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they don't overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the ABI keeps the direction flag clear; the ranges are the caller's promise.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_copies_exactly_its_bytes() {
        let lengths: &[usize] = if cfg!(miri) {
            &[0, 1, 9, 23]
        } else {
            &[0, 1, 7, 8, 9, 63, 64, 65, 1023, 1024, 1500]
        };
        for &len in lengths {
            for shift in 0..9 {
                let source: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
                let mut shared = vec![0xeeu8; len + 32];
                let mut back = vec![0u8; len];
                let at = shared.as_mut_ptr();
                // SAFETY: `shift` + `len` is within `shared`, which only this test touches.
                unsafe {
                    copy_in(&source, at.add(shift));
                    copy_out(at.add(shift), &mut back);
                }
                assert_eq!(back, source);
                assert!(
                    shared[..shift]
                        .iter()
                        .chain(&shared[shift + len..])
                        .all(|b| *b == 0xee)
                );
                // SAFETY: as above.
                unsafe { fill(shared.as_mut_ptr().add(shift), len, 0x11) };
                assert!(shared[shift..shift + len].iter().all(|b| *b == 0x11));
                assert!(
                    shared[..shift]
                        .iter()
                        .chain(&shared[shift + len..])
                        .all(|b| *b == 0xee)
                );
            }
        }
    }
}
