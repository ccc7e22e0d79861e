//! What a machine, and a function in it, needs for this driver: looked at one by one, each with what mends it.

use super::functions::{Function, Shut, absent, alternatives};
use super::{Host, HostError, attribute, names, number};
use crate::function::PciAddress;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// It works, but slower or with less than it could.
    Warning,
    /// The driver can't work like that.
    Failed,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// What, in a few words.
    pub name: &'static str,
    /// The function that it is about; `None` is the machine.
    pub function: Option<PciAddress>,
    /// How it went.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
    /// What to do about it; there whenever the outcome is not [`Outcome::Ok`].
    pub mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            function: None,
            outcome: Outcome::Ok,
            found: found.into(),
            mend: None,
        }
    }

    fn wrong(
        name: &'static str,
        outcome: Outcome,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Check {
        Check {
            outcome,
            mend: Some(mend.into()),
            ..Check::ok(name, found)
        }
    }

    fn failed(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
        Check::wrong(name, Outcome::Failed, found, mend)
    }

    fn warning(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
        Check::wrong(name, Outcome::Warning, found, mend)
    }

    fn of(mut self, function: &Function) -> Check {
        self.function = Some(function.address);
        self
    }
}

/// Locked memory that a NIC takes beside what is registered: firmware's pages (some 50 MiB on a ConnectX-4), queues and buffers.
const COMFORTABLE_MEMLOCK: u64 = 128 << 20;

/// The capability that lifts the limit on locked memory: CAP_IPC_LOCK of linux/capability.h.
const CAP_IPC_LOCK: u32 = 14;

const IOMMU_ON: &str = "switch the IOMMU on in the firmware set-up (VT-d, AMD-Vi, SMMU) and, on Intel, add intel_iommu=on to \
                        the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub) and reboot";

/// How a group of users gets at the device files. The groups' files are of the class `vfio`, the functions' own of
/// `vfio-dev`, and that of iommufd is a misc device.
const UDEV: &str = "for good, by udev rules with GROUP=\"rdma\", MODE=\"0660\" for SUBSYSTEM==\"vfio\", \
                    SUBSYSTEM==\"vfio-dev\", and KERNEL==\"iommu\", SUBSYSTEM==\"misc\" (the group must be there: `groupadd \
                    --system rdma`)";

impl Host {
    /// Checks the machine, and one function or all that this driver knows.
    ///
    /// # Errors
    /// [`HostError::NoSuchDevice`] or [`HostError::NotSupported`] for a function that was asked for,
    /// [`HostError::Function`] where sysfs can't be read. What is wrong with machine and functions is in the checks.
    pub fn examine(&self, function: Option<PciAddress>) -> Result<Vec<Check>, HostError> {
        let functions = match function {
            Some(address) => vec![self.function(address)?],
            None => self.functions()?,
        };
        let mut checks = vec![
            self.iommu(),
            self.vfio_pci(),
            self.container(),
            self.memlock(),
            self.huge_pages(),
        ];
        if functions.is_empty() {
            checks.push(Check::failed(
                "NICs",
                "no NIC that ferroce drives is on this machine's PCI bus",
                "see `lspci -nn -d 15b3:`; without a NIC, try `ferroce demo` or `ferroce model`",
            ));
        }
        for function in &functions {
            checks.push(self.group_check(function));
            checks.push(driver_check(function));
            checks.extend(self.device_file(function));
            checks.extend(link_check(function));
        }
        Ok(checks)
    }

    fn iommu(&self) -> Check {
        const NAME: &str = "IOMMU";
        let groups = names(self.sys("kernel/iommu_groups")).len();
        if groups > 0 {
            return Check::ok(NAME, format!("on, {groups} groups"));
        }
        let command_line = attribute(self.proc.join("cmdline")).unwrap_or_default();
        let off = command_line
            .split_whitespace()
            .find(|word| matches!(*word, "intel_iommu=off" | "amd_iommu=off" | "iommu=off"));
        match off {
            Some(word) => Check::failed(
                NAME,
                format!("off, by {word} on the kernel's command line"),
                format!("take {word} off the kernel's command line and reboot"),
            ),
            None => Check::failed(
                NAME,
                "off, or not there: the kernel has no IOMMU groups",
                IOMMU_ON,
            ),
        }
    }

