//! The VFIO and iommufd ioctls that `vfio-ioctls` lacks, or whose errors it swallows. Nothing else is in here.
//!
//! Numbers and layouts: Linux `include/uapi/linux/vfio.h` and `iommufd.h`, by way of vfio-bindings where it has them.
//! Each function makes one ioctl (an information ioctl is repeated once, with the room that the kernel asked for), and
//! gives its error as it is.

use std::ffi::c_ulong;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use vfio_bindings::bindings::vfio as abi;

const fn number(offset: u32) -> c_ulong {
    // _IO(';', n): VFIO and iommufd put no size into their numbers.
    ((abi::VFIO_TYPE as u32) << 8 | offset) as c_ulong
}

const DEVICE_GET_INFO: c_ulong = number(abi::VFIO_BASE + 7);
const DEVICE_GET_REGION_INFO: c_ulong = number(abi::VFIO_BASE + 8);
const DEVICE_GET_IRQ_INFO: c_ulong = number(abi::VFIO_BASE + 9);
const DEVICE_SET_IRQS: c_ulong = number(abi::VFIO_BASE + 10);
const DEVICE_RESET: c_ulong = number(abi::VFIO_BASE + 11);
const IOMMU_GET_INFO: c_ulong = number(abi::VFIO_BASE + 12);
const DEVICE_BIND_IOMMUFD: c_ulong = number(abi::VFIO_BASE + 18);
const DEVICE_ATTACH_IOMMUFD_PT: c_ulong = number(abi::VFIO_BASE + 19);
const IOAS_ALLOC: c_ulong = number(0x81);
const IOAS_IOVA_RANGES: c_ulong = number(0x84);
const IOAS_MAP: c_ulong = number(0x85);
const IOAS_UNMAP: c_ulong = number(0x86);

/// Most that an information ioctl may ask room for, in bytes. The longest real answer is a few hundred.
const MOST_INFO: usize = 1 << 16;

