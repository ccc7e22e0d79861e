//! Shared receive queues: who gets the receives, limits, events, ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::Context;
use ferroce::verbs::{
    Access, Ah, Cq, CqConfig, CqPoller, CreateError, DestroyError, LimitError, LocalBuffer, Mr, Path,
    Payload, Pd, PostError, Qp, QpConfig, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Srq, SrqConfig,
    ToInit, Wc, WcOpcode,
};
use ferroce_firmware_iface::event::EventType;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, address, connect, gid_index, mac, open, pattern};

/// Bytes of a receive.
const LEN: usize = 64;

/// A NIC whose queue pairs only send, and one whose queue pairs share their receives.
struct Bed {
    senders: Vec<Qp>,
    send_poller: CqPoller,
    source: Mr,
    receivers: Vec<Option<Qp>>,
    /// Two queue pairs in a row have the same; the last one also has the sends of all.
    pollers: Vec<CqPoller>,
    cqs: Vec<Cq>,
    srq: Srq,
    pd: Pd,
    contexts: [Arc<Context>; 2],
    testbed: Testbed,
}

fn config() -> QpConfig {
    QpConfig {
        max_send_wr: 32,
        ..QpConfig::default()
    }
}

impl Bed {
    /// `count` connected pairs, whose receivers complete in `cqs` queues in turn.
    fn new(count: usize, cqs: usize, srq: SrqConfig) -> Bed {
        let testbed = Testbed::new(TestbedConfig::default()).unwrap();
        let contexts = [open(&testbed, 0), open(&testbed, 1)];
        let a = Pd::alloc(&contexts[0]).unwrap();
        let (send_cq, send_poller) = Cq::create(&contexts[0], CqConfig::new(4096)).unwrap();
        let source = Mr::alloc(&a, 1 << 16, Access::LOCAL_WRITE).unwrap();
        source.write(0, &pattern(1 << 16, 3)).unwrap();
        let pd = Pd::alloc(&contexts[1]).unwrap();
        let srq = Srq::create(&pd, &srq).unwrap();
        let (cqs, pollers): (Vec<_>, Vec<_>) = (0..cqs)
            .map(|_| Cq::create(&contexts[1], CqConfig::new(2048)).unwrap())
            .unzip();
        let mut bed = Bed {
            senders: Vec::new(),
            send_poller,
            source,
            receivers: Vec::new(),
            pollers,
            cqs,
            srq,
            pd,
            contexts,
            testbed,
        };
        for n in 0..count {
            let mut sender = Qp::create(&a, &send_cq, &send_cq, &config()).unwrap();
            let mut receiver = bed.receiver(n);
            let (a, b) = (&*bed.contexts[0], &*bed.contexts[1]);
            connect((&mut sender, a), (&mut receiver, b), |_, _| ());
            bed.senders.push(sender);
            bed.receivers.push(Some(receiver));
        }
        bed
    }

    fn receiver(&self, n: usize) -> Qp {
        let cq = &self.cqs[n % self.cqs.len()];
        let send_cq = &self.cqs[self.cqs.len() - 1];
        Qp::create_on_srq(&self.pd, send_cq, cq, &self.srq, &config()).unwrap()
    }

    fn post(&mut self, wr_id: u64) -> Result<(), PostError> {
        let buffer = LocalBuffer::alloc(&self.pd, LEN).unwrap();
        self.srq
            .post_recv_buffer(wr_id, buffer)
            .map_err(|refused| refused.error)
    }

    /// Sends `LEN` bytes that begin at 8 times `id`, with `id` as immediate data.
    fn send(&mut self, sender: usize, id: u32) -> Result<(), PostError> {
        let at = id as usize * 8;
        let sges = [self.source.sge(at..at + LEN).unwrap()];
        let op = SendOp::Send {
            data: Payload::Gather(&sges),
            imm: Some(id),
        };
        let qp = &mut self.senders[sender];
        qp.post_send(&SendWr {
            wr_id: id.into(),
            op,
            flags: SendFlags::SIGNALED,
        })?;
        qp.ring_send();
        Ok(())
    }

