//! Addresses with their prefixes, and ways to other networks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::gid::Gid;
use crate::port::MacAddress;

/// A range of IP addresses: those that agree with one in the first bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    ip: IpAddr,
    len: u8,
}

impl Prefix {
    /// The prefix of `len` bits (at most 32 or 128) that `ip` is in.
    ///
    /// # Errors
    /// [`AddressError::PrefixLength`].
    pub fn new(ip: IpAddr, len: u8) -> Result<Prefix, AddressError> {
        if len > width(ip) {
            return Err(AddressError::PrefixLength {
                ip,
                len,
                max: width(ip),
            });
        }
        let ip = match ip {
            IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask4(len))),
            IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask6(len))),
        };
        Ok(Prefix { ip, len })
    }

    /// All addresses of that family: what a default route is for.
    #[must_use]
    pub fn all(of: IpAddr) -> Prefix {
        let ip = match of {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Prefix { ip, len: 0 }
    }

    /// Bits in which its addresses agree.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.len
    }

    /// Whether the address is one of them.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) & mask4(self.len) == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()) & mask6(self.len) == 0,
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.len)
    }
}

/// Bits of an address of that family.
pub(super) fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn mask4(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

fn mask6(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0)
}

/// Bits in which two addresses agree from the start; 0 for different families.
pub(super) fn common_bits(a: IpAddr, b: IpAddr) -> u8 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() as u8,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() as u8,
        _ => 0,
    }
}

/// Whether an address means something on its own link only.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether it can be the address of one interface.
pub(super) fn is_station(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_broadcast()
                || ip.is_loopback()
                || ip.octets()[0] == 0
                // RFC 1112: 240/4 is reserved.
                || ip.octets()[0] >= 240)
        }
        IpAddr::V6(ip) => {
            !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip.to_ipv4_mapped().is_some())
        }
    }
}

/// An address of the NIC: which, how much of the network is on the link with it, and in which VLAN.
///
/// Written `IP/PREFIX`, or `IP/PREFIX@VLAN`: `10.9.0.1/24`, `fd00:9::1/64@100`. `@0` is untagged, too ([`split_vlan`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its prefix: addresses that agree with it in these are on the link. At most 32 or 128.
    pub prefix_len: u8,
    /// VLAN id, 1 to 4094, of a tagged interface.
    pub vlan: Option<u16>,
}

impl InterfaceAddress {
    /// An untagged address.
    #[must_use]
    pub fn new(ip: IpAddr, prefix_len: u8) -> InterfaceAddress {
        InterfaceAddress {
            ip,
            prefix_len,
            vlan: None,
        }
    }

    /// The same in a VLAN (1 to 4094).
    #[must_use]
    pub fn with_vlan(self, vlan: u16) -> InterfaceAddress {
        InterfaceAddress {
            vlan: Some(vlan),
            ..self
        }
    }

    /// The link-local address that goes with a MAC (RFC 4291, 2.5.6).
    #[must_use]
    pub fn link_local(mac: MacAddress, vlan: Option<u16>) -> InterfaceAddress {
        let ip = Gid::link_local(mac).to_ip();
        InterfaceAddress {
            ip,
            prefix_len: 64,
            vlan,
        }
    }

    /// The addresses that are on the link with it.
    #[must_use]
    pub fn prefix(&self) -> Prefix {
        // A length that is too long was refused when the address was added; here it would only match itself.
        Prefix::new(self.ip, self.prefix_len.min(width(self.ip))).unwrap_or(Prefix {
            ip: self.ip,
            len: width(self.ip),
        })
    }

    /// Whether an interface can have it.
    ///
    /// # Errors
    /// [`AddressError`] says what is wrong.
    pub fn check(&self) -> Result<(), AddressError> {
        if !is_station(self.ip) {
            return Err(AddressError::NotAStation { ip: self.ip });
        }
        Prefix::new(self.ip, self.prefix_len)?;
        check_vlan(self.vlan)
    }
}

/// VLAN ids 0 and 4095 name no VLAN (IEEE 802.1Q, table 9-2).
pub(crate) fn check_vlan(vlan: Option<u16>) -> Result<(), AddressError> {
    match vlan {
        Some(vlan) if !(1..=4094).contains(&vlan) => Err(AddressError::Vlan { vlan }),
        _ => Ok(()),
    }
}

