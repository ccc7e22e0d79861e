//! The machine around a NIC: which functions there are, what they lack for this driver, and who drives them.
//!
//! ```text
//!   functions   what sysfs says of each RoCE-capable function      (ferroce devices)
//!   doctor      checks, each with what mends it                    (ferroce doctor)
//!   bind        to vfio-pci and back to what it was                (ferroce bind, unbind)
//! ```
//!
//! Everything is read below a [`Host`], which is the real machine or a folder that imitates one. Sources: the kernel's
//! `Documentation/ABI/testing/sysfs-bus-pci`, `sysfs-class-net` and `sysfs-kernel-iommu_groups`.

mod bind;
mod doctor;
mod error;
mod functions;
#[cfg(test)]
mod testing;

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use bind::{BindOptions, Binding};
pub use doctor::{Check, Outcome};
pub use error::HostError;
pub use functions::{Function, Group, Link, Member, Netdev};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::{Resource, getrlimit};

use crate::function::Roots;

/// What can't be had by reading files.
trait System: Send + Sync + fmt::Debug {
    /// Writes a sysfs attribute.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;
    /// The addresses of a network interface.
    fn addresses(&self, netdev: &str) -> io::Result<Vec<IpAddr>>;
    /// The limit on locked memory in bytes; `None` is unlimited.
    fn memlock(&self) -> Option<u64>;
    /// Whether this process may read and write a file.
    fn may_use(&self, path: &Path) -> bool;
}

/// A machine.
#[derive(Debug)]
pub struct Host {
    roots: Roots,
    proc: PathBuf,
    run: PathBuf,
    system: Box<dyn System>,
}

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}

impl Host {
    /// This machine.
    pub fn new() -> Host {
        Host {
            roots: Roots::default(),
            proc: "/proc".into(),
            run: "/run".into(),
            system: Box::new(Real),
        }
    }

    /// What imitates a machine in the folders `sys`, `dev`, `proc` and `run` of `root`, for tests: attributes are plain
    /// files there, its network interfaces have no addresses, and the limit on locked memory is this process's.
    pub fn imitated(root: &Path) -> Host {
        Host::with(root, Box::new(Imitation))
    }

    fn with(root: &Path, system: Box<dyn System>) -> Host {
        Host {
            roots: Roots {
                sys: root.join("sys"),
                dev: root.join("dev"),
            },
            proc: root.join("proc"),
            run: root.join("run"),
            system,
        }
    }

    fn sys(&self, path: &str) -> PathBuf {
        self.roots.sys.join(path)
    }

    /// Writes an attribute.
    fn write(&self, path: &Path, text: &str) -> Result<(), HostError> {
        log::debug!("writing {text:?} to {}", path.display());
        self.system
            .write(path, text)
            .map_err(|source| HostError::write(path, text, source))
    }
}

/// An attribute's text without the white space around it; `None` where it is not there or can't be read.
fn attribute(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&text).trim().to_owned())
}

/// An attribute that is a number, in decimal or with 0x before it.
fn number(path: impl AsRef<Path>) -> Option<i64> {
    let text = attribute(path)?;
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The names in a folder, sorted; none where there is no such folder.
fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The interface that an address belongs to. The C library gives an IPv4 address's label for the interface's name, which is
/// that name and perhaps more: `ens1:vip`, but also `ens1vip`.
fn labelled<'a>(label: &str, interfaces: &[&'a str]) -> Option<&'a str> {
    let begins = interfaces.iter().filter(|name| label.starts_with(**name));
    begins.max_by_key(|name| name.len()).copied()
}

/// This machine.
#[derive(Debug)]
struct Real;

impl System for Real {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // Not created where it is missing: sysfs would say EACCES, which misleads.
        fs::OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
    }

    fn addresses(&self, netdev: &str) -> io::Result<Vec<IpAddr>> {
        let all: Vec<_> = nix::ifaddrs::getifaddrs()?.collect();
        // Each interface is there once with its hardware address, or with none.
        let plain = all.iter().filter(|entry| {
            let address = entry.address.as_ref();
            address.is_none_or(|address| address.as_link_addr().is_some())
        });
        let interfaces: Vec<&str> = plain
            .map(|entry| entry.interface_name.as_str())
            .chain([netdev])
            .collect();
        let own = all
            .iter()
            .filter(|entry| labelled(&entry.interface_name, &interfaces) == Some(netdev));
        let ip = |address: &nix::sys::socket::SockaddrStorage| {
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
        };
        Ok(own.filter_map(|entry| ip(entry.address.as_ref()?)).collect())
    }

    fn memlock(&self) -> Option<u64> {
        getrlimit(Resource::Memlock).current
    }

    fn may_use(&self, path: &Path) -> bool {
        accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }
}

/// Plain files.
#[derive(Debug)]
struct Imitation;

impl System for Imitation {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        Real.write(path, text)
    }

    fn addresses(&self, _netdev: &str) -> io::Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }

    fn memlock(&self) -> Option<u64> {
        Real.memlock()
    }

    fn may_use(&self, path: &Path) -> bool {
        Real.may_use(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v17_an_address_with_a_label_belongs_to_its_interface() {
        let interfaces = ["lo", "ens1", "ens10", "ens1np0"];
        for (label, interface) in [
            ("ens1", Some("ens1")),
            ("ens1:vip", Some("ens1")),
            ("ens1vip", Some("ens1")),
            ("ens10:0", Some("ens10")),
            ("ens1np0:0", Some("ens1np0")),
            ("eth0", None),
        ] {
            assert_eq!(labelled(label, &interfaces), interface, "{label}");
        }
    }
}