    /// Polls all receivers' queues until `count` completions have come: each with the queue that it was in.
    fn receives(&mut self, count: usize) -> Vec<(usize, Wc)> {
        let deadline = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        while all.len() < count {
            for (n, poller) in self.pollers.iter_mut().enumerate() {
                poller.poll(64, |wc| all.push((n, wc))).unwrap();
            }
            assert!(Instant::now() < deadline, "{} of {count}: {all:?}", all.len());
            std::thread::yield_now();
        }
        all
    }

    fn sent(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut done = 0;
        while done < count {
            self.send_poller.wait(deadline).unwrap();
            let polled = self.send_poller.poll(64, |wc| {
                let _done = wc.result().unwrap();
            });
            done += polled.unwrap();
        }
    }

    fn assert_clean(&self) {
        for index in 0..2 {
            let stats = self.testbed.stats(index).unwrap();
            assert_eq!(
                (stats.data_path_violations, stats.firmware_violations),
                (0, 0),
                "NIC {index}: {stats:?}"
            );
        }
    }
}

#[test]
fn receives_complete_where_they_were_used_and_bring_their_buffers_back() {
    let mut bed = Bed::new(
        4,
        2,
        SrqConfig {
            max_wr: 8,
            max_sge: 1,
        },
    );
    let (mut next_recv, mut next_send) = (0u64, 0u32);
    let mut ids = BTreeSet::new();
    for _ in 0..40 {
        while bed.post(next_recv).is_ok() {
            next_recv += 1;
        }
        assert_eq!(bed.srq.outstanding(), 8);
        bed.srq.ring();
        let first = next_send;
        for n in 0..8 {
            bed.send(n % 4, next_send).unwrap();
            next_send += 1;
        }
        for (cq, wc) in bed.receives(8) {
            let done = wc.result().unwrap();
            let id = done.imm.unwrap();
            assert!((first..next_send).contains(&id) && ids.insert(id));
            let qp = bed.receivers[id as usize % 4].as_ref().unwrap();
            assert_eq!((done.qpn, cq), (qp.qpn(), id as usize % 4 % 2));
            assert_eq!((done.opcode, done.byte_len as usize), (WcOpcode::Recv, LEN));
            let buffer = done.buffer.unwrap();
            let at = id as usize * 8;
            assert_eq!(buffer.as_slice()[..LEN], pattern(1 << 16, 3)[at..at + LEN]);
        }
        bed.sent(8);
    }
    assert_eq!(bed.srq.outstanding(), 0);
    let error = bed.receivers[0]
        .as_mut()
        .unwrap()
        .post_recv(&RecvWr { wr_id: 0, sges: &[] })
        .unwrap_err();
    assert_eq!(error, PostError::NoQueue { queue: "receive" });
    bed.assert_clean();
}

#[test]
fn a_sender_waits_for_a_receive_that_is_posted_late() {
    let mut bed = Bed::new(
        2,
        1,
        SrqConfig {
            max_wr: 4,
            max_sge: 1,
        },
    );
    bed.send(0, 1).unwrap();
    bed.send(1, 2).unwrap();
    let deadline = Instant::now() + Duration::from_millis(5);
    assert!(bed.send_poller.wait(deadline).is_err(), "RNR, not done");
    bed.post(0).unwrap();
    bed.post(1).unwrap();
    bed.srq.ring();
    bed.sent(2);
    assert_eq!(bed.receives(2).len(), 2);
    bed.assert_clean();
}

