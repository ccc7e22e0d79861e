//! A machine made of plain files, with a kernel that does as sysfs does when an attribute is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Host, System};
use crate::function::PciAddress;

/// The machine.
pub struct Machine {
    pub host: Host,
    root: tempfile::TempDir,
    kernel: Kernel,
}

/// What the kernel remembers.
#[derive(Debug, Default)]
struct State {
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Whether asking for addresses fails.
    addresses_unknown: bool,
    /// Drivers that were told of ids beside their own, by `new_id` or `ids`, and these, as `remove_id` takes them.
    claims: Vec<(&'static str, &'static str)>,
    /// Ends of paths whose writes fail, and the errno.
    refused: Vec<(&'static str, i32)>,
    /// Drivers that take no device.
    unwilling: BTreeSet<&'static str>,
    pub memlock: Option<u64>,
    pub forbidden: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
struct Kernel {
    sys: PathBuf,
    state: Arc<Mutex<State>>,
}

/// One function of the machine.
pub struct Nic {
    folder: PathBuf,
}

impl Machine {
    pub fn new() -> Machine {
        let root = tempfile::tempdir().expect("folder");
        for folder in [
            "sys/bus/pci/devices",
            "sys/bus/pci/drivers",
            "dev/vfio",
            "proc/self",
            "run",
        ] {
            fs::create_dir_all(root.path().join(folder)).expect("folder");
        }
        let kernel = Kernel {
            sys: root.path().join("sys"),
            state: Arc::default(),
        };
        fs::write(kernel.sys.join("bus/pci/drivers_probe"), "").expect("file");
        Machine {
            host: Host::with(root.path(), Box::new(kernel.clone())),
            root,
            kernel,
        }
    }

    pub fn address(&self, text: &str) -> PciAddress {
        text.parse().expect("an address")
    }

    /// Where something below the root is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// A file with a text, below the root.
    pub fn file(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("has one")).expect("folder");
        fs::write(path, text).expect("file");
    }

    pub fn remove(&self, path: &str) {
        let path = self.root.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).expect("removed");
        } else {
            fs::remove_file(path).expect("removed");
        }
    }

    /// Loads a driver.
    pub fn driver(&self, name: &str) {
        for file in ["bind", "unbind", "remove_id"] {
            self.file(&format!("sys/bus/pci/drivers/{name}/{file}"), "");
        }
    }

    /// Loads vfio-pci and what it needs.
    pub fn vfio_pci(&self) {
        self.driver("vfio-pci");
        self.file(
            "sys/module/vfio_iommu_type1/parameters/dma_entry_limit",
            "65535\n",
        );
        self.file("dev/vfio/vfio", "");
    }

    /// A ConnectX-4.
    pub fn nic(&self, address: &str, driver: Option<&str>, group: Option<u32>) -> Nic {
        self.other(address, "0x15b3", "0x1013", driver, group)
    }

    pub fn other(
        &self,
        address: &str,
        vendor: &str,
        device: &str,
        driver: Option<&str>,
        group: Option<u32>,
    ) -> Nic {
        let folder = self.kernel.sys.join("bus/pci/devices").join(address);
        fs::create_dir_all(&folder).expect("folder");
        let nic = Nic { folder };
        nic.set("vendor", vendor);
        nic.set("device", device);
        nic.set("numa_node", "-1");
        nic.set("driver_override", "(null)");
        if let Some(driver) = driver {
            self.driver(driver);
            self.kernel.attach(&nic.folder, driver);
        }
        if let Some(group) = group {
            let members = self
                .kernel
                .sys
                .join(format!("kernel/iommu_groups/{group}/devices"));
            fs::create_dir_all(&members).expect("folder");
            symlink(&nic.folder, members.join(address)).expect("link");
            symlink(members.parent().expect("has one"), nic.folder.join("iommu_group")).expect("link");
            self.file(&format!("dev/vfio/{group}"), "");
        }
        nic
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.kernel.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn give_address(&self, netdev: &str, address: &str) {
        let address = address.parse().expect("an address");
        self.state(|s| s.addresses.entry(netdev.to_owned()).or_default().push(address));
    }

    pub fn hide_addresses(&self) {
        self.state(|s| s.addresses_unknown = true);
    }

    /// Tells a driver of ids, such as `15b3 1013`.
    pub fn claim(&self, driver: &'static str, ids: &'static str) {
        self.state(|s| s.claims.push((driver, ids)));
    }

    /// A write as by hand, such as `echo TEXT > PATH`.
    pub fn echo(&self, text: &str, path: &str) {
        let written = self.kernel.write(&self.path(path), &format!("{text}\n"));
        written.expect(path);
    }

    pub fn refuse(&self, end: &'static str, errno: i32) {
        self.state(|s| s.refused.push((end, errno)));
    }

    pub fn allow_all(&self) {
        self.state(|s| s.refused.clear());
    }

    pub fn unwilling(&self, driver: &'static str) {
        self.state(|s| s.unwilling.insert(driver));
    }

    pub fn willing(&self, driver: &'static str) {
        self.state(|s| s.unwilling.remove(driver));
    }

    pub fn memlock(&self, limit: Option<u64>) {
        self.state(|s| s.memlock = limit);
    }

    pub fn forbid(&self, path: &str) {
        let path = self.root.path().join(path);
        self.state(|s| s.forbidden.push(path));
    }
}

