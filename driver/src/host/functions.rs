//! What sysfs says of the NICs of a machine.

use std::net::IpAddr;
use std::path::PathBuf;

use ferroce_hw_regs::pci::{self, DeviceId};

use super::{Host, HostError, attribute, names, number};
use crate::function::{PciAddress, VFIO_DRIVERS, link_name};

/// A PCI function that this driver knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// Where it is.
    pub address: PciAddress,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// What the ids stand for.
    pub product: &'static str,
    /// Whether it is a virtual function.
    pub virtual_function: bool,
    /// The kernel driver that has it.
    pub driver: Option<String>,
    /// What `driver_override` says, if anything.
    pub driver_override: Option<String>,
    /// Its IOMMU group.
    pub group: Option<Group>,
    /// The NUMA node it is near to; `None` where the machine has only one, or does not say.
    pub numa_node: Option<u32>,
    /// Its PCI Express link.
    pub link: Link,
    /// Its network interfaces, while a kernel driver has it.
    pub netdevs: Vec<Netdev>,
    /// Its RDMA devices, while a kernel driver has it.
    pub rdma_devices: Vec<String>,
    /// What is missing before [`open`](crate::function::open) can have it; empty when nothing is.
    pub missing: Vec<String>,
}

/// An IOMMU group: functions that can only be given away together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// Its number.
    pub id: u32,
    /// The other functions in it.
    pub others: Vec<Member>,
    /// Those of them that keep it from being used, each with its driver.
    pub in_the_way: Vec<String>,
}

/// Another function of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its address.
    pub address: String,
    /// The kernel driver that has it.
    pub driver: Option<String>,
}

/// A PCI Express link; `None` is what the machine does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// Present speed, as sysfs words it, such as `8.0 GT/s PCIe`.
    pub speed: Option<String>,
    /// Present number of lanes.
    pub width: Option<u32>,
    /// The fastest speed that the function can do.
    pub max_speed: Option<String>,
    /// The most lanes that the function can do.
    pub max_width: Option<u32>,
}

impl Link {
    /// Whether it runs below what the function can do.
    pub fn reduced(&self) -> bool {
        let below = |now: Option<u32>, most: Option<u32>| matches!((now, most), (Some(a), Some(b)) if a < b);
        below(self.width, self.max_width)
            || matches!((&self.speed, &self.max_speed), (Some(a), Some(b)) if a != b)
    }
}

/// A network interface of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Whether it is administratively up; `None` where the machine does not say.
    pub up: Option<bool>,
    /// Its MAC address.
    pub mac: Option<String>,
    /// `up`, `down` and so on: what the link is.
    pub state: Option<String>,
    /// Its speed in Mb/s, while the link is up.
    pub speed_mbps: Option<u32>,
    /// Its addresses; `None` where the machine does not say.
    pub addresses: Option<Vec<IpAddr>>,
}

impl Host {
    /// All functions that this driver knows, by address. One whose links in sysfs can't be read is left out, with a
    /// warning in the log.
    ///
    /// # Errors
    /// None at present.
    pub fn functions(&self) -> Result<Vec<Function>, HostError> {
        let mut found = Vec::new();
        for name in names(self.sys("bus/pci/devices")) {
            let Ok(address) = name.parse::<PciAddress>() else {
                continue;
            };
            match self.function(address) {
                Ok(function) => found.push(function),
                // It is another kind of device, or has been unplugged meanwhile.
                Err(HostError::NotSupported { .. } | HostError::NoSuchDevice { .. }) => {}
                // The others are there nevertheless.
                Err(error) => log::warn!("{address} is left out: {error}"),
            }
        }
        found.sort_by_key(|function| function.address);
        Ok(found)
    }

