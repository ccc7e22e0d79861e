//! Giving a function to vfio-pci, and back to whom it belonged.
//!
//! By `driver_override` (kernel ABI `sysfs-bus-pci`): only the one function changes hands, whatever its ids are. What it
//! was before is kept in `/run/ferroce/bind/ADDRESS` until it is given back; that goes at a reboot, as the binding does.
//! Of a `bind` that got nowhere the record stays, and a later `bind` does not overwrite it.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::functions::Function;
use super::{Host, HostError};
use crate::function::{PciAddress, VFIO_DRIVERS, link_name};

/// The driver that functions are bound to.
const VFIO_PCI: &str = "vfio-pci";

/// The driver that makes a network interface of each function that it has.
const NETDEV_DRIVER: &str = "mlx5_core";

/// How to bind.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BindOptions {
    /// Also take a function whose network interface is up or has addresses, or can't be seen.
    pub force: bool,
}

impl BindOptions {
    /// Whether to take also a function whose network interface is up or has addresses, or can't be seen: it may be in another
    /// network namespace.
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

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &Option<String>| name.clone().unwrap_or_default();
        writeln!(f, "driver={}", text(&self.driver))?;
        writeln!(f, "driver_override={}", text(&self.driver_override))
    }
}

impl Before {
    /// What [`fmt::Display`] wrote; `None` for anything else, such as a part of it.
    fn parse(text: &str) -> Option<Before> {
        let (driver, rest) = text.strip_prefix("driver=")?.split_once('\n')?;
        let driver_override = rest.strip_prefix("driver_override=")?.strip_suffix('\n')?;
        // A driver's name becomes a part of a path: nothing that leads elsewhere is to be taken for one.
        let odd = |name: &str| name.contains(['/', '\n']) || name == "." || name == "..";
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        (!odd(driver) && !odd(driver_override)).then(|| Before {
            driver: name(driver),
            driver_override: name(driver_override),
        })
    }
}

