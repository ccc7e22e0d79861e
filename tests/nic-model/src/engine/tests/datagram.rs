//! Datagrams between two NICs: UD, QP1, multicast groups, SRQs.

use ferroce_firmware_iface::layouts::QueryQCounterOut;
use ferroce_hw_regs::wqe::opcode;

use super::shared::srq_of_ud;
use super::*;
use crate::rc::types::QpState;

const UD: u8 = 2;
const GSI: u8 = 8;
const QKEY: u32 = 0x1111_1111;
const GSI_QKEY: u32 = 0x8001_0000;
/// Index of the IPv4 GID of [`Side::new`], and of the IPv6 one below.
const IPV4: u32 = 3;
const IPV6: u32 = 5;

/// fd00::`last`.
fn ip6(last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[0] = 0xfd;
    gid[15] = last;
    gid
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
struct To {
    qpn: u32,
    qkey: u32,
    mac: [u8; 6],
    gid: [u8; 16],
    index: u32,
}

impl To {
    fn new(last: u8, qpn: u32) -> To {
        To {
            qpn,
            qkey: QKEY,
            mac: mac(last),
            gid: ip(last),
            index: IPV4,
        }
    }

    /// The address vector.
    fn vector(&self) -> Vec<u8> {
        let mut av = vec![0; 48];
        av[0..4].copy_from_slice(&self.qkey.to_be_bytes());
        av[8..12].copy_from_slice(&(1 << 31 | self.qpn).to_be_bytes());
        av[0xc] = 3 << 1;
        av[0xe..0x10].copy_from_slice(&0xc0deu16.to_be_bytes());
        av[0x14..0x1a].copy_from_slice(&self.mac);
        av[0x1a] = 0x68;
        av[0x1b] = 33;
        av[0x1c..0x20].copy_from_slice(&(self.index << 20 | 0x54321).to_be_bytes());
        av[0x20..0x30].copy_from_slice(&self.gid);
        av
    }
}

impl Side {
    /// A NIC whose QP is of service `st`, in RTS.
    fn of_service(last: u8, st: u8) -> Side {
        let mut side = Side::new(last);
        side.add_gid(IPV6, ip6(last), last, None);
        side.dp.destroy_qp(side.qpn).unwrap();
        let mut qpc = side.qpc();
        qpc.set_st(st);
        side.qpn = side
            .dp
            .create_qp(&qpc, Buffer::Pas(&pages(QP_BUFFER, (RQ + SQ) * 64)))
            .unwrap();
        side.datagram_rts(qpc, if st == GSI { GSI_QKEY } else { QKEY });
        side
    }

    fn datagram_rts(&mut self, mut qpc: Qpc, qkey: u32) {
        qpc.set_q_key(qkey);
        qpc.set_mtu(5).unwrap();
        qpc.set_log_msg_max(12).unwrap();
        qpc.set_next_send_psn(0xff_ffff).unwrap();
        for transition in [
            QpTransition::Rst2Init,
            QpTransition::Init2Rtr,
            QpTransition::Rtr2Rts,
        ] {
            self.dp.modify_qp(transition, self.qpn, &qpc).unwrap();
        }
    }

    fn add_gid(&mut self, index: u32, address: [u8; 16], last: u8, vlan: Option<u16>) {
        let mut gid = RoceAddrLayout::zeroed();
        address
            .iter()
            .enumerate()
            .for_each(|(i, b)| gid.set_source_l3_address(i, *b));
        gid.set_source_mac_47_32(0x0200);
        gid.set_source_mac_31_0(u32::from(last));
        gid.set_roce_version(2);
        gid.set_roce_l3_type(u8::from(address[10] != 0xff)).unwrap();
        gid.set_vlan_valid(vlan.is_some());
        gid.set_vlan_id(vlan.unwrap_or(0)).unwrap();
        self.dp
            .set_roce_address(FIRST_PORT, index as u16, Some(&gid))
            .unwrap();
    }

    fn send_to(&mut self, to: To, bytes: &[u8], imm: Option<u32>) {
        self.fill(DATA, bytes);
        let opcode = if imm.is_some() {
            opcode::SEND_IMM
        } else {
            opcode::SEND
        };
        let mut segments = to.vector();
        if !bytes.is_empty() {
            segments.extend(data(bytes.len() as u32, self.key, DATA));
        }
        self.post(opcode, CQE, imm.unwrap_or(0), &segments);
        self.ring();
    }

    /// Receives of `len` bytes at `DATA + 1 MiB`, filled with 0xa5.
    fn receive_at(&mut self, len: u32) -> u64 {
        let at = DATA + (1 << 20);
        self.fill(at, &vec![0xa5; len as usize + 16]);
        self.post_recv(&data(len, self.key, at));
        at
    }

    fn state(&self) -> QpState {
        self.dp.objects.qps.get(self.qpn).unwrap().state()
    }
}

fn pair_of(st: u8) -> Pair {
    Pair {
        a: Side::of_service(1, st),
        b: Side::of_service(2, st),
        now: Nanos(1),
    }
}

#[test]
fn t15_t16_a_datagram_over_ipv4_has_its_payload_at_40_and_the_header_at_20() {
    let mut pair = pair_of(UD);
    let at = pair.b.receive_at(100);
    let to = To::new(2, pair.b.qpn);
    pair.a.send_to(to, b"sixty bytes or fewer", Some(0x0102_0304));
    pair.run();
    let sent = pair.a.poll().unwrap();
    assert_eq!(
        (sent[63] >> 4, be32(&sent, 0x38) >> 24),
        (0, u32::from(opcode::SEND_IMM))
    );
    let cqe = pair.b.poll().unwrap();
    // SEND with immediate; 40 bytes more than were sent.
    assert_eq!((cqe[63] >> 4, be32(&cqe, 0x2c)), (3, 60));
    assert_eq!(cqe[0x24..0x28], [1, 2, 3, 4]);
    // The global header is in the buffer, it is IPv4, and who sent.
    assert_eq!(be32(&cqe, 0x18), 1 << 28 | 2 << 24 | pair.a.qpn);
    assert_eq!(cqe[0x1d], 0);
    let got = pair.b.bytes(at, 80);
    assert_eq!(got[..20], [0; 20]);
    assert_eq!(got[20..22], [0x45, 0x68]);
    // Total length: IP, UDP, BTH, DETH, immediate, payload, ICRC.
    assert_eq!(
        u16::from_be_bytes([got[22], got[23]]),
        20 + 8 + 12 + 8 + 4 + 20 + 4
    );
    assert_eq!((got[28], got[29]), (33, 17));
    assert_eq!((&got[32..36], &got[36..40]), (&ip(1)[12..], &ip(2)[12..]));
    assert_eq!(&got[40..60], b"sixty bytes or fewer");
    assert_eq!(got[60..], [0xa5; 20]);
}

#[test]
fn t16_a_datagram_over_ipv6_has_the_whole_header() {
    let mut pair = pair_of(UD);
    let at = pair.b.receive_at(100);
    let to = To {
        gid: ip6(2),
        index: IPV6,
        ..To::new(2, pair.b.qpn)
    };
    pair.a.send_to(to, b"six", None);
    pair.run();
    let cqe = pair.b.poll().unwrap();
    assert_eq!((cqe[63] >> 4, be32(&cqe, 0x2c)), (2, 43));
    assert_eq!(be32(&cqe, 0x18), 1 << 28 | 1 << 24 | pair.a.qpn);
    let got = pair.b.bytes(at, 44);
    assert_eq!(be32(&got, 0), 6 << 28 | 0x68 << 20 | 0x54321);
    assert_eq!(got[8..24], ip6(1));
    assert_eq!(got[24..40], ip6(2));
    assert_eq!(&got[40..44], b"six\xa5");
}

#[test]
fn t16_a_datagram_of_roce_v1_has_the_grh_itself() {
    let mut pair = pair_of(UD);
    for (side, last) in [(&mut pair.a, 1), (&mut pair.b, 2)] {
        let mut gid = side.dp.roce_address(FIRST_PORT, IPV6 as u16).unwrap();
        gid.set_roce_version(0);
        side.dp.set_roce_address(FIRST_PORT, 9, Some(&gid)).unwrap();
        assert_eq!(gid.source_l3_address(15), last);
    }
    let at = pair.b.receive_at(100);
    let to = To {
        gid: ip6(2),
        index: 9,
        ..To::new(2, pair.b.qpn)
    };
    pair.a.send_to(to, b"v1", None);
    pair.run();
    let cqe = pair.b.poll().unwrap();
    assert_eq!(be32(&cqe, 0x18), 1 << 28 | pair.a.qpn);
    let got = pair.b.bytes(at, 42);
    // Next header: a BTH.
    assert_eq!((got[6], &got[40..]), (0x1b, &b"v1"[..]));
}

#[test]
fn an_empty_datagram_is_40_bytes_long() {
    let mut pair = pair_of(UD);
    pair.b.receive_at(40);
    pair.a.send_to(To::new(2, pair.b.qpn), b"", None);
    pair.run();
    assert_eq!(be32(&pair.b.poll().unwrap(), 0x2c), 40);
}

#[test]
fn a_datagram_with_another_q_key_is_dropped_and_counted_and_takes_no_receive() {
    let mut pair = pair_of(UD);
    pair.b.receive_at(100);
    let wrong = To {
        qkey: QKEY + 1,
        ..To::new(2, pair.b.qpn)
    };
    pair.a.send_to(wrong, b"no", None);
    // The high bit: the sender's own, which is the right one.
    let own = To {
        qkey: 0x8000_0000,
        ..wrong
    };
    pair.a.send_to(own, b"yes", None);
    pair.run();
    assert!(pair.a.poll().is_some() && pair.a.poll().is_some());
    let cqe = pair.b.poll().unwrap();
    assert_eq!((be32(&cqe, 0x2c), be32(&cqe, 0x3c) >> 16), (43, 0));
    assert!(pair.b.poll().is_none());
    assert_eq!(
        (pair.b.dp.counters.qkey_violations, pair.b.dp.qkey_violations()),
        (1, 1)
    );
}

#[test]
fn a_datagram_without_a_receive_is_dropped_and_counted() {
    let mut pair = pair_of(UD);
    let set = pair.b.dp.alloc_q_counter().unwrap();
    let mut qpc = pair.b.dp.objects.qps.get(pair.b.qpn).unwrap().context;
    qpc.set_counter_set_id(set);
    pair.b
        .dp
        .modify_qp(QpTransition::Rts2Rts, pair.b.qpn, &qpc)
        .unwrap();
    for _ in 0..3 {
        pair.a.send_to(To::new(2, pair.b.qpn), b"lost", None);
    }
    pair.run();
    assert!(pair.b.poll().is_none());
    assert_eq!(pair.b.dp.counters.dropped_no_receive, 3);
    let mut counted = QueryQCounterOut::zeroed();
    pair.b.dp.query_q_counter(set, false, &mut counted).unwrap();
    assert_eq!(counted.out_of_buffer(), 3);
    assert_eq!(pair.b.state(), QpState::Rts);
}

#[test]
fn t15_a_datagram_longer_than_the_mtu_stops_the_send_queue_and_nothing_else() {
    let mut pair = pair_of(UD);
    let at = pair.b.receive_at(8192);
    let to = To::new(2, pair.b.qpn);
    let whole: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
    pair.a.send_to(to, &whole, None);
    pair.run();
    pair.a.send_to(to, &[0; 4097], None);
    pair.a.send_to(to, b"flushed", None);
    pair.run();
    assert_eq!(pair.a.poll().unwrap()[63] >> 4, 0);
    let too_long = pair.a.poll().unwrap();
    assert_eq!((too_long[63] >> 4, too_long[0x37]), (0xd, 0x01));
    let flushed = pair.a.poll().unwrap();
    assert_eq!((flushed[63] >> 4, flushed[0x37]), (0xd, 0x05));
    assert_eq!(pair.a.state(), QpState::Sqe);
    assert_eq!(be32(&pair.b.poll().unwrap(), 0x2c), 4136);
    assert!(pair.b.poll().is_none());
    assert_eq!(pair.b.bytes(at + 40, 4096), whole);

    // Receives go on meanwhile, and SQERR2RTS lets sends go on too.
    let back = pair.a.receive_at(64);
    pair.b.send_to(To::new(1, pair.a.qpn), b"still here", None);
    pair.run();
    assert_eq!(be32(&pair.a.poll().unwrap(), 0x2c), 50);
    assert_eq!(pair.a.bytes(back + 40, 10), b"still here");
    let qpc = pair.a.dp.objects.qps.get(pair.a.qpn).unwrap().context;
    pair.a
        .dp
        .modify_qp(QpTransition::Sqerr2Rts, pair.a.qpn, &qpc)
        .unwrap();
    pair.b.receive_at(64);
    pair.a.send_to(to, b"again", None);
    pair.run();
    assert_eq!(pair.a.poll().unwrap()[63] >> 4, 0);
    assert_eq!(pair.a.state(), QpState::Rts);
}

#[test]
fn t15_a_receive_that_is_too_short_for_header_and_payload_fails_with_local_length() {
    for (room, fits) in [(44, true), (43, false), (20, false)] {
        let mut pair = pair_of(UD);
        let at = pair.b.receive_at(room);
        pair.a.send_to(To::new(2, pair.b.qpn), b"four", None);
        pair.run();
        let cqe = pair.b.poll().unwrap();
        if fits {
            assert_eq!(cqe[63] >> 4, 2);
            assert_eq!(pair.b.bytes(at + 40, 4), b"four");
        } else {
            assert_eq!((cqe[63] >> 4, cqe[0x37]), (0xe, 0x01), "{room}");
            assert_eq!(pair.b.state(), QpState::Err);
            assert_eq!(pair.b.bytes(at, 36), [0xa5; 36]);
        }
    }
}

#[test]
fn a_datagram_from_memory_that_is_not_there_is_a_protection_error() {
    let mut pair = pair_of(UD);
    let mut segments = To::new(2, pair.b.qpn).vector();
    segments.extend(data(8, pair.a.key ^ 0x100, DATA));
    pair.a.post(opcode::SEND, 0, 0, &segments);
    pair.a.ring();
    pair.run();
    let cqe = pair.a.poll().unwrap();
    assert_eq!((cqe[63] >> 4, cqe[0x37]), (0xd, 0x04));
    assert_eq!(pair.a.state(), QpState::Sqe);
    assert_eq!(pair.a.dp.violations.total(), 0);
}

#[test]
fn g08_datagrams_are_taken_for_gids_of_ours_and_on_their_vlan_only() {
    let mut pair = pair_of(UD);
    pair.a.add_gid(7, ip(1), 1, Some(100));
    for _ in 0..2 {
        pair.b.receive_at(100);
    }
    let to = To::new(2, pair.b.qpn);
    let elsewhere = To { gid: ip(9), ..to };
    let tagged = To { index: 7, ..to };
    for (n, wrong) in [(1, elsewhere), (2, tagged)] {
        pair.a.send_to(wrong, b"wrong", None);
        pair.run();
        assert!(pair.b.poll().is_none());
        assert_eq!(pair.b.dp.counters.dropped_address, n);
    }
    pair.b.add_gid(8, ip(2), 2, Some(100));
    pair.a.send_to(tagged, b"right", None);
    pair.run();
    let cqe = pair.b.poll().unwrap();
    // The tag is told: priority 3, VLAN 100.
    assert_eq!((cqe[0x1d] & 1, &cqe[0x1e..0x20]), (1, &[0x60, 100][..]));
}

#[test]
fn frames_to_others_or_of_another_kind_don_t_reach_a_datagram_qp() {
    let mut pair = pair_of(UD);
    pair.b.receive_at(100);
    let nobody = To::new(2, pair.b.qpn + 1);
    pair.a.send_to(nobody, b"nobody", None);
    pair.run();
    assert_eq!(pair.b.dp.counters.dropped_qp, 1);
    let mut connected = Side::new(1);
    connected.connect(2, pair.b.qpn);
    connected.post(opcode::SEND, CQE, 0, &data(8, connected.key, DATA));
    connected.ring();
    while connected.dp.run(Nanos(1)) {}
    let frame = connected.dp.take_frame().unwrap();
    pair.b.dp.receive(Nanos(2), frame);
    assert_eq!(pair.b.dp.counters.dropped_qp, 2);
    assert!(pair.b.poll().is_none());
}

#[test]
fn a_datagram_goes_to_a_qp_of_the_same_nic() {
    let mut side = Side::of_service(1, UD);
    let at = side.receive_at(64);
    side.send_to(To::new(1, side.qpn), b"to myself", None);
    while side.dp.run(Nanos(1)) {}
    assert!(side.dp.take_frame().is_none());
    assert!(side.poll().is_some() && side.poll().is_some());
    assert_eq!(side.bytes(at + 40, 9), b"to myself");
}

#[test]
fn qp1_is_number_1_on_the_wire_whatever_its_number_here() {
    let mut pair = pair_of(GSI);
    assert_ne!(pair.b.qpn, 1);
    let at = pair.b.receive_at(40 + 256);
    let to = To {
        qkey: GSI_QKEY,
        ..To::new(2, 1)
    };
    pair.a.send_to(to, &[0x42; 256], None);
    pair.run();
    assert_eq!(pair.a.poll().unwrap()[63] >> 4, 0);
    let cqe = pair.b.poll().unwrap();
    assert_eq!((cqe[63] >> 4, be32(&cqe, 0x2c)), (2, 296));
    // From QP1, and with its P_Key where others have immediate data.
    assert_eq!(be32(&cqe, 0x18), 1 << 28 | 2 << 24 | 1);
    assert_eq!(be32(&cqe, 0x24), 0xffff);
    assert_eq!(pair.b.bytes(at + 40, 256), [0x42; 256]);

    pair.b.receive_at(296);
    let by_number = To {
        qpn: pair.b.qpn,
        ..to
    };
    pair.a.send_to(by_number, b"no", None);
    pair.run();
    assert!(pair.b.poll().is_none());
    assert_eq!(pair.b.dp.counters.dropped_qp, 1);
}

#[test]
fn there_is_one_qp1() {
    let mut side = Side::of_service(1, GSI);
    let mut qpc = side.qpc();
    qpc.set_st(GSI);
    let buffer = pages(QP_BUFFER, (RQ + SQ) * 64);
    assert!(side.dp.create_qp(&qpc, Buffer::Pas(&buffer)).is_err());
    side.dp.destroy_qp(side.qpn).unwrap();
    assert!(side.dp.create_qp(&qpc, Buffer::Pas(&buffer)).is_ok());
}

#[test]
fn a_group_s_datagrams_reach_all_members_the_sender_too() {
    let group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 130, 3, 4];
    let mut pair = pair_of(UD);
    let to = To {
        mac: [1, 0, 0x5e, 2, 3, 4],
        gid: group,
        ..To::new(0, 0xff_ffff)
    };
    // Nobody is in it.
    pair.a.send_to(to, b"to nobody", None);
    pair.run();
    assert!(pair.a.poll().is_some() && pair.b.poll().is_none());
    pair.a.dp.attach_multicast(pair.a.qpn, group, 8, 8).unwrap();
    pair.b.dp.attach_multicast(pair.b.qpn, group, 8, 8).unwrap();
    pair.b.dp.attach_multicast(pair.b.qpn, group, 8, 8).unwrap();
    let (at_a, at_b) = (pair.a.receive_at(64), pair.b.receive_at(64));
    pair.a.send_to(to, b"to all", None);
    pair.run();
    for (side, at) in [(&pair.a, at_a), (&pair.b, at_b)] {
        assert_eq!(side.bytes(at + 36, 4), [239, 130, 3, 4]);
        assert_eq!(side.bytes(at + 40, 6), b"to all");
    }
    assert!(pair.a.poll().is_some() && pair.a.poll().is_some());
    assert!(pair.b.poll().is_some() && pair.b.poll().is_none());

    assert!(
        pair.b.dp.destroy_qp(pair.b.qpn).is_err(),
        "it is still in a group"
    );
    pair.b.dp.detach_multicast(pair.b.qpn, group).unwrap();
    assert!(pair.b.dp.detach_multicast(pair.b.qpn, group).is_err());
    pair.b.receive_at(64);
    pair.a.receive_at(64);
    pair.a.send_to(to, b"to one", None);
    pair.run();
    assert!(pair.b.poll().is_none());
    pair.b.dp.destroy_qp(pair.b.qpn).unwrap();
}