/// # Safety
/// `arg` must be what the kernel's definition of `request` says, for `fd`'s kind of file.
unsafe fn ioctl<T>(fd: BorrowedFd<'_>, request: c_ulong, arg: *mut T) -> io::Result<u32> {
    loop {
        // SAFETY: the caller's promise. The request's type differs between C libraries.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, arg) };
        match u32::try_from(result) {
            Ok(value) => return Ok(value),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// An information ioctl: its argument begins with `argsz`, the room there is, where the kernel puts the room it needs.
/// `words` is the fixed part of the argument, `argsz` included.
///
/// # Safety
/// `request` must be such an ioctl of `fd`'s kind of file, with a fixed part of `words` 32-bit words.
unsafe fn info(fd: BorrowedFd<'_>, request: c_ulong, words: &[u32]) -> io::Result<Vec<u8>> {
    let mut room = size_of_val(words);
    for _ in 0..2 {
        // 64-bit elements, for the alignment of the kernel's structures.
        let mut buffer = vec![0u64; room.div_ceil(8)];
        let at = buffer.as_mut_ptr().cast::<u32>();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: `words` fit into `room`, which `buffer` has.
            unsafe { at.add(i).write(if i == 0 { room as u32 } else { *word }) };
        }
        // SAFETY: `buffer` has the `argsz` bytes that the kernel may write, and is aligned.
        unsafe { ioctl(fd, request, at)? };
        // SAFETY: `words` is not empty, so the buffer has a first word.
        let needed = unsafe { at.read() } as usize;
        if needed <= room || needed > MOST_INFO || room > size_of_val(words) {
            let mut bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.truncate(room);
            return Ok(bytes);
        }
        room = needed;
    }
    Err(io::Error::other("the kernel's answer changed its length twice"))
}

/// `vfio_device_info`, as bytes.
pub fn device_info(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: struct vfio_device_info: argsz, flags, num_regions, num_irqs.
    unsafe { info(device, DEVICE_GET_INFO, &[0; 4]) }
}

/// `vfio_region_info` and its capabilities, as bytes.
pub fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<Vec<u8>> {
    // SAFETY: struct vfio_region_info: argsz, flags, index, cap_offset, size (64), offset (64).
    unsafe { info(device, DEVICE_GET_REGION_INFO, &[0, 0, index, 0, 0, 0, 0, 0]) }
}

/// `vfio_irq_info`, as bytes.
pub fn irq_info(device: BorrowedFd<'_>, index: u32) -> io::Result<Vec<u8>> {
    // SAFETY: struct vfio_irq_info: argsz, flags, index, count.
    unsafe { info(device, DEVICE_GET_IRQ_INFO, &[0, 0, index, 0]) }
}

/// `vfio_iommu_type1_info` and its capabilities, as bytes.
pub fn iommu_info(container: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: struct vfio_iommu_type1_info: argsz, flags, iova_pgsizes (64), cap_offset, pad.
    unsafe { info(container, IOMMU_GET_INFO, &[0; 6]) }
}

/// Sets the eventfds of interrupts `start`, `start + 1`, ... of an index; -1 takes one away. No eventfds at all with
/// `start` 0 disables the index.
pub fn set_irqs(device: BorrowedFd<'_>, index: u32, start: u32, fds: &[i32]) -> io::Result<()> {
    let kind = if fds.is_empty() {
        abi::VFIO_IRQ_SET_DATA_NONE
    } else {
        abi::VFIO_IRQ_SET_DATA_EVENTFD
    };
    let bytes = size_of::<abi::vfio_irq_set>() + size_of_val(fds);
    let flags = kind | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
    // struct vfio_irq_set: argsz, flags, index, start, count, data.
    let mut set = vec![bytes as u32, flags, index, start, fds.len() as u32];
    set.extend(fds.iter().map(|fd| fd.cast_unsigned()));
    // SAFETY: `set` is `argsz` bytes of the structure above, which the kernel reads.
    unsafe { ioctl(device, DEVICE_SET_IRQS, set.as_mut_ptr()) }.map(|_| ())
}

/// Resets a device.
pub fn device_reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no argument.
    unsafe { ioctl(device, DEVICE_RESET, std::ptr::null_mut::<u8>()) }.map(|_| ())
}

/// Makes a device of /dev/vfio/devices part of an iommufd context.
pub fn bind_iommufd(device: BorrowedFd<'_>, iommufd: BorrowedFd<'_>) -> io::Result<()> {
    let mut bind = abi::vfio_device_bind_iommufd {
        // Up to out_devid, as kernels before token_uuid_ptr have it.
        argsz: std::mem::offset_of!(abi::vfio_device_bind_iommufd, token_uuid_ptr) as u32,
        flags: 0,
        iommufd: iommufd.as_raw_fd(),
        out_devid: 0,
        token_uuid_ptr: 0,
    };
    // SAFETY: the ioctl's structure.
    unsafe { ioctl(device, DEVICE_BIND_IOMMUFD, &raw mut bind) }.map(|_| ())
}

/// Attaches a bound device to an IO address space.
pub fn attach_ioas(device: BorrowedFd<'_>, ioas: u32) -> io::Result<()> {
    let mut attach = abi::vfio_device_attach_iommufd_pt {
        // Up to pt_id, as kernels before pasid have it.
        argsz: std::mem::offset_of!(abi::vfio_device_attach_iommufd_pt, pasid) as u32,
        flags: 0,
        pt_id: ioas,
        pasid: 0,
    };
    // SAFETY: the ioctl's structure.
    unsafe { ioctl(device, DEVICE_ATTACH_IOMMUFD_PT, &raw mut attach) }.map(|_| ())
}

/// struct iommu_ioas_alloc.
#[repr(C)]
struct IoasAlloc {
    size: u32,
    flags: u32,
    out_ioas_id: u32,
}

/// Makes an IO address space; gives its id.
pub fn ioas_alloc(iommufd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut alloc = IoasAlloc {
        size: size_of::<IoasAlloc>() as u32,
        flags: 0,
        out_ioas_id: 0,
    };
    // SAFETY: the ioctl's structure.
    unsafe { ioctl(iommufd, IOAS_ALLOC, &raw mut alloc) }?;
    Ok(alloc.out_ioas_id)
}

/// struct iommu_ioas_iova_ranges.
#[repr(C)]
struct IoasIovaRanges {
    size: u32,
    ioas_id: u32,
    num_iovas: u32,
    reserved: u32,
    allowed_iovas: u64,
    out_iova_alignment: u64,
}

/// The IOVA ranges of an IO address space, each with its first and last address, and the alignment of maps in bytes.
pub fn ioas_iova_ranges(iommufd: BorrowedFd<'_>, ioas: u32) -> io::Result<(Vec<[u64; 2]>, u64)> {
    let mut ranges = vec![[0u64; 2]; 16];
    for _ in 0..2 {
        let mut query = IoasIovaRanges {
            size: size_of::<IoasIovaRanges>() as u32,
            ioas_id: ioas,
            num_iovas: ranges.len() as u32,
            reserved: 0,
            allowed_iovas: ranges.as_mut_ptr().expose_provenance() as u64,
            out_iova_alignment: 0,
        };
        // SAFETY: the ioctl's structure; the kernel writes at most `num_iovas` ranges of two 64-bit words.
        let result = unsafe { ioctl(iommufd, IOAS_IOVA_RANGES, &raw mut query) };
        let count = query.num_iovas as usize;
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) && count <= MOST_INFO / 16 => {
                ranges.resize(count, [0; 2]);
            }
            Err(error) => return Err(error),
            Ok(_) => {
                ranges.truncate(count);
                return Ok((ranges, query.out_iova_alignment));
            }
        }
    }
    Err(io::Error::other("the kernel's answer changed its length twice"))
}