#[test]
fn the_limit_is_told_once_for_each_arming() {
    let mut bed = Bed::new(
        1,
        1,
        SrqConfig {
            max_wr: 8,
            max_sge: 1,
        },
    );
    for id in 0..8 {
        bed.post(id).unwrap();
    }
    bed.srq.ring();
    assert!(matches!(
        bed.srq.arm(9),
        Err(ferroce::verbs::ModifyError::Limit(LimitError {
            attribute: "limit",
            max: 8,
            ..
        }))
    ));
    bed.srq.arm(6).unwrap();
    assert_eq!(bed.srq.query().unwrap().limit, 6);
    for id in 0..2 {
        bed.send(0, id).unwrap();
    }
    bed.receives(2);
    bed.contexts[1].process_events();
    assert_eq!(bed.srq.next_event(), None, "6 are left");
    bed.send(0, 2).unwrap();
    bed.receives(1);
    let event = wait_for(&bed.contexts[1], || bed.srq.next_event());
    assert_eq!(event, EventType::SRQ_LIMIT);
    let said = bed.srq.query().unwrap();
    assert_eq!((said.limit, said.ready), (0, true));
    bed.send(0, 3).unwrap();
    bed.receives(1);
    bed.contexts[1].process_events();
    assert_eq!(bed.srq.next_event(), None, "once");
    assert!(!bed.srq.has_failed());
    bed.assert_clean();
}

#[test]
fn a_queue_that_is_topped_up_has_not_reached_its_limit() {
    let mut bed = Bed::new(
        1,
        1,
        SrqConfig {
            max_wr: 8,
            max_sge: 1,
        },
    );
    for id in 0..8 {
        bed.post(id).unwrap();
    }
    bed.srq.ring();
    bed.srq.arm(6).unwrap();
    for id in 0..8 {
        bed.send(0, id).unwrap();
        bed.receives(1);
        bed.post(8 + u64::from(id)).unwrap();
        bed.srq.ring();
    }
    bed.contexts[1].process_events();
    assert_eq!(bed.srq.next_event(), None, "8 are left");
    assert_eq!(bed.srq.query().unwrap().limit, 6, "still armed");
    bed.assert_clean();
}

/// What `look` finds, once it finds something.
fn wait_for<T>(context: &Context, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        context.process_events();
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "no event");
        std::thread::yield_now();
    }
}

/// Keeps all senders sending and the queue full, until `until`; the receives' queue pairs and what is outstanding then.
fn traffic(bed: &mut Bed, next: &mut (u64, u32), rounds: usize, skip: Option<usize>) -> Vec<u32> {
    let mut qpns = Vec::new();
    for _ in 0..rounds {
        while bed.post(next.0).is_ok() {
            next.0 += 1;
        }
        bed.srq.ring();
        for sender in 0..bed.senders.len() {
            if Some(sender) != skip && bed.send(sender, next.1 % 1000).is_ok() {
                next.1 += 1;
            }
        }
        let _ = bed.send_poller.poll(64, |wc| drop(wc.result()));
        for poller in &mut bed.pollers {
            poller
                .poll(64, |wc| qpns.push(wc.result().unwrap().qpn.get()))
                .unwrap();
        }
    }
    qpns
}

#[test]
fn q18_a_queue_pair_that_goes_under_load_is_heard_of_no_more() {
    let mut bed = Bed::new(
        8,
        3,
        SrqConfig {
            max_wr: 32,
            max_sge: 1,
        },
    );
    let mut next = (0, 0);
    traffic(&mut bed, &mut next, 50, None);

    let mut dead = bed.receivers[5].take().unwrap();
    let qpn = dead.qpn().get();
    assert!(!dead.last_wqe_reached());
    dead.modify_to_err().unwrap();
    let (mut of_dead, mut others) = (0, 0);
    let pollers = &mut bed.pollers;
    let drained = dead.drain(Instant::now() + PATIENCE, || {
        for poller in &mut *pollers {
            poller
                .poll(64, |wc| {
                    if wc.qpn().get() == qpn {
                        of_dead += 1;
                    } else {
                        others += 1;
                    }
                    drop(wc.result());
                })
                .unwrap();
        }
    });
    drained.unwrap();
    assert!(dead.last_wqe_reached());
    let events: Vec<EventType> = std::iter::from_fn(|| dead.next_event()).collect();
    assert!(events.contains(&EventType::SRQ_LAST_WQE), "{events:?}");
    dead.destroy().unwrap();

    // The rest goes on as if nothing had been.
    let seen = traffic(&mut bed, &mut next, 400, Some(5));
    assert!(seen.len() > 100, "{}", seen.len());
    assert!(!seen.contains(&qpn), "a completion of the dead queue pair");
    while bed.srq.take_returned().is_some() {}
    // All that is not with the device can be posted again: no place was lost.
    let deadline = Instant::now() + PATIENCE;
    while bed.srq.outstanding() > 0 {
        for sender in (0..8).filter(|n| *n != 5) {
            let _ = bed.send(sender, 0);
        }
        let _ = bed.send_poller.poll(64, |wc| drop(wc.result()));
        for poller in &mut bed.pollers {
            poller.poll(64, |wc| drop(wc.result())).unwrap();
        }
        assert!(
            Instant::now() < deadline,
            "{} places are lost",
            bed.srq.outstanding()
        );
    }
    for id in 0..32 {
        bed.post(id).unwrap();
    }
    bed.assert_clean();
}