    fn vfio_pci(&self) -> Check {
        const NAME: &str = "vfio-pci";
        if self.sys("bus/pci/drivers/vfio-pci").exists() {
            Check::ok(NAME, "loaded")
        } else {
            Check::failed(
                NAME,
                "the module is not loaded",
                "`modprobe vfio-pci`; at each boot: `echo vfio-pci > /etc/modules-load.d/vfio-pci.conf`",
            )
        }
    }

    /// The IOMMU side of VFIO: the container and its type 1 back end, or iommufd.
    fn container(&self) -> Check {
        const NAME: &str = "VFIO container";
        let file = self.roots.dev.join("vfio/vfio");
        let iommufd = self.roots.dev.join("iommu");
        if self.system.may_use(&iommufd) && !self.system.may_use(&file) {
            return Check::ok(NAME, format!("none, but {}", iommufd.display()));
        }
        if !file.exists() && iommufd.exists() {
            let iommufd = iommufd.display();
            return Check::failed(
                NAME,
                format!("none, and no permission for {iommufd}"),
                format!("run as its owner, or `chown $USER {iommufd}`; {UDEV}"),
            );
        }
        if !file.exists() {
            return Check::failed(
                NAME,
                format!("{} is not there", file.display()),
                "`modprobe vfio-pci` makes it; in a container, pass the device file in",
            );
        }
        if !self.system.may_use(&file) {
            return Check::failed(
                NAME,
                format!("no permission for {}", file.display()),
                format!(
                    "`chmod 0666 {}`: it gives no access to any device by itself",
                    file.display()
                ),
            );
        }
        if !self.sys("module/vfio_iommu_type1").exists() {
            return Check::failed(
                NAME,
                "the module vfio_iommu_type1 is not loaded",
                "`modprobe vfio_iommu_type1`",
            );
        }
        let limit = number(self.sys("module/vfio_iommu_type1/parameters/dma_entry_limit"));
        Check::ok(
            NAME,
            limit.map_or("there".to_owned(), |limit| {
                format!("there, {limit} DMA mappings at most")
            }),
        )
    }

    fn memlock(&self) -> Check {
        const NAME: &str = "locked memory";
        let Some(limit) = self.system.memlock() else {
            return Check::ok(NAME, "unlimited");
        };
        if self.may_lock_all() {
            return Check::ok(NAME, "not limited for this process (CAP_IPC_LOCK)");
        }
        let found = format!("limited to {} MiB", limit >> 20);
        if limit >= COMFORTABLE_MEMLOCK {
            return Check::ok(NAME, found);
        }
        Check::failed(
            NAME,
            found,
            "VFIO locks all memory that the NIC may reach: raise the limit to what is to be registered and 128 MiB more for \
             each NIC, by `ulimit -l`, `LimitMEMLOCK=` in the service's unit, or a memlock \
             line in /etc/security/limits.d",
        )
    }

