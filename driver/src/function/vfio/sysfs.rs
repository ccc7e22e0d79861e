//! What sysfs says of a PCI function, and what is wrong with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::{FunctionError, PciAddress};

/// The drivers that give a function to VFIO: the general one, and that for mlx5 virtual functions that can migrate.
pub const VFIO_DRIVERS: [&str; 2] = ["vfio-pci", "mlx5_vfio_pci"];
/// Other drivers that don't keep a group from being viable, since they do no DMA.
const HARMLESS_DRIVERS: [&str; 2] = ["pci-stub", "pcieport"];

/// Where sysfs and the device files are: `/sys` and `/dev`, or a test's imitation.
#[derive(Clone, Debug)]
pub struct Roots {
    /// In place of `/sys`.
    pub sys: PathBuf,
    /// In place of `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots {
            sys: "/sys".into(),
            dev: "/dev".into(),
        }
    }
}

/// A function that is ready to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its directory in sysfs.
    pub sysfs: PathBuf,
    /// Number of its IOMMU group.
    pub group: u32,
    /// Its device file for iommufd, where the kernel has them.
    pub cdev: Option<PathBuf>,
}

impl Roots {
    /// Looks a function up and checks that VFIO can have it.
    ///
    /// # Errors
    /// [`FunctionError::NoSuchDevice`], [`FunctionError::NotBound`], [`FunctionError::NoIommu`],
    /// [`FunctionError::Io`].
    pub fn find(&self, address: PciAddress) -> Result<Found, FunctionError> {
        let name = address.to_string();
        let sysfs = self.sys.join("bus/pci/devices").join(&name);
        if !sysfs.exists() {
            return Err(FunctionError::NoSuchDevice { address: name });
        }
        let driver = link_name(&sysfs.join("driver"))?;
        if !driver
            .as_deref()
            .is_some_and(|driver| VFIO_DRIVERS.contains(&driver))
        {
            return Err(FunctionError::NotBound {
                address: name,
                driver,
            });
        }
        let group = link_name(&sysfs.join("iommu_group"))?.and_then(|group| group.parse().ok());
        let group = group.ok_or_else(|| FunctionError::NoIommu {
            address: name.clone(),
        })?;
        // Without an IOMMU vfio-pci can be talked into a group of another kind, whose DMA nothing limits.
        if self.dev.join(format!("vfio/noiommu-{group}")).exists() {
            return Err(FunctionError::NoIommu { address: name });
        }
        let cdev = fs::read_dir(sysfs.join("vfio-dev"))
            .ok()
            .and_then(|mut entries| entries.next()?.ok());
        let cdev = cdev.map(|entry| self.dev.join("vfio/devices").join(entry.file_name()));
        Ok(Found { sysfs, group, cdev })
    }

    /// The functions of a group that keep it from being viable: those that a kernel driver other than vfio-pci (or a
    /// bridge's port driver) has. Each with its driver.
    pub fn in_the_way(&self, group: u32) -> Vec<String> {
        let devices = self.sys.join(format!("kernel/iommu_groups/{group}/devices"));
        let Ok(entries) = fs::read_dir(devices) else {
            return Vec::new();
        };
        let name = |entry: io::Result<fs::DirEntry>| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let driver = link_name(&self.sys.join("bus/pci/devices").join(&name).join("driver")).ok()??;
            let harmless = VFIO_DRIVERS
                .iter()
                .chain(&HARMLESS_DRIVERS)
                .any(|known| *known == driver);
            (!harmless).then(|| format!("{name} ({driver})"))
        };
        let mut others: Vec<String> = entries.filter_map(name).collect();
        others.sort();
        others
    }

    /// The device file of a group.
    pub fn group_file(&self, group: u32) -> PathBuf {
        self.dev.join(format!("vfio/{group}"))
    }
}

/// The last part of what a symbolic link points to; `None` where there is no link.
pub fn link_name(link: &Path) -> Result<Option<String>, FunctionError> {
    match fs::read_link(link) {
        Ok(target) => Ok(target.file_name().map(|name| name.to_string_lossy().into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FunctionError::io(format!("reading {}", link.display()), error)),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A machine with functions 3b:00.0 (vfio-pci), 3b:00.1 (mlx5_core), 00:1c.0 (a bridge) in group 7, 5e:00.0 without
    /// a group, and 60:00.0 without a driver.
    pub fn machine() -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().expect("directory");
        let roots = Roots {
            sys: root.path().join("sys"),
            dev: root.path().join("dev"),
        };
        for (name, driver, group) in [
            ("0000:3b:00.0", Some("vfio-pci"), Some("7")),
            ("0000:3b:00.1", Some("mlx5_core"), Some("7")),
            ("0000:00:1c.0", Some("pcieport"), Some("7")),
            ("0000:5e:00.0", Some("vfio-pci"), None),
            ("0000:60:00.0", None, Some("8")),
        ] {
            let device = roots.sys.join("bus/pci/devices").join(name);
            fs::create_dir_all(&device).expect("directory");
            if let Some(driver) = driver {
                symlink(
                    format!("../../../bus/pci/drivers/{driver}"),
                    device.join("driver"),
                )
                .expect("link");
            }
            if let Some(group) = group {
                symlink(
                    format!("../../../kernel/iommu_groups/{group}"),
                    device.join("iommu_group"),
                )
                .expect("link");
                let members = roots.sys.join("kernel/iommu_groups").join(group).join("devices");
                fs::create_dir_all(&members).expect("directory");
                symlink(&device, members.join(name)).expect("link");
            }
        }
        fs::create_dir_all(roots.sys.join("bus/pci/devices/0000:3b:00.0/vfio-dev/vfio3")).expect("directory");
        fs::create_dir_all(roots.dev.join("vfio")).expect("directory");
        (root, roots)
    }

    pub fn find(roots: &Roots, address: &str) -> Result<Found, FunctionError> {
        roots.find(address.parse().expect("an address"))
    }

    #[test]
    fn a_function_that_is_ready_is_found() {
        let (_root, roots) = machine();
        let found = find(&roots, "3b:00.0").expect("ready");
        assert_eq!(found.sysfs, roots.sys.join("bus/pci/devices/0000:3b:00.0"));
        assert_eq!(
            (found.group, found.cdev),
            (7, Some(roots.dev.join("vfio/devices/vfio3")))
        );
        assert_eq!(roots.in_the_way(7), ["0000:3b:00.1 (mlx5_core)"]);
        assert!(roots.in_the_way(99).is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        let (_root, roots) = machine();
        fs::write(roots.dev.join("vfio/noiommu-8"), "").expect("file");
        for (address, words) in [
            ("0000:99:00.0", &["no PCI device 0000:99:00.0", "lspci"][..]),
            (
                "0000:3b:00.1",
                &["bound to vfio-pci but to mlx5_core", "driver_override"],
            ),
            ("0000:60:00.0", &["but to no driver"]),
            ("0000:5e:00.0", &["no IOMMU group", "intel_iommu=on"]),
        ] {
            let error = find(&roots, address).expect_err(address).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let device = roots.sys.join("bus/pci/devices/0000:60:00.0");
        symlink("../drivers/vfio-pci", device.join("driver")).expect("link");
        assert!(matches!(
            find(&roots, "60:00.0"),
            Err(FunctionError::NoIommu { .. })
        ));
    }
}
