//! UC queue pairs: what they can do, what is lost, and what every connection's packets carry of its path.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::verbs::{
    LimitError, Lkey, ModifyError, Mtu, Path, Payload, PostError, QpConfig, QpState, QpType, RecvWr, SendOp,
    Sge, ToInit, ToRtr, ToRts, Update, WcOpcode, WcStatus,
};
use ferroce_nic_model::link::fault::Faults;
use ferroce_nic_model::link::pcap::PcapFile;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_nic_model::wire::{Frame, Icrc, RoceFrame, parse};
use ferroce_suites::pair::{Pair, REGION, Side, address, gid_index, mac, pattern, signaled};
use pcap_file::pcap::PcapReader;

fn config(qp_type: QpType) -> QpConfig {
    QpConfig {
        qp_type,
        max_send_sge: 2,
        max_inline_data: 64,
        ..QpConfig::default()
    }
}

/// A connected pair of that service; `adjust` changes the path and the MTU.
fn connected(testbed: TestbedConfig, qp_type: QpType, adjust: impl Fn(&mut Path, &mut Mtu)) -> Pair {
    let mut pair = Pair::unconnected(testbed, &config(qp_type));
    let qpns = [pair.a.qp.qpn(), pair.b.qp.qpn()];
    for (index, side) in [&mut pair.a, &mut pair.b].into_iter().enumerate() {
        let mut path = Path::to_ip(
            gid_index(&side.context, index),
            address(1 - index),
            mac(1 - index),
        );
        let mut mtu = Mtu::Mtu1024;
        adjust(&mut path, &mut mtu);
        let (rtr, rts) = match qp_type {
            QpType::Uc => (ToRtr::uc(path, qpns[1 - index], 0xff_fff0), ToRts::uc(0xff_fff0)),
            _ => (
                ToRtr::new(path, qpns[1 - index], 0xff_fff0),
                ToRts::new(0xff_fff0),
            ),
        };
        side.qp.modify_to_init(&ToInit::default()).unwrap();
        side.qp.modify_to_rtr(&ToRtr { mtu, ..rtr }).unwrap();
        side.qp.modify_to_rts(&rts).unwrap();
    }
    pair
}

#[test]
fn sends_and_writes_of_all_sizes_arrive_whole() {
    for mtu in Mtu::ALL {
        let mut pair = connected(TestbedConfig::default(), QpType::Uc, |_, own| *own = mtu);
        pair.a.fill(1);
        let bytes = mtu.bytes() as usize;
        for len in [0, 1, bytes - 1, bytes, bytes + 1, 2 * bytes, 64 * 1024 + 1] {
            let data = [pair.a.mr.sge(0..len).unwrap()];
            let into = [pair.b.mr.sge(REGION / 2..REGION / 2 + len).unwrap()];
            for wr_id in 0..2 {
                pair.b.qp.post_recv(&RecvWr { wr_id, sges: &into }).unwrap();
            }
            pair.b.qp.ring_recv();
            let (data, remote) = (Payload::Gather(&data), pair.b.mr.remote(0));
            let imm = Some(0x0102_0304);
            for (wr_id, op) in [
                SendOp::Send { data, imm: None },
                SendOp::Write {
                    data,
                    remote,
                    imm: None,
                },
                SendOp::Write { data, remote, imm },
            ]
            .into_iter()
            .enumerate()
            {
                pair.a.qp.post_send(&signaled(wr_id as u64, op)).unwrap();
            }
            pair.a.qp.ring_send();
            for wr_id in 0..3 {
                assert_eq!(pair.a.success().wr_id, wr_id);
            }
            let done = pair.b.success();
            assert_eq!(
                (done.opcode, done.byte_len as usize, done.imm),
                (WcOpcode::Recv, len, None)
            );
            let done = pair.b.success();
            assert_eq!(
                (done.opcode, done.byte_len as usize, done.imm, done.datagram),
                (WcOpcode::RecvRdmaWithImm, len, imm, None)
            );
            assert_eq!(
                pair.b.bytes(0, len),
                pattern(REGION, 1)[..len],
                "{mtu:?}, {len} bytes"
            );
            assert_eq!(pair.b.bytes(REGION / 2, len), pattern(REGION, 1)[..len]);
        }
        pair.assert_clean();
    }
}

#[test]
fn what_uc_does_not_have_is_refused_by_name() {
    let mut pair = connected(TestbedConfig::default(), QpType::Uc, |_, _| ());
    let (remote, into) = (pair.b.mr.remote(0), pair.a.mr.sge(0..8).unwrap());
    for op in [
        SendOp::Read {
            into: &[into],
            remote,
        },
        SendOp::FetchAdd { into, remote, add: 1 },
        SendOp::CompareSwap {
            into,
            remote,
            compare: 1,
            swap: 2,
        },
    ] {
        let error = pair.a.qp.post_send(&signaled(0, op)).unwrap_err();
        assert!(
            matches!(
                error,
                PostError::Operation {
                    qp_type: QpType::Uc,
                    ..
                }
            ),
            "{error}"
        );
    }
    let update = Update {
        min_rnr_timer: Some(1),
        ..Update::default()
    };
    assert!(pair.a.qp.modify_in_rts(&update).is_err());
    assert_eq!(pair.a.qp.outstanding(), (0, 0));
    pair.assert_clean();
}