    /// The function at an address.
    ///
    /// # Errors
    /// [`HostError::NoSuchDevice`], [`HostError::NotSupported`], [`HostError::Function`].
    pub fn function(&self, address: PciAddress) -> Result<Function, HostError> {
        let folder = self.folder(address);
        if !folder.exists() {
            return Err(HostError::NoSuchDevice {
                address: address.to_string(),
            });
        }
        let id = |name: &str| number(folder.join(name)).and_then(|id| u16::try_from(id).ok());
        let (vendor, device) = (id("vendor").unwrap_or(0), id("device").unwrap_or(0));
        let known: &DeviceId = pci::device(vendor, device).ok_or_else(|| HostError::NotSupported {
            address: address.to_string(),
            vendor,
            device,
        })?;
        let driver = link_name(&folder.join("driver"))?;
        let driver_override = attribute(folder.join("driver_override")).filter(|text| is_driver(text));
        let numa_node = number(folder.join("numa_node")).and_then(|node| u32::try_from(node).ok());
        let mut function = Function {
            address,
            vendor,
            device,
            product: known.product,
            virtual_function: known.virtual_function,
            driver,
            driver_override,
            group: self.group(address)?,
            numa_node,
            link: link(&folder),
            netdevs: self.netdevs(&folder),
            rdma_devices: names(folder.join("infiniband")),
            missing: Vec::new(),
        };
        function.missing = self.missing(&function);
        Ok(function)
    }

    pub(super) fn folder(&self, address: PciAddress) -> PathBuf {
        self.sys("bus/pci/devices").join(address.to_string())
    }

    /// The IOMMU group of a function, if it has one.
    fn group(&self, address: PciAddress) -> Result<Option<Group>, HostError> {
        let Some(id) = link_name(&self.folder(address).join("iommu_group"))?.and_then(|id| id.parse().ok())
        else {
            return Ok(None);
        };
        let members = names(self.sys(&format!("kernel/iommu_groups/{id}/devices")));
        let own = address.to_string();
        let mut others = Vec::new();
        for member in members.into_iter().filter(|member| *member != own) {
            others.push(Member {
                driver: link_name(&self.sys("bus/pci/devices").join(&member).join("driver"))
                    .unwrap_or_default(),
                address: member,
            });
        }
        let mut in_the_way = self.roots.in_the_way(id);
        in_the_way.retain(|other| !other.starts_with(&own));
        Ok(Some(Group {
            id,
            others,
            in_the_way,
        }))
    }

    /// The network interfaces of a function. Those in another network namespace can't be seen.
    fn netdevs(&self, folder: &std::path::Path) -> Vec<Netdev> {
        let netdev = |name: String| {
            let folder = folder.join("net").join(&name);
            // IFF_UP of if.h.
            let up = number(folder.join("flags")).map(|flags| flags & 1 != 0);
            let speed_mbps = number(folder.join("speed")).and_then(|speed| u32::try_from(speed).ok());
            let addresses = self.system.addresses(&name);
            if let Err(error) = &addresses {
                log::warn!("the addresses of {name} can't be told: {error}");
            }
            Netdev {
                up,
                mac: attribute(folder.join("address")),
                state: attribute(folder.join("operstate")),
                speed_mbps: speed_mbps.filter(|speed| *speed != 0),
                addresses: addresses.ok(),
                name,
            }
        };
        names(folder.join("net")).into_iter().map(netdev).collect()
    }

    /// What has to be done before the function can be opened, in order.
    fn missing(&self, function: &Function) -> Vec<String> {
        let mut missing = Vec::new();
        let address = function.address;
        match &function.group {
            None => missing.push("an IOMMU group: the IOMMU is off".to_owned()),
            Some(group) if !group.in_the_way.is_empty() => missing.push(format!(
                "the rest of IOMMU group {}: {}",
                group.id,
                group.in_the_way.join(", ")
            )),
            Some(_) => {}
        }
        if !function.bound_to_vfio() {
            missing.push(format!("vfio-pci: `ferroce bind {address}`"));
        } else {
            missing.extend(self.shut(function).map(|shut| match shut {
                Shut::Forbidden(files) => format!("permission for {}", alternatives(&files)),
                Shut::Absent(files) => format!("the device file: {}", absent(&files)),
            }));
        }
        missing
    }

