//! Giving a function to vfio-pci, and back to whom it belonged.
//!
//! By `driver_override` (kernel ABI `sysfs-bus-pci`): only the one function changes hands, whatever its ids are. What it
//! was before is kept in `/run/ferroce/bind/ADDRESS` until it is given back; that goes at a reboot, as the binding does.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::functions::Function;
use super::{Host, HostError};
use crate::function::{PciAddress, link_name};

/// The driver that functions are bound to.
const VFIO_PCI: &str = "vfio-pci";

/// How to bind.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BindOptions {
    /// Also take a function whose network interface is up or has addresses.
    pub force: bool,
}

impl BindOptions {
    /// Whether to take also a function whose network interface is up or has addresses.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Binding {
    /// The driver before.
    pub before: Option<String>,
    /// The driver now.
    pub after: Option<String>,
    /// Whether anything had to be done.
    pub changed: bool,
    /// The function as it is now.
    pub function: Function,
}

/// What a function was before it was bound.
#[derive(Debug, Default, PartialEq, Eq)]
struct Before {
    driver: Option<String>,
    driver_override: Option<String>,
}

impl Host {
    /// Binds a function to vfio-pci. Nothing is done where it is bound already.
    ///
    /// The functions that share its IOMMU group are left alone: [`Function::missing`] of the result says if they have to
    /// be bound too.
    ///
    /// # Errors
    /// [`HostError::NoSuchDevice`], [`HostError::NotSupported`], [`HostError::NoIommu`], [`HostError::NoVfioPci`],
    /// [`HostError::NetdevInUse`] before anything has been changed; [`HostError::Permission`], [`HostError::Write`],
    /// [`HostError::NotBound`] after it has been given back to the driver it had.
    pub fn bind(&self, address: PciAddress, options: BindOptions) -> Result<Binding, HostError> {
        let function = self.function(address)?;
        if function.bound_to_vfio() {
            return Ok(Binding {
                before: function.driver.clone(),
                after: function.driver.clone(),
                changed: false,
                function,
            });
        }
        if function.group.is_none() {
            return Err(HostError::NoIommu {
                address: address.to_string(),
            });
        }
        if !self.driver_folder(VFIO_PCI).exists() {
            return Err(HostError::NoVfioPci);
        }
        if !options.force {
            in_use(&function)?;
        }
        let before = Before {
            driver: function.driver.clone(),
            driver_override: function.driver_override.clone(),
        };
        self.remember(address, &before)?;
        if let Err(error) = self.take(address, &before) {
            if let Err(second) = self.restore(address, &before) {
                log::error!("{address} could not be given back to its driver either: {second}");
            }
            return Err(error);
        }
        Ok(Binding {
            before: before.driver,
            after: self.driver(address)?,
            changed: true,
            function: self.function(address)?,
        })
    }

    /// Gives a function back to the driver that it had before [`Host::bind`]; one that was bound by other means to the
    /// driver that the kernel chooses. Nothing is done where vfio-pci does not have it, unless an earlier change was left
    /// half done.
    ///
    /// Waits while a process has the function open: the kernel asks that process to let go of it.
    ///
    /// # Errors
    /// As [`Host::bind`].
    pub fn unbind(&self, address: PciAddress) -> Result<Binding, HostError> {
        let function = self.function(address)?;
        let mut remembered = self.remembered(address);
        // Somebody has given it to another driver since, by hand: that is not ours to undo.
        if !function.bound_to_vfio()
            && function.driver.is_some()
            && remembered
                .as_ref()
                .is_some_and(|before| before.driver != function.driver)
        {
            self.forget(address)?;
            remembered = None;
        }
        if !function.bound_to_vfio() && remembered.is_none() {
            return Ok(Binding {
                before: function.driver.clone(),
                after: function.driver.clone(),
                changed: false,
                function,
            });
        }
        match &remembered {
            Some(before) => self.restore(address, before)?,
            None => self.release(address)?,
        }
        Ok(Binding {
            before: function.driver,
            after: self.driver(address)?,
            changed: true,
            function: self.function(address)?,
        })
    }