#[test]
fn a_sender_that_blocks_its_echo_does_not_hear_itself() {
    let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let mut pair = pair_of(UD);
    let mut qpc = pair.a.dp.objects.qps.get(pair.a.qpn).unwrap().context;
    qpc.set_block_lb_mc(true);
    pair.a
        .dp
        .modify_qp(QpTransition::Rts2Rts, pair.a.qpn, &qpc)
        .unwrap();
    for side in [&mut pair.a, &mut pair.b] {
        side.dp.attach_multicast(side.qpn, group, 8, 8).unwrap();
        side.receive_at(64);
    }
    let to = To {
        mac: [0x33, 0x33, 0, 0, 0, 7],
        gid: group,
        index: IPV6,
        ..To::new(0, 0xff_ffff)
    };
    pair.a.send_to(to, b"heard by others", None);
    pair.run();
    assert_eq!(pair.a.poll().unwrap()[63] >> 4, 0);
    assert!(pair.a.poll().is_none());
    assert_eq!(be32(&pair.b.poll().unwrap(), 0x2c), 55);
}

#[test]
fn groups_are_bounded_and_only_for_datagrams() {
    let group = |last| {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xff, 0x0e]);
        gid[15] = last;
        gid
    };
    let mut side = Side::of_service(1, UD);
    let qpn = side.qpn;
    assert!(side.dp.attach_multicast(qpn, ip(1), 2, 1).is_err());
    assert!(side.dp.attach_multicast(qpn + 1, group(1), 2, 1).is_err());
    side.dp.attach_multicast(qpn, group(1), 2, 1).unwrap();
    side.dp.attach_multicast(qpn, group(2), 2, 1).unwrap();
    assert!(side.dp.attach_multicast(qpn, group(3), 2, 1).is_err());
    let mut connected = Side::new(2);
    assert!(
        connected
            .dp
            .attach_multicast(connected.qpn, group(1), 2, 1)
            .is_err()
    );
    connected.dp.destroy_qp(connected.qpn).unwrap();
}