    /// Whether this process has CAP_IPC_LOCK.
    fn may_lock_all(&self) -> bool {
        let status = attribute(self.proc.join("self/status")).unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        effective
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 != 0)
    }

    fn huge_pages(&self) -> Check {
        const NAME: &str = "huge pages";
        let count = |name: &str| {
            let folder = self.sys("kernel/mm/hugepages/hugepages-2048kB");
            number(folder.join(name)).unwrap_or(0)
        };
        let (total, free) = (count("nr_hugepages"), count("free_hugepages"));
        // Of the words, the one in brackets holds. The driver's memory is shared memory, which has a switch of its own.
        let switch = attribute(self.sys("kernel/mm/transparent_hugepage/shmem_enabled")).unwrap_or_default();
        let chosen = switch.split(['[', ']']).nth(1).unwrap_or("not there");
        let found = format!(
            "transparent ones for shared memory: {chosen}; {free} of {total} reserved ones of 2 MiB are free, for programs that \
             ask for them"
        );
        // What programs have if they ask for nothing.
        if matches!(chosen, "advise" | "always" | "within_size" | "force") {
            return Check::ok(NAME, found);
        }
        Check::warning(
            NAME,
            found,
            "not needed, but without them bring-up and large regions take longer and many IOMMU entries: `echo advise > \
             /sys/kernel/mm/transparent_hugepage/shmem_enabled`. Reserved ones (`echo 512 > /proc/sys/vm/nr_hugepages` is 1 \
             GiB) are used only where the program says so: OpenConfig::huge_pages for firmware's memory, PageKind::Huge2M \
             for its own",
        )
    }

    fn group_check(&self, function: &Function) -> Check {
        const NAME: &str = "IOMMU group";
        let check = match &function.group {
            None => Check::failed(NAME, "none", IOMMU_ON),
            Some(group) if self.roots.dev.join(format!("vfio/noiommu-{}", group.id)).exists() => {
                Check::failed(
                    NAME,
                    format!("{}, without an IOMMU behind it (VFIO's no-IOMMU mode)", group.id),
                    IOMMU_ON,
                )
            }
            Some(group) if group.in_the_way.is_empty() => {
                let others = match group.others.len() {
                    0 => "alone in it".to_owned(),
                    n => format!("shared with {n} functions, none of them in the way"),
                };
                Check::ok(NAME, format!("{}, {others}", group.id))
            }
            Some(group) => Check::failed(
                NAME,
                format!(
                    "{}, not viable: shared with {}",
                    group.id,
                    group.in_the_way.join(", ")
                ),
                "bind these to vfio-pci too (`ferroce bind ADDR` for NICs, driver_override for others) or unbind them; a \
                 slot with ACS of its own separates them",
            ),
        };
        check.of(function)
    }

    /// The group's file, or the function's own where the kernel has iommufd.
    fn device_file(&self, function: &Function) -> Option<Check> {
        const NAME: &str = "device file";
        if !function.bound_to_vfio() || function.group.is_none() {
            return None;
        }
        let check = match (self.way(function), self.shut(function)) {
            (Some(file), _) => Check::ok(NAME, format!("{} may be opened", file.display())),
            (None, Some(Shut::Absent(files))) => Check::failed(
                NAME,
                absent(&files),
                "in a container, pass it in (`--device`), with /dev/iommu beside a file of /dev/vfio/devices; otherwise see \
                 the kernel's log",
            ),
            (None, shut) => {
                let ways = match shut {
                    Some(Shut::Forbidden(ways)) => ways,
                    _ => Vec::new(),
                };
                let first = ways.first().map(Vec::as_slice).unwrap_or_default();
                let files: Vec<String> = first.iter().map(|file| file.display().to_string()).collect();
                Check::failed(
                    NAME,
                    format!("no permission for {}", alternatives(&ways)),
                    format!("run as the owner, or `chown $USER {}`; {UDEV}", files.join(" ")),
                )
            }
        };
        Some(check.of(function))
    }
}

fn driver_check(function: &Function) -> Check {
    const NAME: &str = "driver";
    let check = match &function.driver {
        Some(driver) if function.bound_to_vfio() => Check::ok(NAME, driver.clone()),
        driver => {
            let driver = driver.as_deref().unwrap_or("none");
            let netdevs: Vec<&str> = function.netdevs.iter().map(|n| n.name.as_str()).collect();
            let carries = match netdevs.is_empty() {
                true => String::new(),
                false => format!(", with {}", netdevs.join(", ")),
            };
            let mend = format!("`ferroce bind {}` (as root)", function.address);
            Check::failed(NAME, format!("{driver}{carries}"), mend)
        }
    };
    check.of(function)
}