    /// Moves a function to vfio-pci.
    fn take(&self, address: PciAddress, before: &Before) -> Result<(), HostError> {
        self.set_override(address, Some(VFIO_PCI))?;
        if before.driver.is_some() {
            self.write(&self.folder(address).join("driver/unbind"), &address.to_string())?;
        }
        self.write(&self.sys("bus/pci/drivers_probe"), &address.to_string())?;
        self.expect(
            address,
            Some(VFIO_PCI),
            "the kernel's log (`dmesg`) says why; is it a bridge, or does vfio-pci's own `ids` or denylist forbid it?",
        )
    }

    /// Puts a function back to what it was.
    fn restore(&self, address: PciAddress, before: &Before) -> Result<(), HostError> {
        self.set_override(address, before.driver_override.as_deref())?;
        if self.driver(address)? != before.driver {
            self.detach(address)?;
            if let Some(driver) = &before.driver {
                let folder = self.driver_folder(driver);
                if folder.exists() {
                    self.write(&folder.join("bind"), &address.to_string())?;
                }
            }
            self.expect(
                address,
                before.driver.as_deref(),
                "load that driver's module with modprobe, then write the address to its `bind` in \
                 /sys/bus/pci/drivers; `dmesg` may say more",
            )?;
        }
        self.forget(address)
    }

    /// Gives a function of vfio-pci's to the driver that the kernel chooses.
    fn release(&self, address: PciAddress) -> Result<(), HostError> {
        self.set_override(address, None)?;
        self.detach(address)?;
        self.write(&self.sys("bus/pci/drivers_probe"), &address.to_string())
    }

    /// Takes a function from its driver, if it has one.
    fn detach(&self, address: PciAddress) -> Result<(), HostError> {
        if self.driver(address)?.is_none() {
            return Ok(());
        }
        self.write(&self.folder(address).join("driver/unbind"), &address.to_string())
    }

    fn set_override(&self, address: PciAddress, driver: Option<&str>) -> Result<(), HostError> {
        // A bare newline clears it; a write of nothing would not arrive.
        let text = driver.map_or("\n".to_owned(), |driver| format!("{driver}\n"));
        self.write(&self.folder(address).join("driver_override"), &text)
    }

    fn driver(&self, address: PciAddress) -> Result<Option<String>, HostError> {
        Ok(link_name(&self.folder(address).join("driver"))?)
    }

    fn driver_folder(&self, driver: &str) -> PathBuf {
        self.sys("bus/pci/drivers").join(driver)
    }

    fn expect(&self, address: PciAddress, wanted: Option<&str>, hint: &'static str) -> Result<(), HostError> {
        let found = self.driver(address)?;
        if found.as_deref() == wanted {
            return Ok(());
        }
        Err(HostError::NotBound {
            address: address.to_string(),
            wanted: wanted.map(str::to_owned),
            found,
            hint,
        })
    }

    fn record(&self, address: PciAddress) -> PathBuf {
        self.run.join("ferroce/bind").join(address.to_string())
    }

    fn remember(&self, address: PciAddress, before: &Before) -> Result<(), HostError> {
        let path = self.record(address);
        let line = |what: &Option<String>| what.clone().unwrap_or_default();
        let text = format!(
            "driver={}\ndriver_override={}\n",
            line(&before.driver),
            line(&before.driver_override)
        );
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|source| file_error("writing", path, source))
    }

    fn remembered(&self, address: PciAddress) -> Option<Before> {
        let text = fs::read_to_string(self.record(address)).ok()?;
        let value = |key: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            // A driver's name has no slash: nothing else is to be taken for one.
            line.filter(|value| !value.is_empty() && !value.contains('/'))
                .map(str::to_owned)
        };
        Some(Before {
            driver: value("driver"),
            driver_override: value("driver_override"),
        })
    }

    fn forget(&self, address: PciAddress) -> Result<(), HostError> {
        let path = self.record(address);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("removing", path, error)),
            _ => Ok(()),
        }
    }
}

