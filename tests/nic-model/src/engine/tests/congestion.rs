//! Marked packets and CNPs, pause frames, and what the port counted.

use std::time::Duration;

use ferroce_firmware_iface::layouts::QueryVportCounterOut;
use ferroce_hw_regs::wqe::opcode;

use super::*;
use crate::wire::opcode as bth_opcode;
use crate::wire::{Frame, parse};

/// ECT(0) in the traffic class of a path with DSCP 26.
const TCLASS: u8 = 26 << 2 | 2;

/// Two connected NICs whose paths take part in ECN, the QPs in RTS.
fn pair() -> Pair {
    let mut pair = Pair::new();
    for side in [&mut pair.a, &mut pair.b] {
        let mut qpc = side.dp.objects.qps.get(side.qpn).unwrap().context;
        qpc.primary_address_path_mut().set_tclass(TCLASS);
        side.dp.modify_qp(QpTransition::Rts2Rts, side.qpn, &qpc).unwrap();
    }
    pair
}

impl Pair {
    /// Lets `a` send what it has, each frame through `change`, and gives what `b` sends in return.
    fn through(&mut self, change: impl Fn(&mut Frame)) -> Vec<Frame> {
        while self.a.dp.run(self.now) {}
        while let Some(mut frame) = self.a.dp.take_frame() {
            change(&mut frame);
            self.b.dp.receive(self.now, frame);
            while self.b.dp.run(self.now) {}
        }
        std::iter::from_fn(|| self.b.dp.take_frame()).collect()
    }

    fn post_write(&mut self, len: u32) {
        let segments = [remote(DATA, self.b.key), data(len, self.a.key, DATA)].concat();
        self.a.post(opcode::RDMA_WRITE, CQE, 0, &segments);
        self.a.ring();
    }
}

fn mark(frame: &mut Frame) {
    assert!(
        frame.mark_congestion().unwrap(),
        "the path's traffic class is ECT"
    );
}

#[test]
fn a_marked_packet_is_answered_with_a_cnp_to_its_sender() {
    let mut pair = pair();
    pair.post_write(64);
    let answers = pair.through(mark);
    let cnp = parse(&answers[0], Icrc::On).unwrap();
    assert_eq!(cnp.packet.bth.opcode, bth_opcode::CNP);
    assert_eq!(cnp.packet.bth.dest_qp, pair.a.qpn);
    assert!(cnp.packet.bth.becn && !cnp.packet.bth.fecn);
    assert_eq!((cnp.packet.bth.psn.get(), cnp.packet.bth.pkey), (0, 0xffff));
    assert_eq!(cnp.packet.payload.to_vec().unwrap(), [0; 16]);
    assert_eq!((cnp.encap.dscp(), cnp.encap.traffic_class() & 3), (48, 0));
    assert_eq!((cnp.encap.dst_gid(), cnp.encap.dst), (ip(1), mac(1)));
    // The data was taken, too: the ACK comes behind.
    let ack = parse(&answers[1], Icrc::On).unwrap();
    assert_eq!(ack.packet.bth.opcode, bth_opcode::RC_ACKNOWLEDGE);
    assert_eq!(ack.encap.dscp(), 26);
    for frame in answers {
        pair.a.dp.receive(pair.now, frame);
    }
    pair.run();
    assert!(pair.a.poll().is_some());
    let (a, b) = (pair.a.dp.congestion().counters, pair.b.dp.congestion().counters);
    assert_eq!(
        (b.marked, b.cnps_sent, a.cnps_handled, a.cnps_ignored),
        (1, 1, 1, 0)
    );
}

#[test]
fn cnps_of_a_qp_keep_their_distance() {
    let mut pair = pair();
    pair.b.dp.port_congestion().cnp_interval = Duration::from_micros(50);
    for (step, want) in [(0, 1), (49, 1), (1, 2), (10, 2)] {
        pair.now = pair.now + Duration::from_micros(step);
        pair.post_write(8 * 4096);
        for frame in pair.through(mark) {
            pair.a.dp.receive(pair.now, frame);
        }
        pair.run();
        assert!(pair.a.poll().is_some());
        assert_eq!(pair.b.dp.congestion().counters.cnps_sent, want, "after {step} µs");
    }
    assert_eq!(pair.b.dp.congestion().counters.marked, 32);
    assert_eq!(pair.a.dp.congestion().counters.cnps_handled, 2);
}