/// A text without its `@VLAN`, and what that says: `None` where there is none, `Some(None)` for `@0`, which is the untagged
/// network, and else an id from 1 to 4094.
///
/// # Errors
/// [`AddressError::Vlan`], [`AddressError::VlanText`].
pub fn split_vlan(text: &str) -> Result<(&str, Option<Option<u16>>), AddressError> {
    let Some((rest, id)) = text.split_once('@') else {
        return Ok((text, None));
    };
    let digits = Some(id).filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()));
    let id: u16 = digits
        .and_then(|id| id.parse().ok())
        .ok_or_else(|| AddressError::VlanText(id.to_owned()))?;
    let vlan = Some(id).filter(|id| *id != 0);
    check_vlan(vlan)?;
    Ok((rest, Some(vlan)))
}

/// An address of anybody's, on one interface or on whichever it is.
///
/// Written `IP`, or `IP@VLAN` on the interface of that VLAN, or `IP@0` on the untagged one: `10.9.0.2`, `fe80::2@100`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The address.
    pub ip: IpAddr,
    /// Which interface: `Some(None)` is the untagged one.
    pub vlan: Option<Option<u16>>,
}

impl FromStr for Place {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (ip, vlan) = split_vlan(text)?;
        let ip = ip.parse().map_err(|_| AddressError::PlaceText(text.to_owned()))?;
        Ok(Place { ip, vlan })
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)?;
        match self.vlan {
            Some(vlan) => write!(f, "@{vlan}"),
            None => Ok(()),
        }
    }
}

impl FromStr for InterfaceAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::Text(text.to_owned());
        let (rest, vlan) = split_vlan(text)?;
        let (ip, prefix_len) = rest.split_once('/').ok_or_else(bad)?;
        let address = InterfaceAddress {
            ip: ip.parse().map_err(|_| bad())?,
            prefix_len: prefix_len.parse().map_err(|_| bad())?,
            vlan: vlan.flatten(),
        };
        address.check()?;
        Ok(address)
    }
}

/// A way to addresses that are not on the link: through a router.
///
/// Written `PREFIX via ROUTER`, or `ROUTER` for all addresses of its family, each with `@VLAN` where the router is in one:
/// `10.0.0.0/8 via 10.9.0.254`, `fd00:9::fe@100`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gateway {
    /// Destinations.
    pub to: Prefix,
    /// The router's address, which is on the link.
    pub via: IpAddr,
    /// VLAN that the router is in.
    pub vlan: Option<u16>,
}

impl Gateway {
    /// The router for all that is not on the link.
    #[must_use]
    pub fn default_via(via: IpAddr) -> Gateway {
        Gateway {
            to: Prefix::all(via),
            via,
            vlan: None,
        }
    }

