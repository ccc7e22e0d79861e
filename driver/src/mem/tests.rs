//! DMA memory against functions with odd limits.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::*;
use crate::function::fake::FakeFunction;
use crate::function::{DmaLimits, FunctionError};

const MIB: usize = 1 << 20;

fn space(most: u32) -> (Arc<FakeFunction>, Arc<DmaSpace>) {
    let function = FakeFunction::with_maps(most);
    (function.clone(), DmaSpace::new(function).expect("space"))
}

fn limits(iova_ranges: Vec<RangeInclusive<u64>>, page_sizes: u64) -> DmaLimits {
    DmaLimits {
        iova_ranges,
        page_sizes,
        max_mappings: None,
    }
}

/// Address space of this process that nobody touches.
struct Foreign {
    va: NonNull<u8>,
    len: usize,
}

impl Foreign {
    fn new(len: usize) -> Foreign {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let va = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, flags) }.expect("mmap");
        Foreign {
            va: NonNull::new(va.cast()).expect("not null"),
            len,
        }
    }

    fn piece(&self, offset: usize, len: usize) -> CallerMemory<'static> {
        assert!(offset + len <= self.len);
        // SAFETY: within the mapping.
        let va = unsafe { self.va.add(offset) };
        CallerMemory { va, len, file: None }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and the fake function never touches it.
        unsafe { munmap(self.va.as_ptr().cast(), self.len) }.expect("munmap");
    }
}

