//! A device's regions, as its server describes them.

use std::os::fd::OwnedFd;

use crate::device::BarArea;
use crate::protocol::{
    CAP_SPARSE_MMAP, CapHeader, MAX_SPARSE_AREAS, RegionInfo, SparseArea, SparseMmap, region_flags, split,
};

/// One region: a BAR or configuration space.
#[derive(Debug, Default)]
pub struct Region {
    /// Size in bytes; 0 where the device has none.
    pub size: u64,
    /// May be read.
    pub readable: bool,
    /// May be written.
    pub writable: bool,
    /// Memory behind the region that may be mapped instead of accessed by messages.
    pub memory: Option<RegionMemory>,
}

/// Memory behind a region. Other processes write it at any time, so it is no place for references.
#[derive(Debug)]
pub struct RegionMemory {
    /// The file to map.
    pub fd: OwnedFd,
    /// Offset in the file of the region's first byte.
    pub offset: u64,
    /// Ranges of the region that may be mapped; each lies in the region.
    pub areas: Vec<BarArea>,
}

/// Reads a DEVICE_GET_REGION_INFO reply. `Err` says what is wrong with it.
pub(crate) fn parse(body: &[u8], index: u32, fds: Vec<OwnedFd>) -> Result<Region, String> {
    let (info, _) = split::<RegionInfo>(body).ok_or("it is too short")?;
    if info.index.get() != index {
        return Err(format!("it is about region {}", info.index.get()));
    }
    let flags = info.flags.get();
    let size = info.size.get();
    let mut region = Region {
        size,
        readable: flags & region_flags::READ != 0,
        writable: flags & region_flags::WRITE != 0,
        memory: None,
    };
    let Some(fd) = fds.into_iter().next().filter(|_| flags & region_flags::MMAP != 0) else {
        return Ok(region);
    };
    let sparse = match flags & region_flags::CAPS {
        0 => None,
        _ => sparse_areas(body, info.cap_offset.get())?,
    };
    let areas = sparse.unwrap_or_else(|| vec![BarArea { offset: 0, len: size }]);
    for area in &areas {
        let end = area.offset.checked_add(area.len);
        if area.len == 0 || end.is_none_or(|end| end > size) {
            let BarArea { offset, len } = area;
            return Err(format!(
                "its mappable area {offset:#x} + {len:#x} is not in the region of {size:#x}"
            ));
        }
    }
    let offset = info.offset.get();
    if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
        return Err(format!("its file offset {offset:#x} is impossible"));
    }
    region.memory = Some(RegionMemory { fd, offset, areas });
    Ok(region)
}