/// struct iommu_ioas_map.
#[repr(C)]
struct IoasMap {
    size: u32,
    flags: u32,
    ioas_id: u32,
    reserved: u32,
    user_va: u64,
    length: u64,
    iova: u64,
}

/// Maps memory at a given IOVA for reading and writing.
///
/// # Safety
/// As [`HostPages::new`](crate::function::HostPages::new): the device may access the memory until it is unmapped.
pub unsafe fn ioas_map(
    iommufd: BorrowedFd<'_>,
    ioas: u32,
    iova: u64,
    va: *mut u8,
    len: u64,
) -> io::Result<()> {
    /// IOMMU_IOAS_MAP_FIXED_IOVA, _WRITEABLE, _READABLE.
    const FLAGS: u32 = 1 | 2 | 4;
    let mut map = IoasMap {
        size: size_of::<IoasMap>() as u32,
        flags: FLAGS,
        ioas_id: ioas,
        reserved: 0,
        user_va: va.expose_provenance() as u64,
        length: len,
        iova,
    };
    // SAFETY: the ioctl's structure, and the caller's promise.
    unsafe { ioctl(iommufd, IOAS_MAP, &raw mut map) }.map(|_| ())
}

/// struct iommu_ioas_unmap.
#[repr(C)]
struct IoasUnmap {
    size: u32,
    ioas_id: u32,
    iova: u64,
    length: u64,
}

/// Unmaps; gives the number of bytes that were mapped.
pub fn ioas_unmap(iommufd: BorrowedFd<'_>, ioas: u32, iova: u64, len: u64) -> io::Result<u64> {
    let mut unmap = IoasUnmap {
        size: size_of::<IoasUnmap>() as u32,
        ioas_id: ioas,
        iova,
        length: len,
    };
    // SAFETY: the ioctl's structure.
    unsafe { ioctl(iommufd, IOAS_UNMAP, &raw mut unmap) }?;
    Ok(unmap.length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn numbers_and_sizes_are_the_kernels() {
        // _IO(';', 100 + n) of vfio.h, _IO(';', 0x80 + n) of iommufd.h.
        assert_eq!(
            (DEVICE_GET_INFO, DEVICE_RESET, IOMMU_GET_INFO),
            (0x3b6b, 0x3b6f, 0x3b70)
        );
        assert_eq!(
            (DEVICE_BIND_IOMMUFD, IOAS_ALLOC, IOAS_UNMAP),
            (0x3b76, 0x3b81, 0x3b86)
        );
        assert_eq!(size_of::<abi::vfio_device_info>(), 24);
        assert_eq!(size_of::<abi::vfio_region_info>(), 32);
        assert_eq!(size_of::<abi::vfio_irq_info>(), 16);
        assert_eq!(size_of::<abi::vfio_iommu_type1_info>(), 24);
        assert_eq!((size_of::<IoasAlloc>(), size_of::<IoasIovaRanges>()), (12, 32));
        assert_eq!((size_of::<IoasMap>(), size_of::<IoasUnmap>()), (40, 24));
    }

    #[test]
    fn files_of_another_kind_answer_with_an_error() {
        let file = std::fs::File::open("/dev/null").expect("opens");
        let fd = file.as_fd();
        for error in [
            device_info(fd).map(|_| ()),
            region_info(fd, 0).map(|_| ()),
            irq_info(fd, 2).map(|_| ()),
            iommu_info(fd).map(|_| ()),
            set_irqs(fd, 2, 0, &[-1, 3]),
            device_reset(fd),
            bind_iommufd(fd, fd),
            attach_ioas(fd, 1),
            ioas_alloc(fd).map(|_| ()),
            ioas_iova_ranges(fd, 1).map(|_| ()),
            ioas_unmap(fd, 1, 0, 4096).map(|_| ()),
        ] {
            assert_eq!(error.expect_err("not VFIO").raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