/// Maps with the fake function, which touches nothing.
fn map(space: &Arc<DmaSpace>, pieces: &[CallerMemory<'_>]) -> Result<Vec<CallerMapping>, DmaError> {
    // SAFETY: the fake function keeps account only, so nobody ever touches the memory.
    unsafe { space.map_caller(pieces) }
}

#[test]
fn small_buffers_share_a_map_and_come_back_zeroed() {
    let (function, space) = space(100);
    let buffers: Vec<_> = (1..=200).map(|i| space.alloc(i * 37).expect("fits")).collect();
    assert!(space.mappings() <= 2, "{} maps", space.mappings());
    for buffer in &buffers {
        assert!(buffer.iova().is_multiple_of(4096));
        assert_eq!(
            buffer.iova() % (1 << 12),
            buffer.as_ptr().as_ptr() as u64 % (1 << 12)
        );
        buffer.fill(0, buffer.len(), 0xff).expect("inside");
    }
    drop(buffers);
    assert_eq!(space.mappings(), 1, "one empty arena is kept");
    let again = space.alloc(4096).expect("fits");
    let mut content = [0xaa; 4096];
    again.read(0, &mut content).expect("inside");
    assert!(content.iter().all(|b| *b == 0));
    drop(again);
    drop(space);
    assert_eq!(function.mapped(), 0);
}

#[test]
fn large_buffers_are_unmapped_when_dropped_and_their_iova_is_used_again() {
    let (function, space) = space(100);
    let first = space.alloc(3 * MIB + 1).expect("fits");
    let iova = first.iova();
    assert_eq!(function.mapped(), 3 * MIB as u64 + 4096);
    assert_eq!(
        iova % (4 << 20),
        first.as_ptr().as_ptr() as u64 % (4 << 20),
        "congruent up to 4 MiB"
    );
    drop(first);
    assert_eq!(function.mapped(), 0);
    assert_eq!(space.alloc(3 * MIB).expect("fits").iova(), iova);
}

#[test]
fn retired_addresses_lead_nowhere_and_are_not_used_again() {
    let (function, space) = space(100);
    let memory = Foreign::new(4 * MIB);
    let iova = |mapping: &CallerMapping| mapping.iova();
    let first = map(&space, &[memory.piece(0, MIB)]).expect("maps").remove(0);
    let retired = iova(&first);
    first.retire_on_drop();
    drop(first);
    assert_eq!(function.mapped(), 0, "the device has no access any more");
    assert_eq!(space.leaked_bytes(), 0);
    let second = map(&space, &[memory.piece(0, MIB)]).expect("maps").remove(0);
    let taken = retired..retired + MIB as u64;
    assert!(
        !taken.contains(&iova(&second)),
        "a key that lives on would reach it"
    );
    let freed = iova(&second);
    drop(second);
    let third = map(&space, &[memory.piece(0, MIB)]).expect("maps").remove(0);
    assert_eq!(iova(&third), freed, "what is dropped in order is used again");
}

#[test]
fn iova_agrees_with_the_address_modulo_the_largest_page_that_spans() {
    let (_function, space) = space(100);
    let memory = Foreign::new(64 * MIB);
    for (offset, len) in [
        (4096, 4096),
        (MIB, 2 * MIB),
        (3 * MIB + 8192, 17 * MIB),
        (4096 + 1, 40 * MIB),
    ] {
        let mapping = map(&space, &[memory.piece(offset, len)]).expect("maps").remove(0);
        let modulus = (len as u64).next_power_of_two();
        let va = mapping.va().as_ptr() as u64;
        assert_eq!(
            mapping.iova() % modulus,
            va % modulus,
            "{len:#x} bytes at {va:#x}"
        );
    }
}

#[test]
fn m10_adjacent_blocks_cost_one_map() {
    let (function, space) = space(16);
    let memory = Foreign::new(128 * MIB);
    let blocks: Vec<_> = (0..64).map(|i| memory.piece(i * 2 * MIB, 2 * MIB)).collect();
    let mappings = map(&space, &blocks).expect("one map");
    assert_eq!(
        (space.mappings(), mappings.len(), function.mapped()),
        (1, 64, 128 * MIB as u64)
    );
    for (i, mapping) in mappings.iter().enumerate() {
        assert_eq!(mapping.iova(), mappings[0].iova() + (i * 2 * MIB) as u64);
        assert_eq!(mapping.va(), blocks[i].va);
    }
    drop(mappings);
    assert_eq!(function.mapped(), 0);
}

#[test]
fn m10_disjoint_blocks_over_the_limit_are_refused_and_rolled_back() {
    let (function, space) = space(16);
    let memory = Foreign::new(128 * MIB);
    let blocks: Vec<_> = (0..17).map(|i| memory.piece(i * 4 * MIB, 2 * MIB)).collect();
    let error = map(&space, &blocks).expect_err("one too many").to_string();
    assert!(
        error.contains("16") && error.contains("vfio_iommu_type1.dma_entry_limit"),
        "{error}"
    );
    assert_eq!((space.mappings(), function.mapped()), (0, 0));
    assert_eq!(map(&space, &blocks[..16]).expect("as many as allowed").len(), 16);
}

#[test]
fn m10_our_own_blocks_stay_within_the_limit_too() {
    let (function, space) = space(16);
    let blocks: Vec<_> = (0..64).map(|_| space.alloc(2 * MIB).expect("shares")).collect();
    assert!(space.mappings() <= 16);
    drop(blocks);
    assert!(
        function.mapped() <= 2 * MIB as u64,
        "all but a spare arena is unmapped"
    );
    let (_function, space) = self::space(3);
    space.reserve(128 * MIB, PageKind::Normal).expect("one map");
    let _blocks: Vec<_> = (0..64).map(|_| space.alloc(2 * MIB).expect("shares")).collect();
    assert!(space.mappings() <= 3);
}

#[test]
fn m10_large_buffers_are_cut_of_what_was_reserved() {
    let (function, space) = space(1000);
    space.reserve(64 * MIB, PageKind::Normal).expect("one map");
    let mut blocks: Vec<_> = (0..16).map(|_| space.alloc(4 * MIB).expect("fits")).collect();
    assert_eq!((space.mappings(), function.mapped()), (1, 64 << 20));
    blocks[3].fill(0, 4 * MIB, 0xff).expect("inside");
    // There is no more room, so the next has a map of its own.
    let beyond = space.alloc(4 * MIB).expect("maps");
    assert_eq!(space.mappings(), 2);
    drop(beyond);
    let freed = blocks.swap_remove(3).iova();
    let again = space.alloc_local(3 * MIB).expect("fits");
    assert_eq!((again.iova(), space.mappings()), (freed, 1));
    assert!(again.as_slice().iter().all(|byte| *byte == 0));
    // Who wants a map of its own has one.
    drop(again);
    let options = AllocOptions {
        dedicated: true,
        ..AllocOptions::default()
    };
    let own = space.alloc_with(4 * MIB, &options).expect("maps");
    assert_eq!(space.mappings(), 2);
    drop((own, blocks));
    assert_eq!(function.mapped(), 64 << 20, "what is reserved stays");
}

#[test]
fn pieces_in_one_page_share_its_map() {
    let (function, space) = space(16);
    let memory = Foreign::new(MIB);
    let pieces = [
        memory.piece(100, 50),
        memory.piece(150, 2048),
        memory.piece(4095, 2),
        memory.piece(40960, 1),
    ];
    let mappings = map(&space, &pieces).expect("maps");
    assert_eq!((space.mappings(), function.mapped()), (2, 3 * 4096));
    assert_eq!(mappings[1].iova(), mappings[0].iova() + 50);
    assert_eq!(mappings[0].iova() % 4096, 100);
    assert!(matches!(
        map(&space, &[memory.piece(0, 0)]),
        Err(DmaError::ZeroLength)
    ));
}

#[test]
fn m13_everything_lies_in_the_reported_ranges() {
    let function = FakeFunction::new(limits(vec![0..=(1 << 39) - 1], !0xfff));
    let space = DmaSpace::new(function).expect("space");
    let memory = Foreign::new(MIB);
    // FakeFunction asserts that each map is inside.
    let _kept = (
        space.alloc(10 * MIB),
        space.alloc(5),
        map(&space, &[memory.piece(0, MIB)]),
    );
    let none = FakeFunction::new(limits(vec![], !0xfff));
    assert!(matches!(DmaSpace::new(none), Err(DmaError::IovaExhausted { .. })));
    let end = FakeFunction::new(limits(vec![u64::MAX - 0x1fff..=u64::MAX], !0xfff));
    let space = DmaSpace::new(end).expect("the last two pages");
    assert_eq!(space.alloc(8192).expect("both").iova(), u64::MAX - 0x1fff);
}

#[test]
fn a_function_has_one_space_at_a_time() {
    let (function, first) = space(100);
    assert!(matches!(
        DmaSpace::new(function.clone()),
        Err(DmaError::Function(FunctionError::Taken { .. }))
    ));
    let buffer = first.alloc(4096).expect("fits");
    drop(first);
    assert!(DmaSpace::new(function.clone()).is_err(), "a buffer holds it");
    drop(buffer);
    DmaSpace::new(function).expect("nobody has it any more");
}

#[test]
fn a_function_with_pages_too_large_is_refused() {
    for page in [4 << 20, 2 << 30, 1 << 63] {
        let function = FakeFunction::new(limits(vec![0..=u64::MAX], page));
        let error = DmaSpace::new(function).expect_err("no use").to_string();
        assert!(error.contains(&page.to_string()), "{error}");
    }
    let function = FakeFunction::new(limits(vec![0..=(1 << 40) - 1], 2 << 20));
    let space = DmaSpace::new(function).expect("a huge page is in bounds");
    space.alloc(1).expect("fits");
}

#[test]
fn m14_holes_are_skipped_and_exhaustion_is_told() {
    let ranges = vec![
        0..=0x7ff_ffff,
        0x810_0000..=0xfedf_ffff,
        0xfef0_0000..=0xffff_ffff,
    ];
    let function = FakeFunction::new(limits(ranges, !0xfff));
    let space = DmaSpace::new(function).expect("space");
    // FakeFunction asserts that no map touches a hole.
    let mut kept = vec![space.alloc(512 * MIB).expect("skips over the hole")];
    assert!(kept[0].iova() >= 0x810_0000);
    let error = loop {
        match space.alloc(256 * MIB) {
            Ok(buffer) => kept.push(buffer),
            Err(error) => break error,
        }
    };
    let DmaError::IovaExhausted {
        largest, ranges: 3, ..
    } = error
    else {
        panic!("{error}")
    };
    assert!(largest < 256 << 20);
    kept.clear();
    space.alloc(512 * MIB).expect("all came back");
}

#[test]
fn v14_large_host_pages_still_give_4k_units() {
    let page = 0x10000;
    let function = FakeFunction::new(limits(vec![0..=(1 << 40) - 1], !(page - 1)));
    let space = DmaSpace::new(function.clone()).expect("space");
    assert_eq!(space.granule(), page);
    let pages: Vec<_> = (0..16)
        .map(|_| space.alloc(4096).expect("a firmware page"))
        .collect();
    assert_eq!(space.mappings(), 1);
    assert!(pages.windows(2).all(|p| p[1].iova() == p[0].iova() + 4096));
    let local = space.alloc_local(1).expect("whole pages");
    assert!(local.iova().is_multiple_of(page));
    let next = space.alloc(4096).expect("a page");
    assert!(next.iova().abs_diff(local.iova()) >= 4096 && next.iova() / page != local.iova() / page);
    drop((pages, local, next, space));
    assert_eq!(function.mapped(), 0);
}

#[test]
fn m17_the_locked_memory_limit_is_told_and_nothing_stays_mapped() {
    let (function, space) = space(100);
    function.memlock.store(64 << 10, SeqCst);
    let _small = space
        .alloc(4096)
        .expect("an arena of 2 MiB is too much, a page is not");
    assert_eq!(function.mapped(), 4096);
    let error = space.alloc(MIB).expect_err("over the limit");
    assert!(matches!(
        error,
        DmaError::Function(FunctionError::MemoryLock {
            needed: 0x10_0000,
            ..
        })
    ));
    let text = error.to_string();
    for part in ["1048576", "65536", "ulimit -l", "LimitMEMLOCK="] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(function.mapped(), 4096);
}

#[test]
fn leaked_memory_stays_mapped_until_the_space_goes() {
    let (function, space) = space(100);
    let (buffer, dbr) = (space.alloc(4096).expect("fits"), space.alloc_dbr().expect("fits"));
    let iova = buffer.iova();
    buffer.leak();
    assert_eq!(space.leaked_bytes(), 4096);
    dbr.leak();
    assert_eq!(space.leaked_bytes(), 8192);
    assert_ne!(space.alloc(4096).expect("fits").iova(), iova);
    let large = space.alloc(2 * MIB).expect("fits");
    large.leak_on_drop();
    large.free_on_drop();
    drop(large);
    assert_eq!(space.leaked_bytes(), 8192);
    drop(space);
    assert_eq!(function.mapped(), 0);
}

#[test]
fn memory_that_can_not_be_unmapped_is_never_used_again() {
    let (function, space) = space(100);
    let buffer = space.alloc(2 * MIB).expect("fits");
    let iova = buffer.iova();
    function.refuse_unmap.store(true, SeqCst);
    drop(buffer);
    assert_eq!(space.leaked_bytes(), 2 << 20);
    let memory = Foreign::new(MIB);
    drop(map(&space, &[memory.piece(0, MIB)]).expect("maps"));
    assert_eq!(space.leaked_bytes(), 3 << 20);
    function.refuse_unmap.store(false, SeqCst);
    assert_ne!(space.alloc(2 * MIB).expect("fits").iova(), iova);
}

#[test]
fn accesses_are_checked() {
    let (_function, space) = space(100);
    let buffer = space.alloc(100).expect("fits");
    assert!(matches!(
        buffer.read(100, &mut [0]),
        Err(DmaError::OutOfRange {
            offset: 100,
            len: 1,
            limit: 100
        })
    ));
    assert!(buffer.write(usize::MAX, &[0, 0]).is_err());
    assert!(buffer.read(100, &mut []).is_ok());
    assert!(matches!(
        buffer.read_be32(2),
        Err(DmaError::Misaligned { offset: 2, width: 4 })
    ));
    assert!(matches!(
        buffer.write_be64(96, 0),
        Err(DmaError::OutOfRange { .. })
    ));
    buffer.write_be64(8, 0x0102_0304_0506_0708).expect("inside");
    assert_eq!(buffer.read_be32(12).expect("inside"), 0x0506_0708);
    assert_eq!(buffer.read_u8(8).expect("inside"), 1);
    buffer.write_u8(8, 9).expect("inside");
    assert_eq!(buffer.read_be64(8).expect("inside"), 0x0902_0304_0506_0708);
    assert!(matches!(space.alloc(0), Err(DmaError::ZeroLength)));
    assert!(matches!(space.alloc(usize::MAX), Err(DmaError::TooLong { .. })));
    assert!(matches!(
        space.reserve(0, PageKind::Normal),
        Err(DmaError::ZeroLength)
    ));
}

#[test]
fn rings_wrap_and_refuse_bad_shapes() {
    let (_function, space) = space(100);
    let buffer = Arc::new(space.alloc(8192).expect("fits"));
    let mut ring = DmaRing::<64>::new(buffer.clone(), 4096, 64).expect("fits");
    assert_eq!((ring.entries(), ring.iova()), (64, buffer.iova() + 4096));
    ring.store_be32::<60>(64 + 5, 0xa1a2_a3a4);
    ring.store::<8, 16>(u32::MAX, &[7; 16]);
    ring.store_u8::<63>(1, 0x81);
    ring.store_be64::<0>(2, 1);
    assert_eq!(ring.load_be32::<60>(5), 0xa1a2_a3a4);
    assert_eq!(buffer.read_be32(4096 + 5 * 64 + 60).expect("inside"), 0xa1a2_a3a4);
    assert_eq!(ring.load_be64::<8>(63), 0x0707_0707_0707_0707);
    assert_eq!(ring.load(63)[7..25], [&[0][..], &[7; 16], &[0]].concat());
    assert_eq!((ring.load_u8::<63>(65), ring.load_be64::<0>(66)), (0x81, 1));
    for (offset, entries) in [
        (0, 0),
        (0, 3),
        (4096, 128),
        (8, 1),
        (8192, 1),
        (usize::MAX - 63, 1),
        (0, 1 << 31),
    ] {
        assert!(matches!(
            DmaRing::<64>::new(buffer.clone(), offset, entries),
            Err(DmaError::BadRing { .. })
        ));
    }
}

#[test]
fn doorbell_records_share_pages_a_cache_line_apart() {
    let (_function, space) = space(100);
    let mut records: Vec<_> = (0..130).map(|_| space.alloc_dbr().expect("fits")).collect();
    let mut addresses: Vec<_> = records.iter().map(|r| r.iova()).collect();
    addresses.sort_unstable();
    assert!(addresses.windows(2).all(|a| a[0] + 64 <= a[1]) && addresses[0].is_multiple_of(64));
    records[7].store::<0>(0x11);
    records[7].store::<1>(0x22);
    assert_eq!((records[7].load::<0>(), records[7].load::<1>()), (0x11, 0x22));
    let iova = records[7].iova();
    drop(records.swap_remove(7));
    let again = space.alloc_dbr().expect("fits");
    assert_eq!((again.iova(), again.load::<0>(), again.load::<1>()), (iova, 0, 0));
}

#[test]
fn local_pages_are_slices_and_leak_while_the_device_has_them() {
    let (_function, space) = space(100);
    let mut local = space.alloc_local(5000).expect("fits");
    assert!(local.as_slice().iter().all(|b| *b == 0) && local.len() == 5000);
    local.as_mut_slice()[4999] = 7;
    local.leak_on_drop();
    local.free_on_drop();
    assert_eq!(local.as_slice()[4999], 7);
    drop(local);
    assert_eq!(space.leaked_bytes(), 0);
    space.alloc_local(5000).expect("fits").leak_on_drop();
    assert_eq!(space.leaked_bytes(), 8192);
}

#[test]
fn huge_pages_that_are_not_there_are_told() {
    let (function, space) = space(100);
    // 64 TiB of them are on no machine that runs this.
    let options = AllocOptions {
        pages: PageKind::Huge1G,
        dedicated: true,
    };
    let error = space
        .alloc_with(1 << 46, &options)
        .expect_err("no machine has them");
    let text = error.to_string();
    assert!(text.contains("hugepages-1048576kB/nr_hugepages"), "{text}");
    assert_eq!((function.mapped(), space.mappings()), (0, 0));
}

#[test]
fn m06_children_don_t_get_dma_memory() {
    let (_function, space) = space(100);
    let buffer = space.alloc(4096).expect("fits");
    let at = format!("{:x}", buffer.as_ptr().as_ptr() as usize);
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    // Arenas are one mapping each, and the first buffer is at its beginning.
    let (_, entry) = smaps
        .split_once(&format!("\n{at}-"))
        .expect("the arena's mapping");
    let flags = entry
        .lines()
        .find_map(|line| line.strip_prefix("VmFlags:"))
        .expect("flags");
    assert!(
        flags.split_whitespace().any(|flag| flag == "dc"),
        "'dc' is 'not copied on fork': {flags}"
    );
    // SAFETY: nothing is written to the file.
    let (fd, _) = unsafe { buffer.file() };
    let seals = rustix::fs::fcntl_get_seals(fd).expect("seals");
    assert!(seals.contains(rustix::fs::SealFlags::SHRINK));
}

#[test]
fn buffers_can_be_allocated_and_dropped_by_many_threads() {
    let (function, space) = space(1000);
    std::thread::scope(|scope| {
        for seed in 1..5usize {
            let space = &space;
            scope.spawn(move || {
                let mut kept = Vec::new();
                for i in 0..200 {
                    let len = (seed * 7919 + i * 104_729) % 30_000 + 1;
                    let buffer = space.alloc(len).expect("fits");
                    buffer.fill(0, len, seed as u8).expect("inside");
                    kept.push((buffer, space.alloc_dbr().expect("fits")));
                    if i % 3 == 0 {
                        let (buffer, _) = kept.swap_remove(i % kept.len());
                        let mut content = vec![0; buffer.len()];
                        buffer.read(0, &mut content).expect("inside");
                        assert!(content.iter().all(|b| *b == seed as u8), "nobody else wrote here");
                    }
                }
            });
        }
    });
    drop(space);
    assert_eq!(function.mapped(), 0);
}