impl Host {
    /// Binds a function to vfio-pci. Nothing is done where it is bound already.
    ///
    /// The functions that share its IOMMU group are left alone: [`Function::missing`] of the result says if they have to
    /// be bound too.
    ///
    /// # Errors
    /// [`HostError::NoSuchDevice`], [`HostError::NotSupported`], [`HostError::NoIommu`], [`HostError::NoVfioPci`],
    /// [`HostError::NetdevInUse`], [`HostError::NetdevUnseen`], [`HostError::Record`] before anything has been changed;
    /// [`HostError::Permission`], [`HostError::Write`], [`HostError::NotBound`] after it has been given back to the driver it
    /// had.
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
            in_use(&function, &self.folder(address).join("net"))?;
        }
        let before = self.before(&function)?;
        if let Err(error) = self.take(address) {
            if let Err(second) = self.restore(address, &before) {
                log::error!("{address} could not be given back to its driver either: {second}");
            }
            return Err(error);
        }
        Ok(Binding {
            before: function.driver,
            after: self.driver(address)?,
            changed: true,
            function: self.function(address)?,
        })
    }

    /// What a function that VFIO does not have was before, on record when this returns.
    fn before(&self, function: &Function) -> Result<Before, HostError> {
        // An earlier change that was left half done leaves no driver, or the one on record and perhaps an override of ours.
        // Under another driver it was put by hand since: what is on record no longer holds.
        if let Some(before) = self.remembered(function.address)?
            && (function.driver.is_none() || function.driver == before.driver)
        {
            return Ok(before);
        }
        let before = Before {
            driver: function.driver.clone(),
            driver_override: function.driver_override.clone(),
        };
        self.remember(function.address, &before)?;
        Ok(before)
    }

    /// Gives a function back to the driver that it had before [`Host::bind`]; one that was bound by other means to the
    /// driver that the kernel chooses. Nothing is done where vfio-pci does not have it, unless an earlier change was left
    /// half done.
    ///
    /// Waits while a process has the function open: the kernel asks that process to let go of it.
    ///
    /// # Errors
    /// As [`Host::bind`]; [`HostError::Claimed`] where the kernel gives a function that was bound by other means straight back
    /// to VFIO.
    pub fn unbind(&self, address: PciAddress) -> Result<Binding, HostError> {
        let function = self.function(address)?;
        let mut remembered = self.remembered(address)?;
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
            None => self.release(&function)?,
        }
        Ok(Binding {
            before: function.driver,
            after: self.driver(address)?,
            changed: true,
            function: self.function(address)?,
        })
    }

    /// Moves a function to vfio-pci.
    fn take(&self, address: PciAddress) -> Result<(), HostError> {
        self.set_override(address, Some(VFIO_PCI))?;
        self.detach(address)?;
        self.write(&self.sys("bus/pci/drivers_probe"), &address.to_string())?;
        self.expect(
            address,
            Some(VFIO_PCI),
            "the kernel's log (`dmesg`) says why; is it a bridge, or does vfio-pci's own `ids` or denylist forbid it?",
        )
    }

    /// Puts a function back to what it was.
    fn restore(&self, address: PciAddress, before: &Before) -> Result<(), HostError> {
        if self.driver(address)? != before.driver {
            // A driver that the override does not name would be refused: one that was set beside another driver comes after.
            let own = |name: &&str| before.driver.as_deref() == Some(*name);
            self.set_override(address, before.driver_override.as_deref().filter(own))?;
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
        self.set_override(address, before.driver_override.as_deref())?;
        self.forget(address)
    }

    /// Gives a function of vfio-pci's to the driver that the kernel chooses.
    fn release(&self, function: &Function) -> Result<(), HostError> {
        let address = function.address;
        self.set_override(address, None)?;
        self.detach(address)?;
        self.write(&self.sys("bus/pci/drivers_probe"), &address.to_string())?;
        // One of them may claim it by its ids (`new_id`, the module's `ids`), which no override is needed for.
        match self.driver(address)? {
            Some(driver) if VFIO_DRIVERS.contains(&driver.as_str()) => Err(HostError::Claimed {
                address: address.to_string(),
                driver,
                vendor: function.vendor,
                device: function.device,
            }),
            _ => Ok(()),
        }
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

    /// Puts a record in place: the whole of it or, whatever happens, none.
    fn remember(&self, address: PciAddress, before: &Before) -> Result<(), HostError> {
        let path = self.record(address);
        let new = path.with_file_name(format!(".{address}.new"));
        let replace = || {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            let mut file = fs::File::create(&new)?;
            file.write_all(before.to_string().as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        replace().map_err(|source| file_error("writing", path.clone(), source))
    }

    /// What is on record; `None` where nothing is.
    fn remembered(&self, address: PciAddress) -> Result<Option<Before>, HostError> {
        let path = self.record(address);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                return Err(file_error("reading", path, error));
            }
            // What is no text is no record either.
            Err(_) => String::new(),
            Ok(text) => text,
        };
        match Before::parse(&text) {
            Some(before) => Ok(Some(before)),
            None => Err(HostError::Record {
                address: address.to_string(),
                path,
            }),
        }
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

/// Whether somebody may be using one of its network interfaces. What can't be told counts as in use.
fn in_use(function: &Function, net: &Path) -> Result<(), HostError> {
    if let Some(driver) = &function.driver
        && driver == NETDEV_DRIVER
        && function.netdevs.is_empty()
    {
        return Err(HostError::NetdevUnseen {
            address: function.address.to_string(),
            driver: driver.clone(),
            // The folder is there for as long as there is an interface, in whichever namespace.
            elsewhere: net.exists(),
        });
    }
    for netdev in &function.netdevs {
        let mut what = Vec::new();
        match netdev.up {
            Some(false) => {}
            Some(true) => what.push("is up".to_owned()),
            None => what.push("may be up (its flags can't be read)".to_owned()),
        }
        match netdev.addresses.as_deref() {
            Some([]) => {}
            Some(addresses) => {
                let addresses: Vec<String> = addresses.iter().map(|a| a.to_string()).collect();
                what.push(format!("has addresses ({})", addresses.join(", ")));
            }
            None => what.push("may have addresses (the system does not tell them)".to_owned()),
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
    const RECORD: &str = "run/ferroce/bind/0000:3b:00.0";

    fn driver(machine: &Machine) -> Option<String> {
        let function = machine.host.function(machine.address(NIC));
        function.expect("is there").driver
    }

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
        nic.netdev("ens1", false);
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
        let function = bind(&machine, NIC).expect("binds").function;
        machine.host.release(&function).expect("by hand");
        let left = unbind(&machine, NIC).expect("is left alone");
        assert_eq!((left.after.as_deref(), left.changed), (Some("mlx5_core"), false));
        assert_eq!(machine.host.remembered(function.address).expect("asked"), None);
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
        assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
    }

    #[test]
    fn v17_a_group_shared_with_a_function_in_use_is_told_after_binding() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.nic(NIC, Some("mlx5_core"), Some(7)).netdev("ens1", false);
        machine
            .nic("0000:3b:00.1", Some("mlx5_core"), Some(7))
            .netdev("ens2", false);
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
        nic.netdev("ens1", false);
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

    /// Vfio-pci refuses the function, then the driver that it had, too.
    #[test]
    fn v17_what_a_failed_bind_has_written_down_outlives_the_next_one() {
        let machine = Machine::new();
        machine.vfio_pci();
        let nic = machine.nic(NIC, Some("mlx5_core"), Some(7));
        nic.netdev("ens1", false);
        for driver in ["vfio-pci", "mlx5_core"] {
            machine.unwilling(driver);
        }
        bind(&machine, NIC).expect_err("refused");
        assert_eq!(driver(&machine), None);
        for driver in ["vfio-pci", "mlx5_core"] {
            machine.willing(driver);
        }
        let done = bind(&machine, NIC).expect("binds");
        assert_eq!((done.before, done.after.as_deref()), (None, Some("vfio-pci")));
        let undone = unbind(&machine, NIC).expect("unbinds");
        assert_eq!(undone.after.as_deref(), Some("mlx5_core"));
        assert_eq!(nic.text("driver_override"), "");
    }

    /// A process that is killed between two of its writes.
    #[test]
    fn v17_a_bind_that_was_killed_half_way_is_gone_on_with() {
        for driver in [Some("mlx5_core"), None] {
            let machine = Machine::new();
            machine.vfio_pci();
            machine.driver("mlx5_core");
            let nic = machine.nic(NIC, driver, Some(7));
            nic.netdev("ens1", false);
            machine.file(RECORD, "driver=mlx5_core\ndriver_override=\n");
            nic.set("driver_override", "vfio-pci");
            assert!(bind(&machine, NIC).expect("binds").changed);
            let undone = unbind(&machine, NIC).expect("unbinds");
            assert_eq!(undone.after.as_deref(), Some("mlx5_core"));
            assert_eq!(nic.text("driver_override"), "");
            assert!(!machine.path(RECORD).exists());
        }
    }

    #[test]
    fn v17_an_override_that_names_another_driver_is_put_back_after_the_driver() {
        let machine = Machine::new();
        machine.vfio_pci();
        let nic = machine.nic(NIC, Some("mlx5_core"), Some(7));
        nic.netdev("ens1", false);
        nic.set("driver_override", "vfio-pci");
        assert!(bind(&machine, NIC).expect("binds").changed);
        let undone = unbind(&machine, NIC).expect("unbinds");
        assert_eq!(undone.after.as_deref(), Some("mlx5_core"));
        assert_eq!(nic.text("driver_override"), "vfio-pci");
    }

    #[test]
    fn v17_a_record_of_another_driver_gives_way_to_the_present_one() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine
            .nic(NIC, Some("pci-stub"), Some(7))
            .set("driver_override", "pci-stub");
        machine.file(RECORD, "driver=mlx5_core\ndriver_override=\n");
        assert!(bind(&machine, NIC).expect("binds").changed);
        let undone = unbind(&machine, NIC).expect("unbinds");
        assert_eq!(undone.after.as_deref(), Some("pci-stub"));
    }

    #[test]
    fn v17_a_record_that_is_not_whole_is_told_and_nothing_is_changed() {
        for text in [
            "",
            "driver=mlx5",
            "driver=mlx5_core\ndriver_ov",
            "driver_override=\n",
            "driver=../x\ndriver_override=\n",
        ] {
            let machine = Machine::new();
            machine.vfio_pci();
            let nic = machine.nic(NIC, Some("mlx5_core"), Some(7));
            nic.netdev("ens1", false);
            machine.file(RECORD, text);
            for error in [bind(&machine, NIC), unbind(&machine, NIC)] {
                let said = error.expect_err(text).to_string();
                assert!(
                    said.contains("not whole: remove it (`rm ") && said.contains(NIC),
                    "{said}"
                );
            }
            assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
            machine.remove(RECORD);
            assert!(bind(&machine, NIC).expect("binds").changed);
            let record = fs::read_to_string(machine.path(RECORD)).expect("a record");
            assert_eq!(record, "driver=mlx5_core\ndriver_override=\n");
            let left = fs::read_dir(machine.path("run/ferroce/bind"))
                .expect("a folder")
                .count();
            assert_eq!(left, 1, "nothing but the record");
        }
        // One that can't be read at all.
        let machine = Machine::new();
        machine.vfio_pci();
        machine.nic(NIC, Some("vfio-pci"), Some(7));
        machine.file(&format!("{RECORD}/x"), "");
        let said = unbind(&machine, NIC).expect_err("a folder").to_string();
        assert!(said.starts_with("reading ") && said.contains(NIC), "{said}");
        assert_eq!(driver(&machine).as_deref(), Some("vfio-pci"));
    }

    #[test]
    fn v17_a_function_that_vfio_pci_claims_by_its_ids_is_not_said_to_be_unbound() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.driver("mlx5_core");
        machine.nic(NIC, Some("vfio-pci"), Some(7));
        machine.claim("vfio-pci", "15b3 1013");
        let text = unbind(&machine, NIC).expect_err("is claimed").to_string();
        let advice = "`echo \"15b3 1013\" > /sys/bus/pci/drivers/vfio-pci/remove_id`";
        assert!(
            text.contains("straight back to vfio-pci") && text.contains(advice),
            "{text}"
        );
        machine.echo("15b3 1013", "sys/bus/pci/drivers/vfio-pci/remove_id");
        let undone = unbind(&machine, NIC).expect("unbinds");
        assert_eq!(undone.after.as_deref(), Some("mlx5_core"));
    }

    /// Its former driver is known, and is told by name.
    #[test]
    fn v17_one_that_bind_took_goes_back_whatever_vfio_pci_claims() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.nic(NIC, Some("mlx5_core"), Some(7)).netdev("ens1", false);
        bind(&machine, NIC).expect("binds");
        machine.claim("vfio-pci", "15b3 1013");
        let undone = unbind(&machine, NIC).expect("unbinds");
        assert_eq!(undone.after.as_deref(), Some("mlx5_core"));
    }

    #[test]
    fn v17_a_network_interface_that_can_not_be_seen_is_not_taken_away_unless_forced() {
        let machine = Machine::new();
        machine.vfio_pci();
        let nic = machine.nic(NIC, Some("mlx5_core"), Some(7));
        let says = |words: &str| {
            let text = bind(&machine, NIC).expect_err(words).to_string();
            assert!(text.contains(words) && text.contains("--force"), "{text}");
            assert_eq!(driver(&machine).as_deref(), Some("mlx5_core"));
        };
        says("no network interface of it is to be seen");
        // The folder stays when the interface moves to another namespace.
        nic.netdev("ens1", false);
        machine.remove(&format!("sys/bus/pci/devices/{NIC}/net/ens1"));
        says("is in another network namespace");
        nic.netdev("ens1", false);
        nic.set("net/ens1/flags", "what?");
        says("ens1, which may be up");
        nic.netdev("ens1", false);
        machine.hide_addresses();
        says("ens1, which may have addresses");
        let forced = machine
            .host
            .bind(machine.address(NIC), BindOptions::default().force(true));
        assert!(forced.expect("forced").changed);
    }
}