impl Nic {
    pub fn set(&self, attribute: &str, text: &str) {
        let path = self.folder.join(attribute);
        fs::create_dir_all(path.parent().expect("has one")).expect("folder");
        fs::write(path, format!("{text}\n")).expect("file");
    }

    pub fn text(&self, attribute: &str) -> String {
        let text = fs::read_to_string(self.folder.join(attribute)).expect("file");
        text.trim()
            .trim_matches(|c| c == '(' || c == ')')
            .replace("null", "")
    }

    pub fn netdev(&self, name: &str, up: bool) {
        self.set(&format!("net/{name}/flags"), if up { "0x1003" } else { "0x1002" });
        self.set(&format!("net/{name}/address"), "02:fe:44:0c:e0:01");
        self.set(&format!("net/{name}/operstate"), if up { "up" } else { "down" });
        self.set(&format!("net/{name}/speed"), if up { "100000" } else { "-1" });
    }
}

impl Kernel {
    /// The drivers whose ids match a device, in the order in which the kernel asks them; `driver_override` leaves one.
    fn matching(&self, device: &Path) -> io::Result<Vec<String>> {
        let text = |name: &str| fs::read_to_string(device.join(name));
        match text("driver_override")?.trim() {
            "(null)" => {}
            driver => return Ok(vec![driver.to_owned()]),
        }
        let id = |text: String| text.trim().trim_start_matches("0x").to_owned();
        let ids = format!("{} {}", id(text("vendor")?), id(text("device")?));
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let claims = state.claims.iter().filter(|(_, claimed)| *claimed == ids);
        Ok(claims
            .map(|(driver, _)| *driver)
            .chain(["mlx5_core"])
            .map(str::to_owned)
            .collect())
    }

    fn attach(&self, device: &Path, driver: &str) {
        let folder = self.sys.join("bus/pci/drivers").join(driver);
        let willing = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            !state.unwilling.contains(driver)
        };
        if folder.exists() && willing && !device.join("driver").exists() {
            symlink(folder, device.join("driver")).expect("link");
        }
    }
}

impl System for Kernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, errno)) = state.refused.iter().find(|(end, _)| path.ends_with(end)) {
                return Err(io::Error::from_raw_os_error(*errno));
            }
        }
        if !path.exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let name = |path: Option<&Path>| {
            path.and_then(|p| p.file_name()?.to_str())
                .unwrap_or_default()
                .to_owned()
        };
        let driver = name(path.parent());
        let device = self.sys.join("bus/pci/devices").join(text.trim());
        match name(Some(path)).as_str() {
            "driver_override" => fs::write(path, if text == "\n" { "(null)\n" } else { text })?,
            "unbind" => fs::remove_file(device.join("driver"))?,
            "bind" if device.join("driver").exists() => {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            "bind" if !self.matching(&device)?.contains(&driver) => {
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            }
            "bind" => self.attach(&device, &driver),
            "drivers_probe" => {
                for driver in self.matching(&device)? {
                    self.attach(&device, &driver);
                }
            }
            "remove_id" => {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let before = state.claims.len();
                state
                    .claims
                    .retain(|claim| *claim != (driver.as_str(), text.trim()));
                if state.claims.len() == before {
                    return Err(io::Error::from_raw_os_error(libc::ENODEV));
                }
            }
            _ => return Err(io::Error::from_raw_os_error(libc::EACCES)),
        }
        Ok(())
    }

    fn addresses(&self, netdev: &str) -> io::Result<Vec<IpAddr>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.addresses_unknown {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        Ok(state.addresses.get(netdev).cloned().unwrap_or_default())
    }

    fn memlock(&self) -> Option<u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).memlock
    }

    fn may_use(&self, path: &Path) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        path.exists() && !state.forbidden.iter().any(|forbidden| forbidden == path)
    }
}
