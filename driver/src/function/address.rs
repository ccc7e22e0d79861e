//! Names of functions, as users write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::FunctionError;

/// Where a function is found.
///
/// Text forms: `0000:3b:00.0` (the domain may be left out: `3b:00.0`), the same with the way through VFIO before it
/// (`group:0000:3b:00.0`, `iommufd:0000:3b:00.0`), and `vfio-user:/run/nic0.sock`. An in-process function has a name
/// for messages only; it is handed over as an object and can't be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FunctionAddress {
    /// A function on this machine's PCI bus, bound to vfio-pci, by whichever way through VFIO is there.
    Pci(PciAddress),
    /// The same by its group and a container (/dev/vfio/GROUP) and no other way.
    Group(PciAddress),
    /// The same by its own file and iommufd (/dev/vfio/devices/vfioN, /dev/iommu) and no other way.
    Iommufd(PciAddress),
    /// A device process that listens at this unix socket.
    VfioUser(PathBuf),
    /// A device in this process.
    InProcess(String),
}

/// Domain, bus, device and function number of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// PCI domain (segment); above 0xffff on machines with synthetic domains.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

impl FunctionAddress {
    /// Where the function is on this machine's PCI bus, if it is there.
    pub fn pci(&self) -> Option<PciAddress> {
        match self {
            FunctionAddress::Pci(address)
            | FunctionAddress::Group(address)
            | FunctionAddress::Iommufd(address) => Some(*address),
            FunctionAddress::VfioUser(_) | FunctionAddress::InProcess(_) => None,
        }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl FromStr for PciAddress {
    type Err = FunctionError;

    fn from_str(text: &str) -> Result<PciAddress, FunctionError> {
        let bad = |reason| FunctionError::BadAddress {
            text: text.to_owned(),
            reason,
        };
        let (head, function) = text
            .rsplit_once('.')
            .ok_or(bad("no '.' before the function number"))?;
        let mut parts = head.rsplit(':');
        let device = parts.next().unwrap_or_default();
        let bus = parts.next().ok_or(bad("no ':' between bus and device"))?;
        let domain = parts.next().unwrap_or("0");
        if parts.next().is_some() {
            return Err(bad("too many ':'"));
        }
        let hex = |digits: &str, most: usize, limit: u32, reason| {
            // from_str_radix takes a sign, which no address has.
            let plain = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u32::from_str_radix(digits, 16)
                .ok()
                .filter(|v| plain && *v <= limit);
            value.ok_or(bad(reason))
        };
        Ok(PciAddress {
            domain: hex(
                domain,
                8,
                u32::MAX,
                "the domain is not a hexadecimal number of up to 8 digits",
            )?,
            bus: hex(bus, 2, 0xff, "the bus is not a hexadecimal number from 00 to ff")? as u8,
            device: hex(
                device,
                2,
                0x1f,
                "the device is not a hexadecimal number from 00 to 1f",
            )? as u8,
            function: hex(function, 1, 7, "the function is not a digit from 0 to 7")? as u8,
        })
    }
}

impl fmt::Display for FunctionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FunctionAddress::Pci(address) => address.fmt(f),
            FunctionAddress::Group(address) => write!(f, "group:{address}"),
            FunctionAddress::Iommufd(address) => write!(f, "iommufd:{address}"),
            FunctionAddress::VfioUser(path) => write!(f, "vfio-user:{}", path.display()),
            FunctionAddress::InProcess(name) => write!(f, "in-process:{name}"),
        }
    }
}

impl FromStr for FunctionAddress {
    type Err = FunctionError;

    fn from_str(text: &str) -> Result<FunctionAddress, FunctionError> {
        let bad = |reason| FunctionError::BadAddress {
            text: text.to_owned(),
            reason,
        };
        match text.split_once(':') {
            Some(("vfio-user", "")) => Err(bad("the path of the socket is missing after 'vfio-user:'")),
            Some(("vfio-user", path)) => Ok(FunctionAddress::VfioUser(PathBuf::from(path))),
            Some(("in-process", _)) => Err(bad(
                "an in-process device is handed over as an object; it can't be opened by name",
            )),
            Some(("group", address)) => address.parse().map(FunctionAddress::Group),
            Some(("iommufd", address)) => address.parse().map(FunctionAddress::Iommufd),
            _ => text.parse().map(FunctionAddress::Pci),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> FunctionAddress {
        text.parse().expect(text)
    }

    #[test]
    fn addresses_survive_parsing_and_display() {
        for text in [
            "0000:3b:00.0",
            "0001:ff:1f.7",
            "10000:01:00.2",
            "group:0000:3b:00.0",
            "iommufd:0000:3b:00.0",
            "vfio-user:/run/nic0.sock",
            "vfio-user:a:b",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("3b:00.0"), parse("0000:3b:00.0"));
        assert_eq!(parse("3:0.1").to_string(), "0000:03:00.1");
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        for (text, reason) in [
            ("", "no '.'"),
            ("3b", "no '.'"),
            ("3b.0", "no ':'"),
            ("0:0:3b:00.0", "too many"),
            ("100:00.0", "the bus"),
            ("+b:00.0", "the bus"),
            ("3b:20.0", "the device"),
            ("3b:00.8", "the function"),
            ("3b:00.", "the function"),
            ("123456789:3b:00.0", "the domain"),
            ("vfio-user:", "path"),
            ("in-process:x", "object"),
            ("iommufd:", "no '.'"),
            ("group:iommufd:3b:00.0", "the domain"),
        ] {
            let error = text.parse::<FunctionAddress>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text:?} gave: {error}");
        }
    }
}
