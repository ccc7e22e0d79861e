//! The 40 bytes in front of each received datagram: the global header that it had on the wire.
//!
//! | [`NetworkType`] | bytes |
//! | --- | --- |
//! | RoCE v1 | 0..40 the GRH (IBTA vol. 1, 8.3) |
//! | RoCE v2 over IPv6 | 0..40 the IPv6 header (RFC 8200) |
//! | RoCE v2 over IPv4 | 20..40 the IPv4 header (RFC 791); 0..20 mean nothing (IBTA annex A17.4.5.2) |
//!
//! Which it is comes from the completion; the bytes themselves can't tell, as those in front of an IPv4 header are whatever
//! they were before.

use std::net::{IpAddr, Ipv4Addr};

use ferroce_hw_regs::cqe::roce_l3;

use crate::gid::Gid;

/// Bytes that a datagram's receive has in front of its data.
pub const GRH_BYTES: usize = 40;
/// Where they have an IPv4 header.
const IPV4_AT: usize = 20;

/// Which header a datagram had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NetworkType {
    /// RoCE v1: a GRH.
    RoceV1,
    /// RoCE v2 over IPv4.
    Ipv4,
    /// RoCE v2 over IPv6.
    Ipv6,
}

impl NetworkType {
    /// Reads `flags_rqpn` of a CQE: bits 29:28 say that there is a header, 25:24 which.
    pub(super) fn from_raw(flags_rqpn: u32) -> Option<NetworkType> {
        if flags_rqpn >> 28 & 3 == 0 {
            return None;
        }
        match (flags_rqpn >> 24 & 3) as u8 {
            roce_l3::GRH => Some(NetworkType::RoceV1),
            roce_l3::IPV4 => Some(NetworkType::Ipv4),
            roce_l3::IPV6 => Some(NetworkType::Ipv6),
            _ => None,
        }
    }
}

/// A datagram's global header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GlobalHeader {
    /// Which it was.
    pub network: NetworkType,
    /// Where it came from.
    pub source: IpAddr,
    /// Where it went: this side's address, or a multicast group's.
    pub destination: IpAddr,
    /// Traffic class (IPv4: type of service): DSCP in the upper 6 bits, ECN in the lower 2.
    pub traffic_class: u8,
    /// Flow label (20 bits); 0 for IPv4, which has none.
    pub flow_label: u32,
    /// Routers that it could still have passed (IPv4: time to live).
    pub hop_limit: u8,
}

/// Why the bytes are no global header of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrhError {
    /// There are too few of them.
    #[error("{len} bytes hold no global header, which has {GRH_BYTES}")]
    TooShort {
        /// How many there are.
        len: usize,
    },
    /// The header has another version than that kind has.
    #[error("the global header says IP version {version} instead of {expected}")]
    Version {
        /// What it says.
        version: u8,
        /// What it should say.
        expected: u8,
    },
    /// An IPv4 header with options, which RoCE does not have (IBTA annex A17.4.5.2).
    #[error("the IPv4 header has {words} words instead of 5")]
    Options {
        /// Its length in words of 4 bytes.
        words: u8,
    },
}

impl GlobalHeader {
    /// Reads the header of that kind from the first bytes of what was received.
    ///
    /// The bytes come from the wire: all they say is what some station sent.
    ///
    /// # Errors
    /// [`GrhError`] where there is no such header.
    pub fn read(received: &[u8], network: NetworkType) -> Result<GlobalHeader, GrhError> {
        let Some(area) = received.first_chunk::<GRH_BYTES>() else {
            let len = received.len();
            return Err(GrhError::TooShort { len });
        };
        match network {
            NetworkType::Ipv4 => GlobalHeader::ipv4(area),
            NetworkType::Ipv6 | NetworkType::RoceV1 => GlobalHeader::ipv6(area, network),
        }
    }