#[test]
fn what_completes_for_a_queue_pair_that_is_gone_comes_back_to_the_owner() {
    for destroyed in [false, true] {
        let mut bed = Bed::new(
            2,
            1,
            SrqConfig {
                max_wr: 16,
                max_sge: 1,
            },
        );
        for id in 0..16 {
            bed.post(100 + id).unwrap();
        }
        bed.srq.ring();
        for id in 0..5 {
            bed.send(0, id).unwrap();
            bed.send(1, id).unwrap();
        }
        bed.sent(10);
        // Its completions are written, and nobody has polled them.
        let gone = bed.receivers[0].take().unwrap();
        let qpn = gone.qpn();
        if destroyed {
            gone.destroy().unwrap();
        } else {
            drop(gone);
            bed.contexts[1].process_events();
        }
        let mut ids = BTreeSet::new();
        for (_, wc) in bed.receives(5) {
            let done = wc.result().unwrap();
            assert_ne!(done.qpn, qpn);
            ids.insert(done.wr_id);
        }
        let returned: Vec<_> = std::iter::from_fn(|| bed.srq.take_returned()).collect();
        assert_eq!(returned.len(), 5);
        for gone in returned {
            assert!(ids.insert(gone.wr_id) && gone.buffer.is_some());
        }
        assert_eq!(ids, (100..110).collect());
        assert_eq!(bed.srq.outstanding(), 6);
        bed.assert_clean();
    }
}

#[test]
fn a_queue_pair_that_was_reset_starts_afresh_on_the_same_queue() {
    let mut bed = Bed::new(
        1,
        1,
        SrqConfig {
            max_wr: 4,
            max_sge: 1,
        },
    );
    for id in 0..4 {
        bed.post(id).unwrap();
    }
    bed.srq.ring();
    bed.send(0, 1).unwrap();
    bed.sent(1);
    let mut receiver = bed.receivers[0].take().unwrap();
    receiver.modify_to_reset().unwrap();
    bed.senders[0].modify_to_reset().unwrap();
    assert_eq!(receiver.state(), QpState::Reset);
    let (a, b) = (&*bed.contexts[0], &*bed.contexts[1]);
    connect((&mut bed.senders[0], a), (&mut receiver, b), |_, _| ());
    bed.receivers[0] = Some(receiver);
    bed.send(0, 2).unwrap();
    let (_, wc) = bed.receives(1).remove(0);
    let done = wc.result().unwrap();
    assert_eq!((done.wr_id, done.imm), (1, Some(2)));
    assert_eq!(bed.srq.take_returned().map(|gone| gone.wr_id), Some(0));
    bed.assert_clean();
}