#[test]
fn packets_that_are_not_marked_or_not_asked_about_get_none() {
    let mut pair = pair();
    pair.post_write(64);
    let kinds = |frames: &[Frame]| {
        let of = |frame: &Frame| parse(frame, Icrc::On).unwrap().packet.bth.opcode;
        frames.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&pair.through(|_| {})), [bth_opcode::RC_ACKNOWLEDGE]);
    pair.b.dp.port_congestion().notify = 0xfe;
    pair.post_write(64);
    assert_eq!(kinds(&pair.through(mark)), [bth_opcode::RC_ACKNOWLEDGE]);
    let counters = pair.b.dp.congestion().counters;
    assert_eq!((counters.marked, counters.cnps_sent), (1, 0));
    // Where the reaction is off, CNPs are counted as ignored.
    pair.b.dp.port_congestion().notify = 0xff;
    pair.a.dp.port_congestion().react = 0;
    pair.post_write(64);
    for frame in pair.through(mark) {
        pair.a.dp.receive(pair.now, frame);
    }
    assert_eq!(pair.a.dp.congestion().counters.cnps_ignored, 1);
}

#[test]
fn a_cnp_for_a_qp_of_another_peer_counts_nothing() {
    let mut pair = pair();
    pair.post_write(64);
    let cnp = pair.through(mark).swap_remove(0);
    let mut other = Side::new(1);
    other.connect(3, 0x77);
    other.dp.receive(Nanos(1), cnp);
    assert_eq!(other.dp.congestion().counters, Default::default());
    assert_eq!(other.dp.counters.dropped_address, 1);
}

fn control(bytes: &[u8]) -> Frame {
    let mut frame = vec![0x01, 0x80, 0xc2, 0x00, 0x00, 0x01, 2, 0, 0, 0, 0, 9, 0x88, 0x08];
    frame.extend_from_slice(bytes);
    frame.resize(60, 0);
    Frame::from_vec(frame)
}

#[test]
fn pause_frames_are_counted_and_are_never_data() {
    let mut side = Side::new(1);
    let before = side.dp.counters;
    side.dp.receive(Nanos(1), control(&[0, 1, 0xff, 0xff]));
    let mut pfc = vec![1, 1, 0, 1 << 3];
    pfc.extend([0; 16]);
    pfc[4 + 6..4 + 8].copy_from_slice(&[0x10, 0]);
    side.dp.receive(Nanos(1), control(&pfc));
    assert_eq!(side.dp.counters, before);
    let traffic = side.dp.traffic();
    assert_eq!((traffic.control.received, traffic.control.pause), (2, 1));
    assert_eq!(traffic.control.priority_pause, [0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(traffic.control.priority_quanta[3], 0x1000);
    assert_eq!(traffic.received.all.multicast.frames, 2);
}

#[test]
fn the_port_and_the_vport_count_frames_by_kind() {
    let mut pair = Pair::new();
    pair.post_write(64);
    pair.run();
    let foreign = Frame::from_vec([&mac(9)[..], &mac(1), &[8, 6], &[0; 46]].concat());
    pair.b.dp.receive(pair.now, foreign);
    let broadcast = Frame::from_vec([&[0xff; 6][..], &mac(1), &[8, 6], &[0; 46]].concat());
    pair.b.dp.receive(pair.now, broadcast);
    let traffic = *pair.b.dp.traffic();
    assert_eq!(
        (
            traffic.received.all.unicast.frames,
            traffic.received.rdma.unicast.frames
        ),
        (2, 1)
    );
    // Nothing listens to broadcasts here: it is foreign, too.
    assert_eq!(
        (traffic.foreign.unicast.frames, traffic.foreign.broadcast.frames),
        (1, 1)
    );
    assert_eq!(traffic.received.priority[0].frames, 3);
    let mut out = QueryVportCounterOut::zeroed();
    pair.b.dp.query_vport_counter(true, &mut out);
    assert_eq!(
        (
            out.received_ib_unicast().packets(),
            out.received_eth_unicast().packets()
        ),
        (1, 0)
    );
    assert_eq!(out.transmitted_ib_unicast().packets(), 1);
    let ack = 14 + 20 + 8 + 12 + 4 + 4;
    assert_eq!(out.transmitted_ib_unicast().octets(), ack + 4);
    pair.b.dp.query_vport_counter(false, &mut out);
    assert_eq!(out.received_ib_unicast().packets(), 0);
}