    /// IPv6's header; a GRH has the same fields in the same places.
    fn ipv6(area: &[u8; GRH_BYTES], network: NetworkType) -> Result<GlobalHeader, GrhError> {
        let first = u32::from_be_bytes([area[0], area[1], area[2], area[3]]);
        version(area[0] >> 4, 6)?;
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&area[at..at + 16]);
            Gid(octets).to_ip()
        };
        let (source, destination) = (address(8), address(24));
        Ok(GlobalHeader {
            network,
            source,
            destination,
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: area[7],
        })
    }

    fn ipv4(area: &[u8; GRH_BYTES]) -> Result<GlobalHeader, GrhError> {
        let header = &area[IPV4_AT..];
        version(header[0] >> 4, 4)?;
        let words = header[0] & 0xf;
        if words != 5 {
            return Err(GrhError::Options { words });
        }
        let address =
            |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).into();
        Ok(GlobalHeader {
            network: NetworkType::Ipv4,
            source: address(12),
            destination: address(16),
            traffic_class: header[1],
            flow_label: 0,
            hop_limit: header[8],
        })
    }

    /// The code point by which switches tell kinds of traffic (6 bits).
    #[must_use]
    pub fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }

    /// Congestion: 0 not capable of it, 1 and 2 capable, 3 met on the way (RFC 3168, 5).
    #[must_use]
    pub fn ecn(&self) -> u8 {
        self.traffic_class & 3
    }

    /// The GID of where it came from, which an answer goes to.
    #[must_use]
    pub fn sgid(&self) -> Gid {
        Gid::from_ip(self.source)
    }

    /// The GID of where it went.
    #[must_use]
    pub fn dgid(&self) -> Gid {
        Gid::from_ip(self.destination)
    }
}

fn version(version: u8, expected: u8) -> Result<(), GrhError> {
    if version == expected {
        return Ok(());
    }
    Err(GrhError::Version { version, expected })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;

    const IPV4: [u8; 20] = [
        0x45, 0x6b, 0, 60, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2,
    ];

    #[test]
    fn t16_an_ipv4_header_is_in_the_last_twenty_bytes_whatever_is_before_it() {
        let mut area = [0xa5; 44];
        area[20..40].copy_from_slice(&IPV4);
        let header = GlobalHeader::read(&area, NetworkType::Ipv4).unwrap();
        assert_eq!(
            (header.source.to_string(), header.destination.to_string()),
            ("10.9.0.1".into(), "10.9.0.2".into())
        );
        assert_eq!((header.dscp(), header.ecn(), header.hop_limit), (0x1a, 3, 63));
        assert_eq!(header.sgid().to_string(), "::ffff:10.9.0.1");
        // The same bytes are no IPv6 header, even where those in front say so.
        assert_eq!(
            GlobalHeader::read(&area, NetworkType::Ipv6),
            Err(GrhError::Version {
                version: 0xa,
                expected: 6
            })
        );
        area[..20].fill(0x60);
        assert_eq!(GlobalHeader::read(&area, NetworkType::Ipv4), Ok(header));
    }

    #[test]
    fn ipv6_and_grh_have_their_fields_in_the_same_places() {
        let mut area = [0; 40];
        area[..8].copy_from_slice(&[0x66, 0xa1, 0x23, 0x45, 0, 0, 0x1b, 7]);
        area[8..24].copy_from_slice(&"fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        area[24..].copy_from_slice(&"ff0e::2".parse::<Ipv6Addr>().unwrap().octets());
        for network in [NetworkType::RoceV1, NetworkType::Ipv6] {
            let header = GlobalHeader::read(&area, network).unwrap();
            assert_eq!(
                (header.source.to_string(), header.destination.to_string()),
                ("fe80::1".into(), "ff0e::2".into())
            );
            assert_eq!(
                (
                    header.network,
                    header.traffic_class,
                    header.flow_label,
                    header.hop_limit
                ),
                (network, 0x6a, 0x1_2345, 7)
            );
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let mut area = [0; 40];
        let read = |area: &[u8]| {
            GlobalHeader::read(area, NetworkType::Ipv4)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(read(&area[..39]), "39 bytes hold no global header, which has 40");
        assert_eq!(read(&area), "the global header says IP version 0 instead of 4");
        area[20] = 0x46;
        assert_eq!(read(&area), "the IPv4 header has 6 words instead of 5");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            for network in [NetworkType::RoceV1, NetworkType::Ipv4, NetworkType::Ipv6] {
                if let Ok(header) = GlobalHeader::read(&bytes, network) {
                    prop_assert!(header.flow_label < 1 << 20 && header.dscp() < 64 && header.ecn() < 4);
                }
            }
        }
    }
}