#[test]
fn a_queue_goes_after_its_queue_pairs_and_gives_its_buffers_back() {
    let bed = Bed::new(1, 1, SrqConfig::default());
    let Bed { srq, .. } = bed;
    let error = srq.destroy().unwrap_err();
    assert!(
        matches!(
            error,
            DestroyError::Busy {
                object: "SRQ",
                users: 1
            }
        ),
        "{error}"
    );

    let mut bed = Bed::new(
        1,
        1,
        SrqConfig {
            max_wr: 8,
            max_sge: 1,
        },
    );
    for id in 0..5 {
        bed.post(id).unwrap();
    }
    bed.srq.ring();
    // A queue pair that was dropped does not count, and the queue's buffers are whole.
    drop(bed.receivers.pop());
    let (srq, contexts) = (bed.srq, &bed.contexts);
    let before = contexts[1].counters().reaper.failed;
    assert_eq!(srq.destroy().unwrap().len(), 5);
    assert_eq!(contexts[1].counters().reaper.failed, before);

    // All orders of drops are right.
    let context = &contexts[1];
    for order in 0..6 {
        let pd = Pd::alloc(context).unwrap();
        let (cq, poller) = Cq::create(context, CqConfig::new(1024)).unwrap();
        let mut srq = Srq::create(&pd, &SrqConfig::default()).unwrap();
        srq.post_recv_buffer(1, LocalBuffer::alloc(&pd, 64).unwrap())
            .unwrap();
        let qp = Qp::create_on_srq(&pd, &cq, &cq, &srq, &config()).unwrap();
        match order {
            0 => drop((srq, qp, cq, poller, pd)),
            1 => drop((qp, srq, poller, cq, pd)),
            2 => drop((pd, cq, poller, srq, qp)),
            3 => drop((poller, pd, qp, cq, srq)),
            4 => drop((cq, srq, pd, qp, poller)),
            _ => drop((poller, cq, qp, pd, srq)),
        }
        context.process_events();
    }
    assert_eq!(context.counters().reaper.failed, before);
    let stats = bed.testbed.stats(1).unwrap();
    assert_eq!(
        (stats.data_path_violations, stats.firmware_violations),
        (0, 0),
        "{stats:?}"
    );
}

#[test]
fn a_cq_has_room_for_all_receives_of_the_queue_once() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let pd = Pd::alloc(&context).unwrap();
    let srq = Srq::create(
        &pd,
        &SrqConfig {
            max_wr: 100,
            max_sge: 1,
        },
    )
    .unwrap();
    let (send_cq, _send) = Cq::create(&context, CqConfig::new(511)).unwrap();
    let (cq, mut poller) = Cq::create(&context, CqConfig::new(111)).unwrap();
    let create = || Qp::create_on_srq(&pd, &send_cq, &cq, &srq, &config());
    let (first, second) = (create().unwrap(), create().unwrap());
    assert_eq!((cq.reserved(), send_cq.reserved()), (100, 64));
    let own = QpConfig {
        max_recv_wr: 29,
        ..config()
    };
    let error = Qp::create(&pd, &send_cq, &cq, &own).unwrap_err();
    assert!(
        matches!(
            error,
            CreateError::CqTooSmall {
                reserved: 100,
                asked: 29,
                ..
            }
        ),
        "{error}"
    );
    first.destroy().unwrap();
    poller.poll(1, |_| ()).unwrap();
    assert_eq!(cq.reserved(), 100);
    second.destroy().unwrap();
    poller.poll(1, |_| ()).unwrap();
    assert_eq!(cq.reserved(), 0, "the last one has left");

    let (small, _poller) = Cq::create(&context, CqConfig::new(47)).unwrap();
    let error = Qp::create_on_srq(&pd, &send_cq, &small, &srq, &config()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the shared receive CQ has 47 entries, 0 of them taken by other queues; this one may complete 100 at a time: make \
         the CQ larger, or let it be overcommitted (CqConfig::overcommit)"
    );
}