    /// The device files by which the function can be opened, as [`open`](crate::function::open) chooses between them: the
    /// group's, or the function's own together with that of iommufd. Those that this kernel has.
    fn ways(&self, function: &Function) -> Vec<Vec<PathBuf>> {
        let group = function
            .group
            .as_ref()
            .map(|group| vec![self.roots.group_file(group.id)]);
        let own = names(self.folder(function.address).join("vfio-dev"));
        let own = own.into_iter().map(|name| {
            let file = self.roots.dev.join("vfio/devices").join(name);
            vec![file, self.roots.dev.join("iommu")]
        });
        group.into_iter().chain(own).collect()
    }

    /// The device file by which the function can be opened.
    pub(super) fn way(&self, function: &Function) -> Option<PathBuf> {
        let usable = |way: &Vec<PathBuf>| way.iter().all(|file| self.system.may_use(file));
        self.ways(function).into_iter().find(usable)?.into_iter().next()
    }

    /// Why no way to the function is open; `None` where one is, or where it has no IOMMU group.
    pub(super) fn shut(&self, function: &Function) -> Option<Shut> {
        if function.group.is_none() || self.way(function).is_some() {
            return None;
        }
        let (there, not_there): (Vec<_>, Vec<_>) = self
            .ways(function)
            .into_iter()
            .partition(|way| way.iter().all(|file| file.exists()));
        if there.is_empty() {
            let first = |way: Vec<PathBuf>| way.into_iter().find(|file| !file.exists());
            return Some(Shut::Absent(not_there.into_iter().filter_map(first).collect()));
        }
        let forbidden = |mut way: Vec<PathBuf>| {
            way.retain(|file| !self.system.may_use(file));
            way
        };
        Some(Shut::Forbidden(there.into_iter().map(forbidden).collect()))
    }
}

/// Why a function can't be opened by its device files.
#[derive(Debug)]
pub(super) enum Shut {
    /// For each way: its files that this process may not use.
    Forbidden(Vec<Vec<PathBuf>>),
    /// For each way: a file that is not there.
    Absent(Vec<PathBuf>),
}

/// What has to be allowed, in words.
pub(super) fn alternatives(ways: &[Vec<PathBuf>]) -> String {
    let way = |files: &Vec<PathBuf>| joined(files, " and ");
    ways.iter().map(way).collect::<Vec<_>>().join(", or ")
}

/// That files are not there, in words.
pub(super) fn absent(files: &[PathBuf]) -> String {
    match files {
        [one] => format!("{} is not there", one.display()),
        more => format!("neither {} is there", joined(more, " nor ")),
    }
}

fn joined(files: &[PathBuf], between: &str) -> String {
    let name = |file: &PathBuf| file.display().to_string();
    files.iter().map(name).collect::<Vec<_>>().join(between)
}

impl Function {
    /// Whether a driver that gives it to VFIO has it.
    pub fn bound_to_vfio(&self) -> bool {
        self.driver
            .as_deref()
            .is_some_and(|driver| VFIO_DRIVERS.contains(&driver))
    }
}

/// Whether the text of `driver_override` names a driver: it reads `(null)` where it is not set.
pub(super) fn is_driver(text: &str) -> bool {
    !text.is_empty() && text != "(null)"
}

fn link(folder: &std::path::Path) -> Link {
    let speed = |name: &str| attribute(folder.join(name)).filter(|speed| !speed.starts_with("Unknown"));
    let width = |name: &str| {
        let width = number(folder.join(name)).and_then(|width| u32::try_from(width).ok());
        // 0, and 255 on some kernels, stand for unknown.
        width.filter(|width| (1..=32).contains(width))
    };
    Link {
        speed: speed("current_link_speed"),
        width: width("current_link_width"),
        max_speed: speed("max_link_speed"),
        max_width: width("max_link_width"),
    }
}