#[test]
fn a_message_arrives_whole_or_not_at_all() {
    const COUNT: u64 = 100;
    let faults = Faults {
        seed: 5,
        loss: 0.05,
        duplicate: 0.02,
        reorder: 0.02,
        corrupt: 0.02,
        ..Faults::default()
    };
    let testbed = TestbedConfig {
        faults,
        ..TestbedConfig::default()
    };
    let mut pair = connected(testbed, QpType::Uc, |_, mtu| *mtu = Mtu::Mtu256);
    pair.a.fill(9);
    let (len, slot) = (1500, 2048);
    for wr_id in 0..=COUNT {
        let at = wr_id as usize * slot;
        let sges = [pair.b.mr.sge(at..at + slot).unwrap()];
        pair.b.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }
    pair.b.qp.ring_recv();
    for id in 0..COUNT {
        let at = id as usize * 8;
        let sges = [pair.a.mr.sge(at..at + len).unwrap()];
        let op = SendOp::Send {
            data: Payload::Gather(&sges),
            imm: Some(id as u32),
        };
        pair.a.qp.post_send(&signaled(id, op)).unwrap();
        pair.a.qp.ring_send();
        assert_eq!(
            pair.a.success().wr_id,
            id,
            "sent is done, whether it arrives or not"
        );
    }
    // The last one goes over a good wire, so that it tells that all before it are here or lost.
    pair.testbed.set_faults(Faults::default()).unwrap();
    let op = SendOp::Send {
        data: Payload::Inline(&[]),
        imm: Some(COUNT as u32),
    };
    pair.a.qp.post_send(&signaled(COUNT, op)).unwrap();
    pair.a.qp.ring_send();
    assert_eq!(pair.a.success().wr_id, COUNT);
    let (mut last, mut arrived) = (None, 0);
    loop {
        let done = pair.b.success();
        let id = done.imm.unwrap();
        assert!(last < Some(id), "in order, and each once: {last:?}, {id}");
        last = Some(id);
        if u64::from(id) == COUNT {
            break;
        }
        assert_eq!(done.byte_len as usize, len);
        let at = done.wr_id as usize * slot;
        assert_eq!(
            pair.b.bytes(at, len),
            pattern(REGION, 9)[id as usize * 8..][..len]
        );
        arrived += 1;
    }
    assert!((20..COUNT).contains(&arrived), "{arrived}");
    pair.assert_clean();
}

#[test]
fn a_failed_send_is_recovered_from() {
    let mut pair = connected(TestbedConfig::default(), QpType::Uc, |_, _| ());
    let outside = [Sge::new(
        pair.a.mr.addr() + (1 << 40),
        8,
        Lkey::new(pair.a.mr.lkey()).unwrap(),
    )];
    let op = SendOp::Send {
        data: Payload::Gather(&outside),
        imm: None,
    };
    pair.a.qp.post_send(&signaled(1, op)).unwrap();
    pair.a.qp.ring_send();
    assert_eq!(pair.a.failure().status, WcStatus::LocalProtection);
    assert_eq!(pair.a.qp.query().unwrap().state, QpState::Sqe);
    pair.a.qp.resume(&Update::default()).unwrap();
    let op = SendOp::Write {
        data: Payload::Inline(&[7; 8]),
        remote: pair.b.mr.remote(0),
        imm: None,
    };
    pair.a.qp.post_send(&signaled(2, op)).unwrap();
    pair.a.qp.ring_send();
    assert_eq!(pair.a.success().wr_id, 2);
    pair.assert_clean();
}

/// Where frames are recorded.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn frames(&self) -> Vec<RoceFrame> {
        let bytes = self.0.lock().unwrap().clone();
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let frame = Frame::from_vec(packet.unwrap().data.into_owned());
            frames.extend(parse(&frame, Icrc::On));
        }
        frames
    }
}

#[test]
fn each_connections_path_is_on_its_packets() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let sink = Sink::default();
        let pcap = PcapFile::new(Box::new(sink.clone()), Duration::ZERO).unwrap();
        let testbed = TestbedConfig {
            pcap: Some(pcap),
            ..TestbedConfig::default()
        };
        let mut pair = connected(testbed, qp_type, |path, _| {
            path.traffic_class = 0x2e << 2 | 1;
            path.hop_limit = 9;
            path.priority = 5;
            path.udp_sport = Some(0xc123);
        });
        let said = pair.a.qp.query().unwrap();
        assert_eq!((said.path.traffic_class, said.path.priority), (0xb9, 5));
        let op = SendOp::Write {
            data: Payload::Inline(&[7; 8]),
            remote: pair.b.mr.remote(0),
            imm: None,
        };
        pair.a.qp.post_send(&signaled(2, op)).unwrap();
        pair.a.qp.ring_send();
        assert_eq!(pair.a.success().wr_id, 2);
        drop(pair);
        let frames = sink.frames();
        assert!(!frames.is_empty());
        for frame in frames {
            assert_eq!(
                (frame.encap.dscp(), frame.encap.traffic_class() & 3),
                (0x2e, 1),
                "{qp_type}"
            );
        }
    }
}

#[test]
fn the_path_mtu_is_at_most_what_the_ports_mtu_lets_through() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let function = InProcess::new("small", testbed.device(0).unwrap()).unwrap();
    let small = OpenConfig::new().address(address(0)).mtu(1500);
    let context = Context::open(Arc::new(function), small).unwrap();
    assert_eq!(context.active_path_mtu().unwrap(), 1024);
    let mut side = Side::on(context, &config(QpType::Rc));
    side.qp.modify_to_init(&ToInit::default()).unwrap();
    let path = Path::to_ip(gid_index(&side.context, 0), address(1), mac(1));
    let rtr = ToRtr::new(path, side.qp.qpn(), 0);
    let refused = side.qp.modify_to_rtr(&ToRtr {
        mtu: Mtu::Mtu2048,
        ..rtr
    });
    assert!(
        matches!(
            refused,
            Err(ModifyError::Limit(LimitError {
                attribute: "mtu",
                asked: 2048,
                max: 1024,
                ..
            }))
        ),
        "{refused:?}"
    );
    side.qp.modify_to_rtr(&rtr).unwrap();
}