#[test]
fn t19_q15_limits_are_named_and_can_be_reached() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let pd = Pd::alloc(&context).unwrap();
    let general = context.caps().general();
    let max_wr = (1u32 << general.log_max_srq_sz().min(15)) - 1;
    let refused = |max_wr, max_sge| match Srq::create(&pd, &SrqConfig { max_wr, max_sge }).unwrap_err() {
        CreateError::Limit(LimitError { attribute, max, .. }) => (attribute, max as u32),
        other => panic!("{other}"),
    };
    assert_eq!(refused(max_wr + 1, 1), ("max_wr", max_wr));
    assert_eq!(refused(0, 1), ("max_wr", max_wr));
    let (_, max_sge) = refused(1, u32::MAX);
    assert_eq!(refused(1, max_sge + 1), ("max_sge", max_sge));
    let mut srq = Srq::create(&pd, &SrqConfig { max_wr, max_sge }).unwrap();
    let mr = Mr::alloc(&pd, 4096, Access::LOCAL_WRITE).unwrap();
    let sges = vec![mr.sge(0..8).unwrap(); 255];
    let wr = |n: usize| RecvWr {
        wr_id: n as u64,
        sges: &sges[..n],
    };
    let max = max_sge as usize;
    srq.post_recv_list(&[wr(0), wr(max)]).unwrap();
    let bad = srq.post_recv_list(&[wr(1), wr(max + 1), wr(2)]).unwrap_err();
    let error = PostError::TooManySges {
        asked: max + 1,
        max: max_sge,
    };
    assert_eq!((bad.index, bad.error), (1, error));
    assert!(srq.post_recv(&wr(255)).is_err());
    assert_eq!(srq.outstanding(), 3);
    let other = Pd::alloc(&context).unwrap();
    let stranger = LocalBuffer::alloc(&other, 64).unwrap();
    let refused = srq.post_recv_buffer(0, stranger).unwrap_err();
    assert_eq!(refused.error, PostError::OtherPd);
}

#[test]
fn datagram_queue_pairs_share_receives_too() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let contexts = [open(&testbed, 0), open(&testbed, 1)];
    let ud = QpConfig {
        qp_type: QpType::Ud,
        max_send_wr: 16,
        max_inline_data: 16,
        ..QpConfig::default()
    };
    let a = Pd::alloc(&contexts[0]).unwrap();
    let (send_cq, mut send_poller) = Cq::create(&contexts[0], CqConfig::new(256)).unwrap();
    let mut sender = Qp::create(&a, &send_cq, &send_cq, &ud).unwrap();
    sender.start_datagrams(&ToInit::ud(7)).unwrap();
    let pd = Pd::alloc(&contexts[1]).unwrap();
    let mut srq = Srq::create(
        &pd,
        &SrqConfig {
            max_wr: 16,
            max_sge: 1,
        },
    )
    .unwrap();
    let (cq, mut poller) = Cq::create(&contexts[1], CqConfig::new(256)).unwrap();
    let mut receivers: Vec<Qp> = (0..2)
        .map(|_| Qp::create_on_srq(&pd, &cq, &cq, &srq, &ud).unwrap())
        .collect();
    for qp in &mut receivers {
        qp.start_datagrams(&ToInit::ud(7)).unwrap();
    }
    for id in 0..8 {
        srq.post_recv_buffer(id, LocalBuffer::alloc(&pd, 128).unwrap())
            .unwrap();
    }
    srq.ring();
    let path = Path::to_ip(gid_index(&contexts[0], 0), address(1), mac(1));
    let to = Ah::new(&a, &path).unwrap();
    for n in 0..8u8 {
        let op = SendOp::SendTo {
            data: Payload::Inline(&[n; 16]),
            imm: None,
            to: &to,
            qpn: receivers[usize::from(n) % 2].qpn(),
            qkey: 7,
        };
        sender
            .post_send(&SendWr {
                wr_id: 0,
                op,
                flags: SendFlags::SIGNALED,
            })
            .unwrap();
    }
    sender.ring_send();
    let deadline = Instant::now() + PATIENCE;
    let mut got = Vec::new();
    while got.len() < 8 {
        poller.wait(deadline).unwrap();
        poller
            .poll(16, |wc| {
                let done = wc.result().unwrap();
                let (buffer, from) = (done.buffer.unwrap(), done.datagram.unwrap());
                assert_eq!((done.byte_len, from.src_qp), (56, sender.qpn()));
                let n = buffer.as_slice()[40];
                assert_eq!(done.qpn, receivers[usize::from(n) % 2].qpn());
                got.push(n);
            })
            .unwrap();
    }
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7]);
    while send_poller.poll(16, |wc| drop(wc.result())).unwrap() != 0 {}
}

