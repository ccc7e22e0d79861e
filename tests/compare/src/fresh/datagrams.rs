//! What UD and GSI queue pairs do: datagrams to one queue pair, and to a multicast group.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ferroce::context::Context;
use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::verbs::{Ah, GSI_QKEY, Path, Payload, QpType, SendOp, ToInit};
use ferroce_nic_model::testbed::Testbed;
use ferroce_suites::pair::{self, Side};

use super::side::{INLINE, completion, config, end, post, receive, sides};
use super::{FreshError, failed};

/// The key of UD queue pairs.
const QKEY: u32 = 0x1111_1111;
/// A group for whoever likes (RFC 2365).
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
/// The queue pair of datagrams to a group (IBTA vol. 1, 10.5.2).
const ALL: u32 = 0xff_ffff;

/// Where a datagram goes.
struct To {
    ah: Ah,
    qpn: Qpn,
    qkey: u32,
}

/// Datagrams of each form, each way.
pub(super) fn datagrams(testbed: &Testbed, contexts: &[Arc<Context>; 2]) -> Result<(), FreshError> {
    for (qp_type, init) in [(QpType::Ud, ToInit::ud(QKEY)), (QpType::Gsi, ToInit::default())] {
        let mut both = sides(contexts, &config(qp_type))?;
        for side in &mut both {
            side.qp.start_datagrams(&init).map_err(failed)?;
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let own = pair::gid_index(&both[from].context, from);
            let qkey = if qp_type == QpType::Gsi { GSI_QKEY } else { QKEY };
            let path = Path::to_ip(own, pair::address(to), pair::mac(to));
            let peer = To {
                ah: Ah::new(&both[from].pd, &path).map_err(failed)?,
                qpn: both[to].qp.qpn(),
                qkey,
            };
            let out = both[from].mr.sge(0..64).map_err(failed)?;
            let gathered = Payload::Gather(std::slice::from_ref(&out));
            for data in [gathered, Payload::Inline(&INLINE)] {
                for imm in [None, Some(7)] {
                    send(testbed, &mut both, (from, to), &peer, (data, imm))?;
                }
            }
            if qp_type == QpType::Ud {
                let group = To {
                    ah: Ah::new(&both[from].pd, &Path::to_group(own, GROUP)).map_err(failed)?,
                    qpn: Qpn::from_low_bits(ALL),
                    qkey,
                };
                let gid = Gid::from_ip(GROUP);
                both[to].qp.attach_multicast(gid).map_err(failed)?;
                // As Linux's mckey does.
                send(testbed, &mut both, (from, to), &group, (gathered, Some(7)))?;
                both[to].qp.detach_multicast(gid).map_err(failed)?;
            }
        }
        for (nic, side) in both.into_iter().enumerate() {
            end(testbed, nic, side, None)?;
        }
    }
    Ok(())
}

/// One datagram, and its arrival.
fn send(
    testbed: &Testbed,
    both: &mut [Side; 2],
    (from, to): (usize, usize),
    peer: &To,
    (data, imm): (Payload<'_>, Option<u32>),
) -> Result<(), FreshError> {
    receive(&mut both[to], 8192)?;
    let op = SendOp::SendTo {
        data,
        imm,
        to: &peer.ah,
        qpn: peer.qpn,
        qkey: peer.qkey,
    };
    post(testbed, &mut both[from], op)?;
    completion(&mut both[to])
}