#[test]
fn wqes_that_break_rules_end_the_qp_and_are_told() {
    let good = To::new(2, 0x40);
    type Change = fn(&mut Side, To, &mut Vec<u8>) -> u8;
    let cases: [(Change, Violation); 5] = [
        (|_, _, _| opcode::RDMA_WRITE, Violation::BadWqe),
        (
            |_, _, s| {
                s.truncate(32);
                opcode::SEND
            },
            Violation::BadWqe,
        ),
        (
            |_, _, s| {
                s[8] = 0;
                opcode::SEND
            },
            Violation::BadWqe,
        ),
        (
            |_, _, s| {
                s[4] = 1;
                opcode::SEND
            },
            Violation::ReservedBit,
        ),
        (
            |_, _, s| {
                s[8] = 0x81;
                opcode::SEND
            },
            Violation::ReservedBit,
        ),
    ];
    for (n, (change, violation)) in cases.into_iter().enumerate() {
        let mut side = Side::of_service(1, UD);
        let mut segments = good.vector();
        let opcode = change(&mut side, good, &mut segments);
        side.post(opcode, 0, 0, &segments);
        side.ring();
        while side.dp.run(Nanos(1)) {}
        let cqe = side.poll().unwrap();
        assert_eq!((cqe[63] >> 4, cqe[0x37]), (0xd, 0x02), "case {n}");
        assert_eq!(side.dp.violations.count(violation), 1, "case {n}");
        assert_eq!(side.state(), QpState::Err);
        assert!(side.dp.take_frame().is_none());
    }
}