fn file_error(what: &'static str, path: PathBuf, source: io::Error) -> HostError {
    match source.kind() {
        io::ErrorKind::PermissionDenied => HostError::Permission { path },
        _ => HostError::File { what, path, source },
    }
}

/// Whether somebody may be using one of its network interfaces.
fn in_use(function: &Function) -> Result<(), HostError> {
    for netdev in &function.netdevs {
        let mut what = Vec::new();
        if netdev.up {
            what.push("is up".to_owned());
        }
        if !netdev.addresses.is_empty() {
            let addresses: Vec<String> = netdev.addresses.iter().map(|a| a.to_string()).collect();
            what.push(format!("has addresses ({})", addresses.join(", ")));
        }
        if !what.is_empty() {
            return Err(HostError::NetdevInUse {
                address: function.address.to_string(),
                netdev: netdev.name.clone(),
                what,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Machine;
    use super::*;

    const NIC: &str = "0000:3b:00.0";

    fn bind(machine: &Machine, address: &str) -> Result<Binding, HostError> {
        machine
            .host
            .bind(machine.address(address), BindOptions::default())
    }

    fn unbind(machine: &Machine, address: &str) -> Result<Binding, HostError> {
        machine.host.unbind(machine.address(address))
    }

    #[test]
    fn v17_bind_and_unbind_restore_what_was_and_may_be_repeated() {
        let machine = Machine::new();
        machine.vfio_pci();
        let nic = machine.nic(NIC, Some("mlx5_core"), Some(7));
        let done = bind(&machine, NIC).expect("binds");
        assert_eq!(
            (done.before.as_deref(), done.after.as_deref(), done.changed),
            (Some("mlx5_core"), Some("vfio-pci"), true)
        );
        assert_eq!(nic.text("driver_override"), "vfio-pci");
        assert!(!bind(&machine, NIC).expect("is bound").changed);
        let undone = unbind(&machine, NIC).expect("unbinds");
        assert_eq!(
            (undone.after.as_deref(), undone.changed),
            (Some("mlx5_core"), true)
        );
        assert_eq!(nic.text("driver_override"), "");
        assert!(!unbind(&machine, NIC).expect("is unbound").changed);
    }

    #[test]
    fn v17_a_function_without_a_driver_and_one_with_an_override_get_back_theirs() {
        let machine = Machine::new();
        machine.vfio_pci();
        let bare = machine.nic(NIC, None, Some(7));
        let stub = machine.nic("0000:3c:00.0", Some("pci-stub"), Some(8));
        stub.set("driver_override", "pci-stub");
        for address in [NIC, "0000:3c:00.0"] {
            assert_eq!(
                bind(&machine, address).expect("binds").after.as_deref(),
                Some("vfio-pci")
            );
        }
        assert_eq!(unbind(&machine, NIC).expect("unbinds").after, None);
        assert_eq!(bare.text("driver_override"), "");
        let undone = unbind(&machine, "0000:3c:00.0").expect("unbinds");
        assert_eq!(undone.after.as_deref(), Some("pci-stub"));
        assert_eq!(stub.text("driver_override"), "pci-stub");
    }

    #[test]
    fn v17_one_bound_by_hand_goes_to_the_driver_that_the_kernel_chooses() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.driver("mlx5_core");
        let nic = machine.nic(NIC, Some("vfio-pci"), Some(7));
        nic.set("driver_override", "vfio-pci");
        let undone = unbind(&machine, NIC).expect("unbinds");
        assert_eq!(undone.after.as_deref(), Some("mlx5_core"));
    }

    #[test]
    fn v17_one_that_another_driver_was_given_since_is_left_to_it() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.driver("mlx5_core");
        machine.nic(NIC, None, Some(7));
        assert!(bind(&machine, NIC).expect("binds").changed);
        let address = machine.address(NIC);
        machine.host.release(address).expect("by hand");
        let left = unbind(&machine, NIC).expect("is left alone");
        assert_eq!((left.after.as_deref(), left.changed), (Some("mlx5_core"), false));
        assert!(machine.host.remembered(address).is_none());
    }

    #[test]
    fn v17_what_is_in_the_way_is_said_with_what_to_do() {
        let machine = Machine::new();
        machine.nic(NIC, Some("mlx5_core"), Some(7));
        machine.nic("0000:5e:00.0", Some("mlx5_core"), None);
        machine.other("0000:00:1f.2", "0x8086", "0x2922", Some("ahci"), Some(9));
        let says = |address: &str, words: &[&str]| {
            let text = bind(&machine, address).expect_err(address).to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        says("0000:99:00.0", &["no PCI device 0000:99:00.0", "ferroce devices"]);
        says("0000:00:1f.2", &["8086:2922", "not a NIC", "ferroce devices"]);
        says("0000:5e:00.0", &["no IOMMU group", "intel_iommu=on"]);
        says(NIC, &["vfio-pci is not there", "modprobe vfio-pci"]);
        assert_eq!(
            machine
                .host
                .function(machine.address(NIC))
                .expect("is there")
                .driver
                .as_deref(),
            Some("mlx5_core")
        );
    }

    #[test]
    fn v17_a_group_shared_with_a_function_in_use_is_told_after_binding() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.nic(NIC, Some("mlx5_core"), Some(7));
        machine.nic("0000:3b:00.1", Some("mlx5_core"), Some(7));
        let missing = bind(&machine, NIC).expect("binds").function.missing.join("; ");
        assert!(missing.contains("0000:3b:00.1 (mlx5_core)"), "{missing}");
        let missing = bind(&machine, "0000:3b:00.1").expect("binds").function.missing;
        assert!(missing.iter().all(|m| !m.contains("rest of")), "{missing:?}");
    }

    #[test]
    fn v17_a_network_interface_in_use_is_not_taken_away_unless_forced() {
        let machine = Machine::new();
        machine.vfio_pci();
        let nic = machine.nic(NIC, Some("mlx5_core"), Some(7));
        nic.netdev("ens1", true);
        let text = bind(&machine, NIC).expect_err("is up").to_string();
        assert!(
            text.contains("ens1, which is up") && text.contains("--force"),
            "{text}"
        );
        nic.netdev("ens1", false);
        machine.give_address("ens1", "192.0.2.7");
        let text = bind(&machine, NIC).expect_err("has an address").to_string();
        assert!(text.contains("has addresses (192.0.2.7)"), "{text}");
        let forced = machine
            .host
            .bind(machine.address(NIC), BindOptions::default().force(true));
        assert!(forced.expect("forced").changed);
    }

    #[test]
    fn v17_a_busy_driver_and_a_vfio_pci_that_refuses_leave_things_as_they_were() {
        let machine = Machine::new();
        machine.vfio_pci();
        let nic = machine.nic(NIC, Some("mlx5_core"), Some(7));
        machine.refuse("driver/unbind", libc::EBUSY);
        let text = bind(&machine, NIC).expect_err("busy").to_string();
        assert!(text.contains("busy") && text.contains("rdma resource"), "{text}");
        assert_eq!(nic.text("driver_override"), "");
        machine.refuse("driver_override", libc::EACCES);
        let text = bind(&machine, NIC).expect_err("not root").to_string();
        assert!(text.contains("run as root"), "{text}");
        machine.allow_all();
        machine.unwilling("vfio-pci");
        let text = bind(&machine, NIC).expect_err("refused").to_string();
        assert!(
            text.contains("went to no driver instead of vfio-pci") && text.contains("dmesg"),
            "{text}"
        );
        let now = machine.host.function(machine.address(NIC)).expect("is there");
        assert_eq!(
            (now.driver.as_deref(), now.driver_override),
            (Some("mlx5_core"), None)
        );
        assert!(!unbind(&machine, NIC).expect("nothing is left").changed);
    }
}
