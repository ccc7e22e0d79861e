//! The two ways to a device and its IOMMU: group and container, and iommufd with the device's own file.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};

use super::super::{DmaLimits, FunctionError, HostPages, Owner};
use super::sysfs::{Found, Roots};
use super::{info, raw};

/// Maps that type1 allows where it does not say: its default dma_entry_limit.
const TYPE1_MAPS: u32 = 65535;

/// An open device, and the IOMMU it is attached to.
pub enum Iommu {
    /// /dev/vfio/GROUP and /dev/vfio/vfio, through `vfio-ioctls`.
    Group(Group),
    /// /dev/vfio/devices/vfioN and /dev/iommu. `vfio-ioctls` ties this to KVM, so it is our own.
    Cdev(Cdev),
}

/// A device of a group in a container of its own.
pub struct Group {
    device: ManuallyDrop<VfioDevice>,
    container: Arc<VfioContainer>,
    sysfs: PathBuf,
    owner: Owner,
}

/// A device of its own in an IO address space of its own.
pub struct Cdev {
    device: File,
    iommufd: File,
    ioas: u32,
}

impl Iommu {
    /// Opens by group and container.
    ///
    /// # Errors
    /// What is wrong with the group, its file, or the container.
    pub fn open_group(address: &str, found: &Found, roots: &Roots) -> Result<Iommu, FunctionError> {
        let error = |e| open_error(e, address, found, roots);
        let container = Arc::new(VfioContainer::new(None).map_err(error)?);
        let device = VfioDevice::new(&found.sysfs, container.clone(), false).map_err(error)?;
        let device = ManuallyDrop::new(device);
        Ok(Iommu::Group(Group {
            device,
            container,
            sysfs: found.sysfs.clone(),
            owner: Owner::here(),
        }))
    }

    /// Opens by the device's own file and iommufd.
    ///
    /// # Errors
    /// What is wrong with the files or the group.
    pub fn open_cdev(address: &str, found: &Found, roots: &Roots) -> Result<Iommu, FunctionError> {
        let path = found
            .cdev
            .clone()
            .unwrap_or_else(|| roots.dev.join("vfio/devices"));
        let device = open_file(address, &path)?;
        let iommufd = open_file(address, &roots.dev.join("iommu"))?;
        raw::bind_iommufd(device.as_fd(), iommufd.as_fd())
            .map_err(|e| bind_error(e, address, &path, found, roots))?;
        let failed = |what| move |e| FunctionError::io(format!("{address}: {what}"), e);
        let ioas = raw::ioas_alloc(iommufd.as_fd()).map_err(failed("making an IO address space"))?;
        raw::attach_ioas(device.as_fd(), ioas).map_err(failed("attaching to an IO address space"))?;
        Ok(Iommu::Cdev(Cdev {
            device,
            iommufd,
            ioas,
        }))
    }