    /// Whether it makes sense on its own.
    ///
    /// # Errors
    /// [`AddressError`] says what is wrong.
    pub fn check(&self) -> Result<(), AddressError> {
        if !is_station(self.via) || self.via.is_ipv4() != self.to.ip.is_ipv4() {
            return Err(AddressError::NotAStation { ip: self.via });
        }
        check_vlan(self.vlan)
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} via {}", self.to, self.via)?;
        match self.vlan {
            Some(vlan) => write!(f, "@{vlan}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Gateway {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::Text(text.to_owned());
        let (rest, vlan) = split_vlan(text)?;
        let (to, via) = match rest.split_once(" via ") {
            Some((to, via)) => (Some(to), via),
            None => (None, rest),
        };
        let via: IpAddr = via.trim().parse().map_err(|_| bad())?;
        let to = match to {
            None => Prefix::all(via),
            Some(to) => {
                let (ip, len) = to.trim().split_once('/').ok_or_else(bad)?;
                Prefix::new(ip.parse().map_err(|_| bad())?, len.parse().map_err(|_| bad())?)?
            }
        };
        let gateway = Gateway {
            to,
            via,
            vlan: vlan.flatten(),
        };
        gateway.check()?;
        Ok(gateway)
    }
}

/// What is wrong with an address of an interface.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It does not name one station.
    #[error(
        "{ip} can't be the address of an interface: it is unspecified, reserved, of a group, or of the wrong family"
    )]
    NotAStation {
        /// The address.
        ip: IpAddr,
    },
    /// The prefix is longer than the address.
    #[error("{ip}/{len}: the prefix has at most {max} bits")]
    PrefixLength {
        /// The address.
        ip: IpAddr,
        /// Its prefix length.
        len: u8,
        /// The longest one.
        max: u8,
    },
    /// No VLAN has that id.
    #[error("VLAN {vlan}: ids are 1 to 4094")]
    Vlan {
        /// The id.
        vlan: u16,
    },
    /// The interface has it already.
    #[error("{ip} is an address of this interface already")]
    Exists {
        /// The address.
        ip: IpAddr,
    },
    /// The interface doesn't have it.
    #[error("{ip} is no address of this interface")]
    Unknown {
        /// The address.
        ip: IpAddr,
    },
    /// More addresses than the stack takes.
    #[error("the stack takes {max} addresses")]
    TooMany {
        /// How many.
        max: usize,
    },
    /// What comes after an `@` is no id.
    #[error("'@{0}' names no VLAN: ids are 1 to 4094, and 0 stands for the untagged network")]
    VlanText(String),
    /// Not a text of that form.
    #[error("'{0}' is not of the form IP or IP@VLAN (10.9.0.2, fe80::2@100)")]
    PlaceText(String),
    /// Not a text of that form.
    #[error(
        "'{0}' is not of the form IP/PREFIX or IP/PREFIX@VLAN (10.9.0.1/24, fd00:9::1/64@100; routers: 10.9.0.254, or 10.0.0.0/8 via 10.9.0.254)"
    )]
    Text(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_and_print() {
        for text in ["10.9.0.1/24", "fd00:9::1/64@100", "fe80::1/10"] {
            assert_eq!(text.parse::<InterfaceAddress>().unwrap().to_string(), text);
        }
        for text in [
            "10.9.0.1",
            "10.9.0.1/33",
            "10.9.0.1/24@4095",
            "10.9.0.1/24@65536",
            "10.9.0.1/24@+7",
            "10.9.0.1/24@7@7",
            "224.0.0.1/4",
            "::/0",
            "255.255.255.255/32",
            "127.0.0.1/8",
            "::ffff:10.0.0.1/96",
            "x/24",
            "10.0.0.1/-1",
            "10.0.0.1/24@",
            "0.1.2.3/8",
            "240.0.0.1/8",
        ] {
            assert!(text.parse::<InterfaceAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_reader_of_vlans_serves_all() {
        let vlan = |id: &str| {
            let address: InterfaceAddress = format!("10.9.0.1/24{id}").parse().unwrap();
            let router: Gateway = format!("10.9.0.254{id}").parse().unwrap();
            let place: Place = format!("10.9.0.2{id}").parse().unwrap();
            assert_eq!((address.vlan, router.vlan), (place.vlan.flatten(), address.vlan));
            place.vlan
        };
        assert_eq!(
            ["", "@0", "@1", "@4094"].map(vlan),
            [None, Some(None), Some(Some(1)), Some(Some(4094))]
        );
        for bad in ["@4095", "@", "@x", "@-1"] {
            let error = format!("10.9.0.2{bad}").parse::<Place>().unwrap_err();
            assert!(error.to_string().contains("ids are 1 to 4094"), "{error}");
        }
        for bad in ["", "peer", "10.0.0.0/8", "fe80::2%eth0"] {
            assert_eq!(bad.parse::<Place>(), Err(AddressError::PlaceText(bad.into())));
        }
    }

    #[test]
    fn routers_read_and_print() {
        let default: Gateway = "10.9.0.254".parse().unwrap();
        assert_eq!(default.to_string(), "0.0.0.0/0 via 10.9.0.254");
        let some: Gateway = "fd00:1::/32 via fd00:9::fe@7".parse().unwrap();
        assert_eq!(
            (some.to_string().as_str(), some.vlan),
            ("fd00:1::/32 via fd00:9::fe@7", Some(7))
        );
        for text in [
            "10.0.0.0/8 via fd00::1",
            "10.0.0.0 via 10.9.0.254",
            "224.0.0.1",
            "",
        ] {
            assert!(text.parse::<Gateway>().is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_contain() {
        let prefix = Prefix::new("10.9.1.77".parse().unwrap(), 23).unwrap();
        assert_eq!(prefix.to_string(), "10.9.0.0/23");
        assert!(
            prefix.contains("10.9.0.1".parse().unwrap()) && !prefix.contains("10.9.2.1".parse().unwrap())
        );
        assert!(!prefix.contains("::ffff:10.9.0.1".parse().unwrap()));
        let all = Prefix::all("::1".parse().unwrap());
        assert!(all.contains("fd00::1".parse().unwrap()) && !all.contains("10.0.0.1".parse().unwrap()));
        assert_eq!(
            common_bits("10.9.0.1".parse().unwrap(), "10.9.0.3".parse().unwrap()),
            30
        );
        let host = Prefix::new("fd00::1".parse().unwrap(), 128).unwrap();
        assert!(host.contains("fd00::1".parse().unwrap()) && !host.contains("fd00::2".parse().unwrap()));
    }
}