/// The link, where the machine says how fast it is.
fn link_check(function: &Function) -> Option<Check> {
    const NAME: &str = "PCIe link";
    let link = &function.link;
    let (speed, width) = (link.speed.as_ref()?, link.width?);
    let found = format!("{speed} x{width}");
    let check = if link.reduced() {
        let most = link.max_speed.as_deref().unwrap_or("?");
        let most = format!("{most} x{}", link.max_width.unwrap_or(0));
        Check::warning(
            NAME,
            format!("{found}, below the function's {most}"),
            "move it to a faster or wider slot, or see whether the slot's settings hold it back",
        )
    } else {
        Check::ok(NAME, found)
    };
    Some(check.of(function))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Machine;
    use super::*;

    const NIC: &str = "0000:3b:00.0";

    /// A machine on which all is well.
    fn healthy() -> Machine {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.file(
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always within_size [advise] never deny force",
        );
        let nic = machine.nic(NIC, Some("vfio-pci"), Some(7));
        nic.set("current_link_speed", "8.0 GT/s PCIe");
        nic.set("max_link_speed", "8.0 GT/s PCIe");
        nic.set("current_link_width", "16");
        nic.set("max_link_width", "16");
        machine
    }

    fn examine(machine: &Machine) -> Vec<Check> {
        machine.host.examine(None).expect("examined")
    }

    /// The only check that is not as it should be.
    fn only(machine: &Machine) -> (Outcome, String) {
        let mut bad = examine(machine);
        bad.retain(|check| check.outcome != Outcome::Ok);
        assert_eq!(bad.len(), 1, "{bad:#?}");
        let check = &bad[0];
        let mend = check.mend.clone().expect("what is wrong has a mend");
        (check.outcome, format!("{}: {}; {mend}", check.name, check.found))
    }

    fn says(machine: &Machine, outcome: Outcome, words: &[&str]) {
        let (found, text) = only(machine);
        assert_eq!(found, outcome, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }

    #[test]
    fn a_healthy_machine_has_nothing_to_mend() {
        let checks = examine(&healthy());
        assert!(
            checks
                .iter()
                .all(|c| c.outcome == Outcome::Ok && c.mend.is_none()),
            "{checks:#?}"
        );
        assert_eq!(checks.len(), 9);
    }

    #[test]
    fn v17_each_thing_that_is_missing_is_told_with_its_mend() {
        use Outcome::{Failed, Warning};
        let machine = healthy();
        machine.remove("sys/bus/pci/drivers/vfio-pci");
        // The function's link to it dangles, as it can't on a real machine.
        says(&machine, Failed, &["vfio-pci: ", "modprobe vfio-pci"]);

        let machine = healthy();
        machine.remove("dev/vfio/vfio");
        says(&machine, Failed, &["vfio/vfio is not there"]);

        let machine = healthy();
        machine.remove("sys/module/vfio_iommu_type1");
        says(&machine, Failed, &["modprobe vfio_iommu_type1"]);

        let machine = healthy();
        machine.forbid("dev/vfio/7");
        says(
            &machine,
            Failed,
            &["no permission for", "vfio/7", "chown", "udev"],
        );

        let machine = healthy();
        machine.memlock(Some(8 << 20));
        says(
            &machine,
            Failed,
            &["limited to 8 MiB", "ulimit -l", "LimitMEMLOCK"],
        );
        machine.file("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
        assert!(examine(&machine).iter().all(|c| c.outcome == Outcome::Ok));

        // Reserved ones alone do nothing for a program that does not ask for them.
        let machine = healthy();
        machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512");
        machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500");
        machine.file(
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always within_size advise [never] deny force",
        );
        says(
            &machine,
            Warning,
            &[
                "500 of 512 reserved",
                "memory: never",
                "nr_hugepages",
                "echo advise",
                "OpenConfig::huge_pages",
                "PageKind::Huge2M",
            ],
        );

        let machine = healthy();
        machine
            .nic("0000:3b:00.0", None, None)
            .set("current_link_width", "8");
        says(
            &machine,
            Warning,
            &["8.0 GT/s PCIe x8", "below the function's 8.0 GT/s PCIe x16"],
        );
    }

    #[test]
    fn v17_a_group_that_is_not_viable_names_who_is_in_the_way() {
        let machine = healthy();
        machine.other("0000:3b:00.1", "0x8086", "0x1533", Some("igb"), Some(7));
        machine.other("0000:3a:00.0", "0x8086", "0x2030", Some("pcieport"), Some(7));
        says(
            &machine,
            Outcome::Failed,
            &["7, not viable", "0000:3b:00.1 (igb)", "ACS"],
        );
        let nic = &machine.host.functions().expect("listed")[0];
        let group = nic.group.as_ref().expect("has one");
        assert_eq!((group.others.len(), group.in_the_way.len()), (2, 1));
    }

    #[test]
    fn v17_a_machine_without_iommu_or_nics_is_told_so() {
        let machine = Machine::new();
        machine.vfio_pci();
        machine.file("proc/cmdline", "quiet intel_iommu=off");
        let failed = |machine: &Machine| -> Vec<&'static str> {
            let checks = examine(machine).into_iter();
            checks
                .filter(|c| c.outcome == Outcome::Failed)
                .map(|c| c.name)
                .collect()
        };
        assert_eq!(failed(&machine), ["IOMMU", "NICs"]);
        let nic = machine.nic(NIC, Some("mlx5_core"), None);
        nic.netdev("ens1", true);
        assert_eq!(failed(&machine), ["IOMMU", "IOMMU group", "driver"]);
        let checks = examine(&machine);
        assert!(checks[0].found.contains("intel_iommu=off"), "{:?}", checks[0]);
        let driver = checks.iter().find(|c| c.name == "driver").expect("is there");
        assert_eq!(driver.found, "mlx5_core, with ens1");
        assert_eq!(
            driver.mend.as_deref(),
            Some("`ferroce bind 0000:3b:00.0` (as root)")
        );
        assert!(
            machine
                .host
                .examine(Some(machine.address("0000:99:00.0")))
                .is_err()
        );
    }

    /// A user with the files of iommufd needs no group.
    #[test]
    fn v17_the_files_of_iommufd_do_in_place_of_the_groups() {
        let machine = healthy();
        machine.file("sys/bus/pci/devices/0000:3b:00.0/vfio-dev/vfio3/dev", "511:3");
        machine.file("dev/vfio/devices/vfio3", "");
        machine.forbid("dev/vfio/7");
        // Without /dev/iommu the function's own file is no use.
        says(&machine, Outcome::Failed, &["no permission for", "vfio/7"]);
        let missing = |machine: &Machine| machine.host.functions().expect("listed")[0].missing.join("; ");
        assert!(
            missing(&machine).contains("permission for"),
            "{}",
            missing(&machine)
        );
        machine.file("dev/iommu", "");
        assert!(examine(&machine).iter().all(|c| c.outcome == Outcome::Ok));
        assert_eq!(missing(&machine), "");
        machine.remove("dev/vfio/devices/vfio3");
        machine.remove("dev/vfio/7");
        let text = missing(&machine);
        assert!(
            text.contains("neither ") && text.contains("vfio/7 nor "),
            "{text}"
        );
        assert!(text.ends_with("vfio/devices/vfio3 is there"), "{text}");
    }

    /// A kernel that has no groups' files: what a user may not use is told by its name, with a rule that holds for it.
    #[test]
    fn v17_where_there_is_iommufd_alone_its_files_are_named() {
        let machine = healthy();
        machine.file("sys/bus/pci/devices/0000:3b:00.0/vfio-dev/vfio3/dev", "511:3");
        for file in ["dev/vfio/7", "dev/vfio/vfio"] {
            machine.remove(file);
        }
        for file in ["dev/vfio/devices/vfio3", "dev/iommu"] {
            machine.file(file, "");
        }
        assert!(examine(&machine).iter().all(|c| c.outcome == Outcome::Ok));
        machine.forbid("dev/vfio/devices/vfio3");
        says(
            &machine,
            Outcome::Failed,
            &[
                "device file: no permission for",
                "vfio/devices/vfio3; ",
                "SUBSYSTEM==\"vfio-dev\"",
                "groupadd",
            ],
        );
        let told = |machine: &Machine| machine.host.functions().expect("listed")[0].missing.join("; ");
        assert!(
            told(&machine).ends_with("vfio/devices/vfio3"),
            "{}",
            told(&machine)
        );
        machine.forbid("dev/iommu");
        let failed = examine(&machine)
            .into_iter()
            .filter(|c| c.outcome == Outcome::Failed);
        let failed: Vec<String> = failed
            .map(|c| format!("{}: {}; {:?}", c.name, c.found, c.mend))
            .collect();
        assert_eq!(failed.len(), 2, "{failed:#?}");
        assert!(
            failed[0].contains("container: none, and no permission for"),
            "{failed:#?}"
        );
        assert!(
            failed
                .iter()
                .all(|text| text.contains("iommu; ") && text.contains("misc")),
            "{failed:#?}"
        );
        assert!(told(&machine).contains("vfio3 and "), "{}", told(&machine));
    }

    /// A kernel that has both ways: either of them does.
    #[test]
    fn v17_both_ways_are_told_where_neither_is_open() {
        let machine = healthy();
        machine.file("sys/bus/pci/devices/0000:3b:00.0/vfio-dev/vfio3/dev", "511:3");
        for file in ["dev/vfio/devices/vfio3", "dev/iommu"] {
            machine.file(file, "");
        }
        for file in ["dev/vfio/7", "dev/vfio/devices/vfio3"] {
            machine.forbid(file);
        }
        says(
            &machine,
            Outcome::Failed,
            &["vfio/7, or ", "vfio/devices/vfio3; "],
        );
    }

    /// Files where links should be, loops, what is no number: the function is left out or unsaid, the others are told.
    #[test]
    fn v17_an_odd_function_hides_no_other() {
        let machine = healthy();
        let odd = machine.other("0000:5e:00.0", "0x15b3", "0x1017", None, None);
        odd.set("driver", "no link");
        let mangled = machine.nic("0000:60:00.0", None, None);
        for attribute in [
            "numa_node",
            "current_link_width",
            "max_link_speed",
            "iommu_group/x",
        ] {
            mangled.set(attribute, "\u{7f}\u{fffd} 99999999999999999999");
        }
        let own = "sys/bus/pci/devices/0000:61:00.0";
        machine.nic("0000:61:00.0", None, None);
        std::os::unix::fs::symlink("driver", machine.path(own).join("driver")).expect("link");
        let listed = machine.host.functions().expect("listed");
        let addresses: Vec<String> = listed.iter().map(|f| f.address.to_string()).collect();
        assert_eq!(addresses, [NIC, "0000:61:00.0"]);
        assert!(machine.host.function(machine.address("0000:5e:00.0")).is_err());
        assert!(!examine(&machine).is_empty());
    }

    #[test]
    fn functions_are_listed_with_what_they_are() {
        let machine = healthy();
        machine.other("0000:00:1f.2", "0x8086", "0x2922", Some("ahci"), Some(9));
        let nic = machine.other("0000:5e:00.2", "0x15b3", "0x1014", Some("mlx5_core"), Some(8));
        nic.netdev("ens2v0", true);
        machine.give_address("ens2v0", "192.0.2.9");
        nic.set("numa_node", "1");
        nic.set("infiniband/mlx5_2/node_guid", "0");
        let listed = machine.host.functions().expect("listed");
        assert_eq!(listed.len(), 2);
        assert!(listed[0].missing.is_empty(), "{:?}", listed[0].missing);
        let vf = &listed[1];
        assert!(vf.virtual_function && vf.product.contains("ConnectX-4"));
        assert_eq!(
            (vf.numa_node, vf.rdma_devices.as_slice()),
            (Some(1), &["mlx5_2".to_owned()][..])
        );
        let netdev = &vf.netdevs[0];
        assert_eq!(
            (
                netdev.up,
                netdev.speed_mbps,
                netdev.addresses.as_ref().map(Vec::len)
            ),
            (Some(true), Some(100_000), Some(1))
        );
        assert_eq!(vf.missing, ["vfio-pci: `ferroce bind 0000:5e:00.2`"]);
    }
}
