//! What can go wrong with a function on this machine, in words that say what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::function::FunctionError;

/// A function can't be looked at, bound or unbound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is nothing at the address.
    #[error("no PCI device {address}; `ferroce devices` lists the NICs of this machine")]
    NoSuchDevice {
        /// The address.
        address: String,
    },
    /// What is there is no NIC of the family.
    #[error(
        "{address} ({vendor:04x}:{device:04x}) is not a NIC that ferroce drives; `ferroce devices` lists those of this \
         machine"
    )]
    NotSupported {
        /// The address.
        address: String,
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
    },
    /// It is not behind an IOMMU.
    #[error(
        "{address} has no IOMMU group, so vfio-pci can't have it: enable the IOMMU in the firmware set-up (VT-d, \
         AMD-Vi, SMMU) and, on Intel, boot with intel_iommu=on"
    )]
    NoIommu {
        /// The address.
        address: String,
    },
    /// The kernel has no vfio-pci.
    #[error("the driver vfio-pci is not there: load it (`modprobe vfio-pci`) and try again")]
    NoVfioPci,
    /// Somebody uses its network interface.
    #[error(
        "{address} carries the network interface {netdev}, which {}: take it down and its addresses away (`ip link set \
         {netdev} down; ip addr flush dev {netdev}`), or say --force",
        what.join(" and ")
    )]
    NetdevInUse {
        /// The address.
        address: String,
        /// The interface.
        netdev: String,
        /// What is in the way: that it is up, that it has addresses.
        what: Vec<String>,
    },
    /// What was written down of a function by an earlier `bind` can't be understood.
    #[error(
        "{file} should say which driver {address} had before it was bound, but is not whole: remove it (`rm {file}`) and try \
         again; where vfio-pci has the function, `unbind` then leaves the choice of its driver to the kernel",
        file = path.display()
    )]
    Record {
        /// The function.
        address: String,
        /// The record.
        path: PathBuf,
    },
    /// A VFIO driver claims the function by its ids, so that the kernel gives it to that driver whenever it is free.
    #[error(
        "{address} went from {driver} straight back to {driver}, which claims all {vendor:04x}:{device:04x}: `echo \
         \"{vendor:04x} {device:04x}\" > /sys/bus/pci/drivers/{driver}/remove_id` ends that until the next boot (for good: no \
         `ids=` in /etc/modprobe.d or on the kernel's command line); then unbind it again"
    )]
    Claimed {
        /// The function.
        address: String,
        /// The driver that has it.
        driver: String,
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
    },
    /// A kernel driver has it that makes network interfaces, and none is to be seen.
    #[error(
        "{address} belongs to {driver}, but {}: see that nobody needs it (`ip netns`, `lsns -t net`), or say --force",
        match elsewhere {
            true => "its network interface is in another network namespace, such as a container's",
            false => "no network interface of it is to be seen: it may be in another network namespace, such as a container's",
        }
    )]
    NetdevUnseen {
        /// The function.
        address: String,
        /// The driver that has it.
        driver: String,
        /// Whether it is known to have an interface.
        elsewhere: bool,
    },
    /// The kernel did not do as it was told.
    #[error(
        "{address} went to {} instead of {}: {hint}",
        driver_name(found),
        driver_name(wanted)
    )]
    NotBound {
        /// The address.
        address: String,
        /// The driver it should have.
        wanted: Option<String>,
        /// The driver it has.
        found: Option<String>,
        /// Where to look.
        hint: &'static str,
    },
    /// This user may not change that.
    #[error("no permission for {}: run as root (`sudo ferroce ...`)", path.display())]
    Permission {
        /// The attribute, or the record of what a function was.
        path: PathBuf,
    },
    /// A write that the kernel refused.
    #[error("writing {text:?} to {} failed{}", path.display(), busy_hint(source))]
    Write {
        /// The attribute.
        path: PathBuf,
        /// What was written.
        text: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file of this machine.
    #[error("{what} {} failed", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Something about the function itself.
    #[error(transparent)]
    Function(#[from] FunctionError),
}

impl HostError {
    pub(super) fn write(path: &Path, text: &str, source: io::Error) -> HostError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => HostError::Permission { path },
            _ => HostError::Write {
                path,
                text: text.to_owned(),
                source,
            },
        }
    }
}

fn driver_name(driver: &Option<String>) -> &str {
    driver.as_deref().unwrap_or("no driver")
}

fn busy_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::ResourceBusy => {
            "; the driver is busy with it: end what uses it (`rdma resource show`, `ip link`) and try again"
        }
        io::ErrorKind::NotFound => "; the kernel knows no such device or attribute",
        _ => "",
    }
}
