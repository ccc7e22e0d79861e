//! Multicast groups of datagram queue pairs (IBTA vol. 1, 10.5; annex A17.4.3 for the addresses).
//!
//! A frame to a group goes to every QP that is attached to the group's GID and whose Q_Key it has, those of the
//! sending NIC included, and the sender itself if it is attached (unless its context has `block_lb_mc`).

use super::DataPlane;
use super::datagram::MULTICAST_QPN;
use super::refs::no_such;
use crate::objects::ObjectError;
use crate::objects::qp::Service;
use crate::wire::RoceFrame;

/// A group, and who is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    gid: [u8; 16],
    /// Ascending.
    qpns: Vec<u32>,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub struct Groups(Vec<Group>);

/// Whether a GID is that of a group: ff00::/8, or an IPv4 group address mapped to IPv6.
pub fn is_multicast(gid: &[u8; 16]) -> bool {
    gid[0] == 0xff || (is_mapped(gid) && gid[12] & 0xf0 == 0xe0)
}

fn is_mapped(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// The MAC address of a group (RFC 1112, 6.4, and RFC 2464, 7).
pub fn mac_of_group(gid: &[u8; 16]) -> [u8; 6] {
    let [.., a, b, c, d] = *gid;
    if is_mapped(gid) {
        // Of an IPv4 group address only 23 bits are in the MAC address.
        [0x01, 0x00, 0x5e, b & 0x7f, c, d]
    } else {
        [0x33, 0x33, a, b, c, d]
    }
}

impl Groups {
    /// Whether frames to this MAC address may be for one of the groups.
    pub fn listen_to(&self, mac: [u8; 6]) -> bool {
        self.0.iter().any(|group| mac_of_group(&group.gid) == mac)
    }

    /// QPs in a group.
    fn members(&self, gid: &[u8; 16]) -> &[u32] {
        let found = self.0.iter().find(|group| group.gid == *gid);
        found.map_or(&[], |group| &group.qpns)
    }

    /// Groups that a QP is in.
    pub fn count_of(&self, qpn: u32) -> u32 {
        self.0.iter().filter(|group| group.qpns.contains(&qpn)).count() as u32
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl DataPlane {
    /// Puts a QP into a group, of at most `max_groups` with `max_members` each. Doing it twice changes nothing.
    ///
    /// # Errors
    /// There is no such QP, it is not for datagrams, the GID is not that of a group, or there is no room.
    pub(super) fn join_group(
        &mut self,
        qpn: u32,
        gid: [u8; 16],
        max_groups: u32,
        max_members: u32,
    ) -> Result<(), ObjectError> {
        self.check_group(qpn, &gid)?;
        let groups = &mut self.groups.0;
        let at = match groups.iter().position(|group| group.gid == gid) {
            Some(at) => at,
            None if groups.len() as u64 >= u64::from(max_groups) => {
                return Err(ObjectError::NoResources {
                    object: "multicast group",
                    limit: max_groups,
                });
            }
            None => {
                groups.push(Group {
                    gid,
                    qpns: Vec::new(),
                });
                groups.len() - 1
            }
        };
        let qpns = &mut groups[at].qpns;
        match qpns.binary_search(&qpn) {
            Ok(_) => Ok(()),
            Err(_) if qpns.len() as u64 >= u64::from(max_members) => Err(ObjectError::NoResources {
                object: "place in the multicast group",
                limit: max_members,
            }),
            Err(place) => {
                qpns.insert(place, qpn);
                Ok(())
            }
        }
    }

    /// Takes a QP out of a group.
    ///
    /// # Errors
    /// It is not in it.
    pub(super) fn leave_group(&mut self, qpn: u32, gid: [u8; 16]) -> Result<(), ObjectError> {
        self.check_group(qpn, &gid)?;
        let groups = &mut self.groups.0;
        let group = groups.iter_mut().find(|group| group.gid == gid);
        let place = group.and_then(|group| Some((group.qpns.binary_search(&qpn).ok()?, group)));
        let Some((place, group)) = place else {
            return Err(no_such("place in the multicast group of QP", qpn));
        };
        group.qpns.remove(place);
        groups.retain(|group| !group.qpns.is_empty());
        Ok(())
    }

    fn check_group(&self, qpn: u32, gid: &[u8; 16]) -> Result<(), ObjectError> {
        let qp = self.objects.qps.get(qpn).ok_or(no_such("QP", qpn))?;
        let bad = |field, value, reason| Err(ObjectError::BadValue { field, value, reason });
        if qp.service != Service::Ud {
            return bad(
                "qpn",
                u64::from(qpn),
                "only UD queue pairs are in multicast groups",
            );
        }
        if !is_multicast(gid) {
            return bad("multicast_gid", u64::from(gid[0]), "it is not the GID of a group");
        }
        Ok(())
    }

    /// Whether a QP of this NIC is in the group.
    pub(super) fn is_joined(&self, gid: &[u8; 16]) -> bool {
        !self.groups.members(gid).is_empty()
    }

    /// A datagram to a group.
    pub(super) fn receive_multicast(&mut self, roce: &RoceFrame) {
        let gid = roce.encap.dst_gid();
        let fits = roce.packet.bth.dest_qp == MULTICAST_QPN
            && mac_of_group(&gid) == roce.encap.dst
            && self.has_network(&roce.encap);
        if !fits || self.groups.members(&gid).is_empty() {
            self.counters.dropped_address += 1;
            return;
        }
        for place in 0.. {
            let Some(qpn) = self.groups.members(&gid).get(place).copied() else {
                break;
            };
            if self.port_of(qpn) == self.arrived_at && !self.is_own_echo(qpn, roce) {
                self.receive_datagram(qpn, roce);
            }
        }
    }

    /// Whether a QP sent the datagram itself and does not want it back.
    fn is_own_echo(&self, qpn: u32, roce: &RoceFrame) -> bool {
        let sent_by_it = roce.packet.deth.is_some_and(|deth| deth.src_qp == qpn);
        let qp = self.objects.qps.get(qpn);
        sent_by_it && self.is_own_mac(roce.encap.src) && qp.is_some_and(|qp| qp.context.block_lb_mc())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_mac_addresses_of_their_rfcs() {
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 129, 2, 3];
        assert!(is_multicast(&v4));
        assert_eq!(mac_of_group(&v4), [1, 0, 0x5e, 1, 2, 3]);
        let mut v6 = [0; 16];
        v6[0] = 0xff;
        v6[1] = 0x0e;
        v6[12..].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        assert!(is_multicast(&v6));
        assert_eq!(mac_of_group(&v6), [0x33, 0x33, 0xde, 0xad, 0xbe, 0xef]);
        let mut host = v4;
        host[12] = 10;
        assert!(!is_multicast(&host));
        let mut unicast = v6;
        unicast[0] = 0xfe;
        assert!(!is_multicast(&unicast));
    }
}
