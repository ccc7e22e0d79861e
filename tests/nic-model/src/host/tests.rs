use std::os::fd::OwnedFd;
use std::sync::Mutex;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};

use super::*;

const PAGE: u64 = 4096;

fn memfd(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("host", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

fn part(fd: &OwnedFd, iova: u64, len: u64, offset: u64) -> DmaMap {
    DmaMap {
        iova,
        len,
        readable: true,
        writable: true,
        memory: Some(DmaFd {
            fd: fd.try_clone().unwrap(),
            offset,
        }),
    }
}

fn mapped(len: u64) -> HostMemory {
    let mut host = HostMemory::new();
    host.map(part(&memfd(len), 0x10_0000, len, 0)).unwrap();
    host
}

#[test]
fn bytes_cross_from_map_to_map() {
    let fd = memfd(2 * PAGE);
    let mut host = HostMemory::new();
    // The second half of the file comes first in IOVA.
    host.map(part(&fd, 0x1000, PAGE, PAGE)).unwrap();
    host.map(part(&fd, 0x2000, PAGE, 0)).unwrap();
    let bytes: Vec<u8> = (0..100).collect();
    host.write(0x2000 - 50, &bytes).unwrap();
    let mut back = [0; 100];
    host.read(0x2000 - 50, &mut back).unwrap();
    assert_eq!(back[..], bytes[..]);
    let slices = host.slices(0x2000 - 50, 100, Access::Write).unwrap();
    assert_eq!(slices.iter().map(HostSlice::len).collect::<Vec<_>>(), [50, 50]);
    let mut start_of_file = [0; 50];
    rustix::io::pread(&fd, &mut start_of_file, 0).unwrap();
    assert_eq!(start_of_file[..], bytes[50..]);
    // One file, one mapping.
    assert_eq!(host.counters().files_mapped, 1);
    assert_eq!(host.counters().mapped_bytes, 2 * PAGE);
}

#[test]
fn a_grown_file_is_mapped_anew_and_old_slices_stay_valid() {
    let fd = memfd(PAGE);
    let mut host = HostMemory::new();
    host.map(part(&fd, 0x1000, PAGE, 0)).unwrap();
    let old = host.slices(0x1000, 8, Access::Read).unwrap();
    rustix::fs::ftruncate(&fd, 4 * PAGE).unwrap();
    host.map(part(&fd, 0x8000, PAGE, 3 * PAGE)).unwrap();
    assert_eq!(host.counters().files_mapped, 2);
    host.write(0x1000, b"old part").unwrap();
    host.write(0x8000, b"new part").unwrap();
    let mut out = [0; 8];
    old[0].copy_to(0, &mut out).unwrap();
    assert_eq!(&out, b"old part");
}

#[test]
fn refused_maps_change_nothing() {
    let fd = memfd(4 * PAGE);
    let mut host = HostMemory::new();
    host.map(part(&fd, 0x10000, 2 * PAGE, 0)).unwrap();
    let before = host.maps();
    for (iova, len) in [
        (0x10000, PAGE),
        (0xf000, 2 * PAGE),
        (0x11000, 2 * PAGE),
        (0xe000, 4 * PAGE),
        (0x11fff, 1),
    ] {
        let e = host.map(part(&fd, iova, len, 0));
        assert!(
            matches!(
                e,
                Err(DeviceError::Overlaps {
                    other_iova: 0x10000,
                    ..
                })
            ),
            "{e:?}"
        );
    }
    let empty = host.map(part(&fd, 0x40000, 0, 0));
    assert!(matches!(empty, Err(DeviceError::BadRange { .. })));
    let wraps = host.map(part(&fd, u64::MAX - PAGE + 2, PAGE, 0));
    assert!(matches!(wraps, Err(DeviceError::BadRange { .. })));
    let short = host.map(part(&fd, 0x40000, PAGE, 4 * PAGE));
    assert!(matches!(short, Err(DeviceError::MemoryTooShort { .. })));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let pipe = host.map(part(&pipe, 0x40000, PAGE, 0));
    assert!(matches!(pipe, Err(DeviceError::NotMemory { .. })));
    assert_eq!(host.maps(), before);
    // The last page of the address space is fine.
    host.map(part(&fd, 0u64.wrapping_sub(PAGE), PAGE, 0)).unwrap();
    host.write(u64::MAX, &[1]).unwrap();
    assert!(matches!(
        host.write(u64::MAX, &[1, 2]),
        Err(HostError::Wraps { .. })
    ));
}

/// Case M12: only the exact span of one map can be unmapped.
#[test]
fn m12_partial_unmap_is_refused() {
    let mut host = mapped(4 << 20);
    let base = 0x10_0000;
    for (iova, len) in [
        (base + (1 << 20), 1 << 20),
        (base, 8 << 20),
        (base, 0),
        (base - PAGE, (4 << 20) + PAGE),
    ] {
        let e = host.unmap(iova, len);
        assert!(matches!(e, Err(DeviceError::PartialUnmap { .. })), "{e:?}");
    }
    assert!(matches!(
        host.unmap(0x1000, 0x1000),
        Err(DeviceError::NotMapped { .. })
    ));
    host.write(base + 5, b"still there").unwrap();
    host.unmap(base, 4 << 20).unwrap();
    assert!(matches!(
        host.read(base, &mut [0]),
        Err(HostError::Unmapped { .. })
    ));
    assert_eq!(host.counters().mapped_bytes, 0);
}

/// Case V11: thousands of small maps in random order.
#[test]
fn v11_many_small_maps_of_one_file() {
    let pages = 4096u64;
    let fd = memfd(pages * PAGE);
    let mut host = HostMemory::new();
    for i in 0..pages {
        let n = (i * 2_654_435_761) % pages;
        host.map(part(&fd, n * PAGE, PAGE, (pages - 1 - n) * PAGE))
            .unwrap();
    }
    for n in 0..pages {
        host.write_be64(n * PAGE + 8, n).unwrap();
    }
    for n in (0..pages).rev() {
        assert_eq!(host.read_be64(n * PAGE + 8).unwrap(), n);
    }
    assert_eq!(host.counters().files_mapped, 1);
    host.clear();
    assert!(host.maps().is_empty());
}

/// Nanoseconds that a look-up takes among so many maps, at best.
fn cost_among(maps: u64) -> f64 {
    let fd = memfd(maps * PAGE);
    let mut host = HostMemory::new();
    for n in 0..maps {
        host.map(part(&fd, n * PAGE, PAGE, n * PAGE)).unwrap();
    }
    let looks = 4096;
    let round = || {
        let start = std::time::Instant::now();
        for i in 0..looks {
            // No two in the same map, so that none is remembered from the look before.
            let n = (i * 2_654_435_761) % maps;
            std::hint::black_box(host.read_be64(n * PAGE).unwrap());
        }
        start.elapsed()
    };
    let best = (0..50).map(|_| round()).min().unwrap_or_default();
    best.as_nanos() as f64 / looks as f64
}

/// With a walk over all of them 128 times as many would take about as many times as long.
#[test]
fn v11_a_look_up_among_many_maps_costs_little_more_than_among_few() {
    let (few, many) = (cost_among(32), cost_among(4096));
    assert!(
        many < 16.0 * few,
        "{few:.0} ns among 32 maps, {many:.0} ns among 4096"
    );
}

#[test]
fn a_slice_of_unmapped_memory_fails_and_harms_nothing() {
    let fd = memfd(PAGE);
    let mut host = HostMemory::new();
    host.map(part(&fd, 0x1000, PAGE, 0)).unwrap();
    let slice = host.slices(0x1000, 16, Access::Write).unwrap()[0].clone();
    host.unmap(0x1000, PAGE).unwrap();
    assert!(matches!(
        slice.copy_from(0, &[1]),
        Err(HostError::Unmapped { .. })
    ));
    assert!(matches!(
        slice.copy_to(0, &mut [0]),
        Err(HostError::Unmapped { .. })
    ));
    let mut byte = [0xff];
    rustix::io::pread(&fd, &mut byte, 0).unwrap();
    assert_eq!(byte, [0]);
}

#[test]
fn huge_sparse_files_do_not_take_the_whole_address_space() {
    let mut host = HostMemory::new();
    let mut maps = 0;
    while maps < 10 {
        // A memfd takes no memory until it is written.
        let fd = memfd(8 << 40);
        if host.map(part(&fd, maps * PAGE, PAGE, 0)).is_err() {
            break;
        }
        maps += 1;
    }
    assert_eq!(maps, 4);
    host.unmap(0, PAGE).unwrap();
    host.map(part(&memfd(8 << 40), 0, PAGE, 0)).unwrap();
}

#[test]
fn rights_of_a_map_are_kept() {
    let mut host = HostMemory::new();
    let mut map = part(&memfd(PAGE), 0, PAGE, 0);
    map.writable = false;
    host.map(map).unwrap();
    host.read(0, &mut [0; 8]).unwrap();
    assert!(matches!(host.write(0, &[1]), Err(HostError::Denied { .. })));
    assert!(matches!(
        host.slices(0, 8, Access::Write),
        Err(HostError::Denied { .. })
    ));
    assert!(matches!(host.fetch_add(0, 1), Err(HostError::Denied { .. })));
    let mut map = part(&memfd(PAGE), PAGE, PAGE, 0);
    map.readable = false;
    host.map(map).unwrap();
    host.write(PAGE, &[1]).unwrap();
    assert!(matches!(host.read(PAGE, &mut [0]), Err(HostError::Denied { .. })));
}

#[test]
fn words_are_big_endian_and_aligned_and_atomics_use_host_order() {
    let host = mapped(PAGE);
    let base = 0x10_0000;
    host.write_be32(base, 0x0102_0304).unwrap();
    let mut b = [0; 4];
    host.read(base, &mut b).unwrap();
    assert_eq!(b, [1, 2, 3, 4]);
    assert_eq!(host.read_be32(base).unwrap(), 0x0102_0304);
    assert!(matches!(
        host.read_be32(base + 2),
        Err(HostError::Misaligned { .. })
    ));
    assert!(matches!(
        host.fetch_add(base + 4, 1),
        Err(HostError::Misaligned { .. })
    ));
    host.write(base + 8, &0x0102_0304_0506_0708u64.to_ne_bytes())
        .unwrap();
    assert_eq!(host.fetch_add(base + 8, 1).unwrap(), 0x0102_0304_0506_0708);
    assert_eq!(host.compare_swap(base + 8, 0, 7).unwrap(), 0x0102_0304_0506_0709);
    assert_eq!(
        host.compare_swap(base + 8, 0x0102_0304_0506_0709, 7).unwrap(),
        0x0102_0304_0506_0709
    );
    let mut b = [0; 8];
    host.read(base + 8, &mut b).unwrap();
    assert_eq!(u64::from_ne_bytes(b), 7);
    host.publish(base + 64, &[9; 64]).unwrap();
    assert_eq!(host.read_u8_acquire(base + 127).unwrap(), 9);
    assert!(matches!(
        host.read_be64(base + PAGE),
        Err(HostError::Unmapped { .. })
    ));
}

struct Remote(Mutex<Vec<u8>>);

impl DmaMessages for Remote {
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        let at = iova as usize;
        data.copy_from_slice(&self.0.lock().unwrap()[at..at + data.len()]);
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DeviceError> {
        let at = iova as usize;
        self.0.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
}

#[test]
fn maps_without_a_file_go_through_messages() {
    let remote = Arc::new(Remote(Mutex::new(vec![0; 16384])));
    let mut host = HostMemory::new();
    let map = || DmaMap {
        iova: 0x1000,
        len: 0x2000,
        readable: true,
        writable: true,
        memory: None,
    };
    host.map(map()).unwrap();
    assert!(matches!(
        host.read(0x1000, &mut [0]),
        Err(HostError::NoMessages { .. })
    ));
    host.clear();
    host.set_messages(Some(remote.clone()));
    host.map(map()).unwrap();
    host.map(part(&memfd(PAGE), 0x3000, PAGE, 0)).unwrap();
    host.write(0x2ffc, &[1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(remote.0.lock().unwrap()[0x2ffc..0x3000], [1, 2, 3, 4]);
    assert_eq!(host.fetch_add(0x2008, 3).unwrap(), 0);
    assert_eq!(host.fetch_add(0x2008, 3).unwrap(), 3);
    // From messages into mapped memory.
    let from = host.slices(0x2ff8, 8, Access::Read).unwrap();
    let to = host.slices(0x3100, 8, Access::Write).unwrap();
    to[0].copy_from_slice(0, &from[0], 0, 8).unwrap();
    let mut out = [0; 8];
    host.read(0x3100, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 0, 1, 2, 3, 4]);
}

#[test]
fn maps_are_logged_and_files_are_sealed() {
    let fd = memfd(PAGE);
    let mut host = HostMemory::new();
    host.map(part(&fd, 0, PAGE, 0)).unwrap();
    assert!(
        rustix::fs::fcntl_get_seals(&fd)
            .unwrap()
            .contains(SealFlags::SHRINK)
    );
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    host.unmap(0, PAGE).unwrap();
    host.clear();
    let log: Vec<_> = host.log().collect();
    assert!(matches!(
        log[..],
        [MapEvent::Mapped(_), MapEvent::Unmapped(_), MapEvent::Cleared]
    ));
    let closed = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&closed, PAGE).unwrap();
    host.map(part(&closed, 0, PAGE, 0)).unwrap();
    assert_eq!(host.counters().shrinkable, 1);
}

#[test]
fn overlapping_and_crossed_copies_do_not_hang() {
    let host = mapped(PAGE);
    let all = host.slices(0x10_0000, 4096, Access::ReadWrite).unwrap();
    all[0].copy_from_slice(0, &all[0], 100, 1000).unwrap();
    assert!(matches!(
        all[0].copy_from_slice(4000, &all[0], 0, 97),
        Err(HostError::OutOfSlice { .. })
    ));
    assert!(all[0].slice(4000..4097).is_none());
    assert_eq!(all[0].slice(4000..4096).unwrap().iova(), 0x10_0000 + 4000);
}

proptest! {
    /// Against a plain model: random maps and unmaps, then every byte is there or not as it should be.
    #[test]
    fn interval_map_agrees_with_a_list(ops in prop::collection::vec((any::<bool>(), 0u64..32, 1u64..8), 1..60)) {
        let fd = memfd(64 * PAGE);
        let mut host = HostMemory::new();
        let mut list: Vec<(u64, u64)> = Vec::new();
        for (is_map, page, pages) in ops {
            let (iova, len) = (page * PAGE, pages * PAGE);
            if is_map {
                let clash = list.iter().any(|&(i, l)| i < iova + len && iova < i + l);
                prop_assert_eq!(host.map(part(&fd, iova, len, 0)).is_err(), clash);
                if !clash {
                    list.push((iova, len));
                }
            } else {
                let known = list.iter().position(|&m| m == (iova, len));
                prop_assert_eq!(host.unmap(iova, len).is_ok(), known.is_some());
                if let Some(i) = known {
                    list.swap_remove(i);
                }
            }
            for page in 0..40 {
                let inside = list.iter().any(|&(i, l)| (i..i + l).contains(&(page * PAGE)));
                prop_assert_eq!(host.read_u8_acquire(page * PAGE + 7).is_ok(), inside);
            }
        }
    }
}