/// Walks the capabilities; offsets count from the start of the payload and only go up, so the walk ends.
fn sparse_areas(body: &[u8], first: u32) -> Result<Option<Vec<BarArea>>, String> {
    let mut offset = first;
    let mut least = size_of::<RegionInfo>() as u32;
    while offset != 0 {
        if offset < least {
            return Err(format!("its capability at {offset} overlaps what is before it"));
        }
        let rest = body.get(offset as usize..).unwrap_or_default();
        let outside = || format!("its capability at {offset} passes the end at {}", body.len());
        let (head, rest) = split::<CapHeader>(rest).ok_or_else(outside)?;
        if head.id.get() == CAP_SPARSE_MMAP {
            let (sparse, rest) = split::<SparseMmap>(rest).ok_or_else(outside)?;
            let count = sparse.nr_areas.get();
            if count > MAX_SPARSE_AREAS {
                return Err(format!(
                    "it has {count} mappable areas, at most {MAX_SPARSE_AREAS} are taken"
                ));
            }
            let len = count as usize * size_of::<SparseArea>();
            let areas = rest
                .get(..len)
                .ok_or_else(outside)?
                .chunks_exact(size_of::<SparseArea>());
            let areas = areas.filter_map(|chunk| split::<SparseArea>(chunk));
            return Ok(Some(
                areas
                    .map(|(a, _)| BarArea {
                        offset: a.offset.get(),
                        len: a.size.get(),
                    })
                    .collect(),
            ));
        }
        least = offset.saturating_add(size_of::<CapHeader>() as u32);
        offset = head.next.get();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn fd() -> Vec<OwnedFd> {
        vec![rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("eventfd")]
    }

    fn info(flags: u32, cap_offset: u32, caps: &[u8]) -> Vec<u8> {
        let info = RegionInfo {
            argsz: (32 + caps.len() as u32).into(),
            flags: flags.into(),
            index: 0.into(),
            cap_offset: cap_offset.into(),
            size: 0x10000.into(),
            offset: 0x3000.into(),
        };
        [info.as_bytes(), caps].concat()
    }

    fn sparse(next: u32, areas: &[(u64, u64)]) -> Vec<u8> {
        let head = CapHeader {
            id: CAP_SPARSE_MMAP.into(),
            version: 1.into(),
            next: next.into(),
        };
        let count = SparseMmap {
            nr_areas: (areas.len() as u32).into(),
            reserved: 0.into(),
        };
        let mut bytes = [head.as_bytes(), count.as_bytes()].concat();
        for &(offset, size) in areas {
            bytes.extend_from_slice(
                SparseArea {
                    offset: offset.into(),
                    size: size.into(),
                }
                .as_bytes(),
            );
        }
        bytes
    }

    #[test]
    fn whole_and_sparse_memory_is_read() {
        let region = parse(&info(7, 0, &[]), 0, fd()).expect("valid");
        let memory = region.memory.expect("mappable");
        assert_eq!(
            (memory.offset, memory.areas),
            (
                0x3000,
                vec![BarArea {
                    offset: 0,
                    len: 0x10000
                }]
            )
        );

        let unknown = CapHeader {
            id: 9.into(),
            version: 1.into(),
            next: 40.into(),
        };
        let caps = [
            unknown.as_bytes(),
            &sparse(0, &[(0x1000, 0x2000), (0x8000, 0x1000)]),
        ]
        .concat();
        let memory = parse(&info(0xf, 32, &caps), 0, fd())
            .expect("valid")
            .memory
            .expect("mappable");
        assert_eq!(
            memory.areas,
            [
                BarArea {
                    offset: 0x1000,
                    len: 0x2000
                },
                BarArea {
                    offset: 0x8000,
                    len: 0x1000
                }
            ]
        );
    }

    #[test]
    fn without_flag_or_descriptor_nothing_is_mappable() {
        assert!(parse(&info(3, 0, &[]), 0, fd()).expect("valid").memory.is_none());
        assert!(
            parse(&info(7, 0, &[]), 0, Vec::new())
                .expect("valid")
                .memory
                .is_none()
        );
    }

    #[test]
    fn lies_are_refused() {
        let parse = |body: &[u8]| parse(body, 0, fd()).map(|_| ()).expect_err("must be refused");
        assert_eq!(parse(&info(7, 0, &[])[..31]), "it is too short");
        parse(&info(0xf, 8, &[]));
        parse(&info(0xf, 32, &[]));
        parse(&info(0xf, u32::MAX, &[]));
        let endless = CapHeader {
            id: 9.into(),
            version: 1.into(),
            next: 32.into(),
        };
        parse(&info(0xf, 32, endless.as_bytes()));
        parse(&info(0xf, 32, &sparse(0, &[(0xf000, 0x2000)])));
        parse(&info(0xf, 32, &sparse(0, &[(u64::MAX, 2)])));
        parse(&info(0xf, 32, &sparse(0, &[(0, 0)])));
        let mut short = sparse(0, &[(0, 0x1000)]);
        short[8] = 2;
        parse(&info(0xf, 32, &short));
        short[8..12].fill(0xff);
        parse(&info(0xf, 32, &short));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut body in prop::collection::vec(any::<u8>(), 0..200), flags in 0u32..16) {
            if body.len() >= 32 {
                body[4..8].copy_from_slice(&flags.to_le_bytes());
                body[8..12].fill(0);
            }
            let _ = parse(&body, 0, fd());
        }
    }
}