    /// The device's file.
    pub fn device(&self) -> BorrowedFd<'_> {
        match self {
            // SAFETY: the descriptor stays open for as long as the device, which is borrowed.
            Iommu::Group(group) => unsafe { BorrowedFd::borrow_raw(group.device.as_raw_fd()) },
            Iommu::Cdev(cdev) => cdev.device.as_fd(),
        }
    }

    /// What can be mapped.
    ///
    /// # Errors
    /// [`FunctionError::Io`], also for an answer that makes no sense.
    pub fn limits(&self) -> Result<DmaLimits, FunctionError> {
        let failed = |e| FunctionError::io("asking the IOMMU for its limits", e);
        match self {
            Iommu::Group(group) => {
                // SAFETY: the descriptor stays open for as long as the container, which is borrowed.
                let container = unsafe { BorrowedFd::borrow_raw(group.container.as_raw_fd()) };
                let info = raw::iommu_info(container)
                    .and_then(|bytes| info::iommu(&bytes))
                    .map_err(failed)?;
                Ok(group_limits(info))
            }
            Iommu::Cdev(cdev) => {
                let (ranges, alignment) =
                    raw::ioas_iova_ranges(cdev.iommufd.as_fd(), cdev.ioas).map_err(failed)?;
                let iova_ranges = ranges.into_iter().map(|[start, last]| start..=last).collect();
                // Each power of two from the alignment on.
                let page_sizes = alignment.max(1).next_power_of_two().wrapping_neg();
                Ok(DmaLimits {
                    iova_ranges,
                    page_sizes,
                    max_mappings: None,
                })
            }
        }
    }

    /// Maps memory for reading and writing.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub fn map(&self, iova: u64, memory: &HostPages<'_>) -> io::Result<()> {
        let size = usize::try_from(memory.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        match self {
            Iommu::Group(g) => {
                // SAFETY: `HostPages` was made under the same promise.
                unsafe { g.container.vfio_dma_map(iova, size, memory.va().as_ptr()) }.map_err(errno)
            }
            Iommu::Cdev(c) => {
                let iommufd = c.iommufd.as_fd();
                // SAFETY: as above.
                unsafe { raw::ioas_map(iommufd, c.ioas, iova, memory.va().as_ptr(), memory.len()) }
            }
        }
    }

    /// Unmaps exactly what one map mapped.
    ///
    /// # Errors
    /// The error of the ioctl, or EINVAL where another length was mapped.
    pub fn unmap(&self, iova: u64, len: u64) -> io::Result<()> {
        let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
        match self {
            Iommu::Group(g) => {
                let size = usize::try_from(len).map_err(|_| wrong())?;
                g.container.vfio_dma_unmap(iova, size).map_err(errno)
            }
            Iommu::Cdev(c) => match raw::ioas_unmap(c.iommufd.as_fd(), c.ioas, iova, len)? {
                unmapped if unmapped == len => Ok(()),
                _ => Err(wrong()),
            },
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // In a child this would take the group out of its parent's container.
        if !self.owner.is_here() {
            return;
        }
        // The crate's Drop looks the group up in sysfs and panics where the device has been unplugged meanwhile.
        if self.sysfs.join("iommu_group").exists() {
            // SAFETY: `self.device` is not used again.
            unsafe { ManuallyDrop::drop(&mut self.device) };
        } else {
            log::warn!(
                "{} has vanished; its VFIO group stays open until this process ends",
                self.sysfs.display()
            );
            // SAFETY: the descriptor is the device's, which is never dropped and not used again.
            drop(unsafe { OwnedFd::from_raw_fd(self.device.as_raw_fd()) });
        }
    }
}

fn group_limits(info: info::IommuInfo) -> DmaLimits {
    let iova_ranges = info.ranges.unwrap_or_else(|| {
        log::warn!("this kernel does not report IOVA ranges; using those that every IOMMU has");
        vec![0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1]
    });
    let page_sizes = if info.page_sizes == 0 {
        !0xfff
    } else {
        info.page_sizes
    };
    DmaLimits {
        iova_ranges,
        page_sizes,
        max_mappings: Some(info.available.unwrap_or(TYPE1_MAPS)),
    }
}

/// The error number in an error of `vfio-ioctls`.
fn errno(error: VfioError) -> io::Error {
    match error {
        VfioError::IommuDmaMap(e) | VfioError::IommuDmaUnmap(e) => io::Error::from_raw_os_error(e.errno()),
        other => io::Error::other(other),
    }
}

/// Why a map failed.
pub fn map_error(source: io::Error, iova: u64, len: u64, limit: Option<u32>) -> FunctionError {
    match source.raw_os_error() {
        // The kernel's word for RLIMIT_MEMLOCK.
        Some(libc::ENOMEM) => FunctionError::MemoryLock {
            needed: len,
            allowed: getrlimit(Resource::Memlock).current,
        },
        Some(libc::ENOSPC) => FunctionError::MappingLimit {
            limit: limit.unwrap_or(TYPE1_MAPS),
        },
        _ => FunctionError::Map { iova, len, source },
    }
}

fn open_file(address: &str, path: &Path) -> Result<File, FunctionError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| file_error(e, address, path))
}

/// Why a device file can't be opened.
fn file_error(source: io::Error, address: &str, path: &Path) -> FunctionError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => FunctionError::Permission { path },
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => FunctionError::NoVfio { path },
        Some(libc::EBUSY) => FunctionError::Busy {
            address: address.to_owned(),
            path,
        },
        _ => FunctionError::io(format!("opening {}", path.display()), source),
    }
}

fn not_viable(address: &str, found: &Found, roots: &Roots) -> FunctionError {
    let others = roots.in_the_way(found.group);
    FunctionError::GroupNotViable {
        address: address.to_owned(),
        group: found.group,
        others,
    }
}

