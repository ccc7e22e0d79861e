//! IP addressing of the connection manager: how ports become service ids, and the header that tells a peer which
//! addresses a request is about (IBTA vol. 1, annex A11, "RDMA IP CM service").
//!
//! ```text
//! service id   00 00 00 00 01 pp nn nn        pp: IP protocol (6 TCP, 0x11 UDP), nn: port
//! header       0 version │ 1 IP version << 4 │ 2..4 source port │ 4..20 source │ 20..36 destination
//! ```
//! An IPv4 address is in the last 4 of its 16 bytes, with zeros in front.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::MadError;

/// Bytes that the header takes of a request's private data.
pub const IP_HEADER_BYTES: usize = 36;
/// The only version there is.
const VERSION: u8 = 0;
/// Upper 5 bytes of a service id that stands for an IP port.
const IP_SERVICE: u64 = 1;

/// Which kind of service a port is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortSpace {
    /// Connections (`RDMA_PS_TCP`).
    Tcp,
    /// Unconnected datagrams (`RDMA_PS_UDP`).
    Udp,
}

impl PortSpace {
    /// IP's protocol number.
    #[must_use]
    pub fn protocol(self) -> u8 {
        match self {
            PortSpace::Tcp => 6,
            PortSpace::Udp => 0x11,
        }
    }
}

/// A number that names a service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service at a port.
    #[must_use]
    pub fn of_port(space: PortSpace, port: u16) -> Self {
        Self(IP_SERVICE << 24 | u64::from(space.protocol()) << 16 | u64::from(port))
    }

    /// The port, if it is that of a service with an IP port.
    #[must_use]
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = match self.0 >> 16 {
            0x0106 => PortSpace::Tcp,
            0x0111 => PortSpace::Udp,
            _ => return None,
        };
        Some((space, self.0 as u16))
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({:#018x})", self.0)
    }
}

/// Which addresses a request is about: the head of its private data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpHeader {
    /// Where it comes from.
    pub source: SocketAddr,
    /// Where it goes to. The port is in the service id.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Reads the header.
    ///
    /// # Errors
    /// [`MadError::IpHeader`] if the bytes are too few, or of another version or kind of IP.
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let bad = |what, value| MadError::IpHeader { what, value };
        let Some(bytes) = bytes.first_chunk::<IP_HEADER_BYTES>() else {
            return Err(bad("length", bytes.len() as u64));
        };
        if bytes[0] != VERSION {
            return Err(bad("version", bytes[0].into()));
        }
        let address = |at: usize| -> Result<IpAddr, MadError> {
            let mut field = [0; 16];
            field.copy_from_slice(&bytes[at..at + 16]);
            match bytes[1] >> 4 {
                4 => {
                    let [.., a, b, c, d] = field;
                    Ok(Ipv4Addr::new(a, b, c, d).into())
                }
                6 => Ok(Ipv6Addr::from(field).into()),
                other => Err(bad("IP version", other.into())),
            }
        };
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        Ok(Self {
            source: SocketAddr::new(address(4)?, port),
            destination: address(20)?,
        })
    }

    /// The bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; IP_HEADER_BYTES] {
        let mut bytes = [0; IP_HEADER_BYTES];
        bytes[0] = VERSION;
        bytes[1] = if self.source.is_ipv4() { 4 } else { 6 } << 4;
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        for (at, address) in [(4, self.source.ip()), (20, self.destination)] {
            match address {
                IpAddr::V4(v4) => bytes[at + 12..at + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes[at..at + 16].copy_from_slice(&v6.octets()),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_go_both_ways() {
        for (source, destination) in [("10.9.0.2:42335", "10.9.0.1"), ("[fd00:9::2]:1", "fd00:9::1")] {
            let header = IpHeader {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            };
            assert_eq!(IpHeader::parse(&header.emit()).unwrap(), header);
        }
    }

    #[test]
    fn other_versions_and_kinds_are_refused() {
        let good = IpHeader {
            source: "10.9.0.2:7".parse().unwrap(),
            destination: "10.9.0.1".parse().unwrap(),
        };
        let bad = |at: usize, value: u8| {
            let mut bytes = good.emit();
            bytes[at] = value;
            IpHeader::parse(&bytes).unwrap_err().to_string()
        };
        assert_eq!(bad(0, 1), "RDMA CM header: version 1 is not supported");
        assert_eq!(bad(1, 0x50), "RDMA CM header: IP version 5 is not supported");
        assert!(IpHeader::parse(&good.emit()[..35]).is_err());
    }

    #[test]
    fn service_ids_are_those_of_linux() {
        assert_eq!(ServiceId::of_port(PortSpace::Tcp, 7174).0, 0x0000_0000_0106_1c06);
        assert_eq!(ServiceId(0x0111_1c06).port(), Some((PortSpace::Udp, 7174)));
        assert_eq!(ServiceId(1 << 40 | 0x0106_0001).port(), None);
    }
}