#[test]
fn a_gid_that_went_away_is_an_error_of_the_send_and_no_rule_broken() {
    let mut side = Side::of_service(1, UD);
    side.dp.set_roce_address(FIRST_PORT, IPV4 as u16, None).unwrap();
    side.send_to(To::new(2, 0x40), b"from nowhere", None);
    while side.dp.run(Nanos(1)) {}
    let cqe = side.poll().unwrap();
    assert_eq!((cqe[63] >> 4, cqe[0x37]), (0xd, 0x02));
    assert_eq!((side.state(), side.dp.violations.total()), (QpState::Sqe, 0));
}

#[test]
fn datagrams_take_receives_of_an_srq_and_its_limit_and_last_wqe_are_told() {
    let mut a = Side::of_service(1, UD);
    let (mut b, srqn) = srq_of_ud(2);
    let qpc = b.dp.objects.qps.get(b.qpn).unwrap().context;
    b.datagram_rts(qpc, QKEY);
    b.dp.arm_srq(srqn, 2).unwrap();
    let to = To::new(2, b.qpn);
    for _ in 0..3 {
        a.send_to(to, b"8 bytes.", None);
    }
    let mut pair = Pair { a, b, now: Nanos(1) };
    pair.run();
    let slots: Vec<u32> = (0..3)
        .map(|_| be32(&pair.b.poll().unwrap(), 0x3c) >> 16)
        .collect();
    assert_eq!(slots, [0, 5, 2]);
    assert_eq!((pair.b.eqe(0)[1], be32(&pair.b.eqe(0), 0x38)), (0x14, srqn));
    let context = Qpc::zeroed();
    pair.b
        .dp
        .modify_qp(QpTransition::To2Err, pair.b.qpn, &context)
        .unwrap();
    pair.run();
    assert_eq!((pair.b.eqe(1)[1], be32(&pair.b.eqe(1), 0x38)), (0x13, pair.b.qpn));
    assert_eq!(pair.b.eqe(2)[63] & 1, 1, "told once");
}

#[test]
fn many_datagrams_wrap_the_rings() {
    let mut pair = pair_of(UD);
    for round in 0..100u32 {
        let at = pair.b.receive_at(64);
        let bytes: Vec<u8> = (0..24).map(|i| (round * 3 + i) as u8).collect();
        pair.a.send_to(To::new(2, pair.b.qpn), &bytes, Some(round));
        pair.run();
        assert!(pair.a.poll().is_some(), "round {round}");
        assert_eq!(be32(&pair.b.poll().unwrap(), 0x24), round);
        assert_eq!(pair.b.bytes(at + 40, 24), bytes);
    }
    assert_eq!(
        (pair.a.dp.violations.total(), pair.b.dp.violations.total()),
        (0, 0)
    );
}