/// Why a device can't be bound to an iommufd.
fn bind_error(source: io::Error, address: &str, path: &Path, found: &Found, roots: &Roots) -> FunctionError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EBUSY) if !roots.in_the_way(found.group).is_empty() => {
            not_viable(address, found, roots)
        }
        Some(libc::EBUSY) => FunctionError::Busy {
            address: address.to_owned(),
            path: path.to_owned(),
        },
        _ => FunctionError::io(format!("binding {address} to iommufd"), source),
    }
}

/// Why `vfio-ioctls` can't open a device.
fn open_error(error: VfioError, address: &str, found: &Found, roots: &Roots) -> FunctionError {
    let unusable = |what: String| FunctionError::Unusable {
        address: address.to_owned(),
        what,
    };
    match error {
        VfioError::OpenContainer(e) => file_error(e, address, &roots.dev.join("vfio/vfio")),
        VfioError::OpenGroup(e, _) => file_error(e, address, &roots.group_file(found.group)),
        VfioError::GroupViable => not_viable(address, found, roots),
        VfioError::GroupGetDeviceFD(e) => file_error(
            io::Error::from_raw_os_error(e.errno()),
            address,
            &roots.group_file(found.group),
        ),
        VfioError::ContainerSetIOMMU(e) if e.errno() == libc::EPERM => unusable(
            "the platform can't isolate its interrupts; if you trust the device, load vfio_iommu_type1 with \
             allow_unsafe_interrupts=1"
                .into(),
        ),
        other => unusable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::{find, machine};
    use super::*;

    #[test]
    fn m17_map_errors_say_what_to_do() {
        let error =
            |errno| map_error(io::Error::from_raw_os_error(errno), 0x1000, 1 << 20, Some(7)).to_string();
        let text = error(libc::ENOMEM);
        assert!(
            text.contains("1048576 bytes") && text.contains("ulimit -l"),
            "{text}"
        );
        let text = error(libc::ENOSPC);
        assert!(
            text.contains("limit of 7 ") && text.contains("vfio_iommu_type1.dma_entry_limit"),
            "{text}"
        );
        assert!(error(libc::EEXIST).contains("IOVA 0x1000"));
    }

    #[test]
    fn open_errors_name_the_file_and_the_remedy() {
        let (_root, roots) = machine();
        let found = find(&roots, "3b:00.0").expect("ready");
        let io = io::Error::from_raw_os_error;
        for (error, words) in [
            (
                VfioError::OpenContainer(io(libc::ENOENT)),
                &["vfio/vfio does not exist", "modprobe vfio-pci"][..],
            ),
            (
                VfioError::OpenContainer(io(libc::EACCES)),
                &["no permission for", "vfio/vfio"],
            ),
            (
                VfioError::OpenGroup(io(libc::EACCES), "7".into()),
                &["no permission for", "vfio/7", "chown"],
            ),
            (
                VfioError::OpenGroup(io(libc::EBUSY), "7".into()),
                &["0000:3b:00.0 is in use by another process"],
            ),
            (
                VfioError::GroupViable,
                &["group 7", "not viable", "0000:3b:00.1 (mlx5_core)"],
            ),
            (
                VfioError::ContainerSetIOMMU(io(libc::EPERM).into()),
                &["allow_unsafe_interrupts"],
            ),
            (VfioError::VfioApiVersion, &["API version"]),
        ] {
            let text = open_error(error, "0000:3b:00.0", &found, &roots).to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        let text = bind_error(io(libc::EPERM), "0000:3b:00.0", Path::new("x"), &found, &roots).to_string();
        assert!(text.contains("not viable"), "{text}");
        let error = Iommu::open_cdev("0000:3b:00.0", &found, &roots)
            .err()
            .expect("no such file");
        assert!(matches!(error, FunctionError::NoVfio { path } if path.ends_with("vfio/devices/vfio3")));
    }

    #[test]
    fn limits_have_defaults_for_old_kernels() {
        let limits = group_limits(info::IommuInfo {
            page_sizes: 0,
            ranges: None,
            available: None,
        });
        assert_eq!((limits.page_sizes, limits.max_mappings), (!0xfff, Some(65535)));
        assert!(
            limits
                .iova_ranges
                .iter()
                .all(|range| !range.contains(&0xfee0_0000))
        );
    }
}