#[test]
fn pollers_on_threads_of_their_own_release_while_the_owner_posts() {
    const MESSAGES: u64 = 4000;
    let mut bed = Bed::new(
        4,
        2,
        SrqConfig {
            max_wr: 24,
            max_sge: 1,
        },
    );
    let mut pollers = std::mem::take(&mut bed.pollers);
    let stop = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for poller in &mut pollers {
            let stop = &stop;
            scope.spawn(move || {
                let deadline = Instant::now() + PATIENCE;
                while stop.load(std::sync::atomic::Ordering::Relaxed) < MESSAGES {
                    let polled = poller.poll(16, |wc| {
                        let done = wc.result().unwrap();
                        assert_eq!(done.byte_len as usize, LEN);
                        stop.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    });
                    polled.unwrap();
                    assert!(Instant::now() < deadline);
                    std::thread::yield_now();
                }
            });
        }
        let region = Mr::alloc(&bed.pd, LEN, Access::LOCAL_WRITE).unwrap();
        let sges = [region.sge(0..LEN).unwrap()];
        let (mut sent, mut posted) = (0u64, 0u64);
        let deadline = Instant::now() + PATIENCE;
        while stop.load(std::sync::atomic::Ordering::Relaxed) < MESSAGES {
            while posted < MESSAGES
                && bed
                    .srq
                    .post_recv(&RecvWr {
                        wr_id: posted,
                        sges: &sges,
                    })
                    .is_ok()
            {
                posted += 1;
            }
            bed.srq.ring();
            for sender in 0..4 {
                if sent < MESSAGES && bed.send(sender, (sent % 1000) as u32).is_ok() {
                    sent += 1;
                }
            }
            let _ = bed.send_poller.poll(64, |wc| drop(wc.result()));
            assert!(Instant::now() < deadline, "{sent} sent, {posted} posted");
            std::thread::yield_now();
        }
    });
    bed.pollers = pollers;
    assert_eq!(bed.srq.outstanding(), 0);
    bed.assert_clean();
}

#[test]
fn a_queue_that_the_device_gives_up_says_so() {
    let mut bed = Bed::new(
        1,
        1,
        SrqConfig {
            max_wr: 8,
            max_sge: 1,
        },
    );
    bed.post(0).unwrap();
    bed.srq.ring();
    // More receives than the ring has: what no driver writes.
    let srqn = bed.srq.srqn().get();
    bed.testbed
        .with_nic(1, |nic| {
            let record = nic.data_plane.objects.srqs.get(srqn).unwrap().dbr;
            nic.data_plane
                .host
                .write(record, &0x4000u32.to_be_bytes())
                .unwrap();
        })
        .unwrap();
    bed.send(0, 1).unwrap();
    let event = wait_for(&bed.contexts[1], || bed.srq.next_event());
    assert_eq!(event, EventType::SRQ_CATASTROPHIC_ERROR);
    assert!(bed.srq.has_failed());
    // It can go all the same, and its buffer comes back.
    drop(bed.receivers.pop());
    assert_eq!(bed.srq.destroy().unwrap().len(), 1);
}

#[test]
fn a_queue_pair_that_never_connected_is_drained_too() {
    let mut bed = Bed::new(0, 1, SrqConfig::default());
    let mut qp = bed.receiver(0);
    qp.drain(Instant::now() + PATIENCE, || ()).unwrap();
    qp.modify_to_init(&ToInit::default()).unwrap();
    let poller = &mut bed.pollers[0];
    let mut shown = 0;
    qp.drain(Instant::now() + PATIENCE, || {
        shown += poller.poll(8, |wc| drop(wc.result())).unwrap();
    })
    .unwrap();
    assert_eq!(shown, 0, "only the driver's own marker");
    assert!(qp.last_wqe_reached());
    qp.destroy().unwrap();
    bed.assert_clean();
}
