//! Completion queues that all places of are promised, whose requests are posted again as soon as that is allowed: none is
//! overrun.

use std::time::Instant;

use ferroce::verbs::{
    BufferOp, Cq, CqConfig, CqPoller, LocalBuffer, Payload, PostError, Qp, QpConfig, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr,
};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, Pair, connect};

/// A queue pair of the first NIC in RTS on a completion queue of its own, and the other side.
struct Bed {
    qp: Qp,
    cq: Cq,
    poller: CqPoller,
    pair: Pair,
}

impl Bed {
    /// The completion queue is for `entries`; `shape` is told how many it holds.
    fn new(entries: u32, shape: impl Fn(u32) -> (u32, u32)) -> Bed {
        let mut pair = Pair::unconnected(TestbedConfig::default(), &QpConfig::default());
        let (cq, poller) = Cq::create(&pair.a.context, CqConfig::new(entries)).unwrap();
        let (max_send_wr, max_recv_wr) = shape(cq.entries());
        let config = QpConfig {
            max_send_wr,
            max_recv_wr,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&pair.a.pd, &cq, &cq, &config).unwrap();
        assert_eq!(cq.reserved(), max_send_wr + max_recv_wr);
        let a = (&mut qp, &*pair.a.context);
        connect(a, (&mut pair.b.qp, &pair.b.context), |_, _| ());
        Bed { qp, cq, poller, pair }
    }

    /// Posts writes until the queue is full or there are `most`; how many.
    fn post_all(&mut self, first: u64, most: u32) -> u32 {
        let remote = self.pair.b.mr.remote(0);
        for i in 0..most {
            match self.qp.post_send(&write(first + u64::from(i), remote)) {
                Ok(()) => {}
                Err(PostError::QueueFull { .. }) => {
                    self.qp.ring_send();
                    return i;
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.qp.ring_send();
        most
    }

    /// To RESET and back to RTS, with nothing polled.
    fn start_afresh(&mut self) {
        self.qp.modify_to_reset().unwrap();
        self.pair.b.qp.modify_to_reset().unwrap();
        let a = (&mut self.qp, &*self.pair.a.context);
        connect(a, (&mut self.pair.b.qp, &self.pair.b.context), |_, _| ());
    }

    /// What the poller shows, once and without an end.
    fn shown(&mut self) -> Vec<u64> {
        let mut shown = Vec::new();
        self.poller.poll(10_000, |wc| shown.push(wc.wr_id())).unwrap();
        shown
    }

    fn assert_clean(self) {
        assert_eq!(self.poller.bad_completions(), 0);
        self.pair.assert_clean();
    }
}

fn write(wr_id: u64, remote: RemoteAddr) -> SendWr<'static> {
    let op = SendOp::Write {
        data: Payload::Inline(&[1]),
        remote,
        imm: None,
    };
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
    }
}

/// Waits until the first NIC has written so many completions, or can't any more.
fn completed(testbed: &Testbed, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = testbed.stats(0).unwrap();
        assert_eq!(stats.data_path_violations, 0, "{stats:?}");
        if stats.engine.cqes >= count {
            return;
        }
        assert!(Instant::now() < deadline, "{} of {count}", stats.engine.cqes);
        std::thread::yield_now();
    }
}

#[test]
fn q14_what_is_posted_again_inside_a_poll_overruns_nothing() {
    for entries in [1, 15, 16, 47, 100] {
        let mut bed = Bed::new(entries, |all| (all, 0));
        let all = bed.cq.entries();
        assert_eq!(bed.post_all(0, all), all);
        let mut count = u64::from(all);
        completed(&bed.pair.testbed, count);
        let Bed { qp, poller, pair, .. } = &mut bed;
        let mut next = 0;
        let again = |wc: ferroce::verbs::Wc| {
            assert_eq!(wc.result().unwrap().wr_id, next);
            next += 1;
            qp.post_send_list(&[write(count, pair.b.mr.remote(0))]).unwrap();
            count += 1;
            completed(&pair.testbed, count);
        };
        let most = 3 * all as usize;
        assert_eq!(poller.poll(most, again).unwrap(), most);
        assert_eq!(bed.shown(), (next..count).collect::<Vec<_>>());
        bed.assert_clean();
    }
}

#[test]
fn q14_buffers_that_are_posted_again_inside_a_poll_overrun_nothing() {
    let mut bed = Bed::new(1, |all| (all, 0));
    let all = bed.cq.entries();
    let remote = bed.pair.b.mr.remote(0);
    let post = |qp: &mut Qp, wr_id: u64, buffer: LocalBuffer| {
        let op = BufferOp::Write { remote, imm: None };
        qp.post_send_buffer(wr_id, op, SendFlags::empty(), buffer, 0..8)
            .unwrap();
        qp.ring_send();
    };
    for wr_id in 0..u64::from(all) {
        // Some have none, so that both ways of polling take turns.
        if wr_id % 3 == 2 {
            bed.qp.post_send_list(&[write(wr_id, remote)]).unwrap();
        } else {
            post(
                &mut bed.qp,
                wr_id,
                LocalBuffer::alloc(&bed.pair.a.pd, 64).unwrap(),
            );
        }
    }
    let mut count = u64::from(all);
    completed(&bed.pair.testbed, count);
    let Bed { qp, poller, pair, .. } = &mut bed;
    let again = |wc: ferroce::verbs::Wc| {
        match wc.result().unwrap().buffer {
            Some(buffer) => post(qp, count, buffer),
            None => qp.post_send_list(&[write(count, remote)]).unwrap(),
        }
        count += 1;
        completed(&pair.testbed, count);
    };
    let most = 4 * all as usize;
    assert_eq!(poller.poll(most, again).unwrap(), most);
    assert_eq!(bed.shown().len(), all as usize);
    bed.assert_clean();
}

#[test]
fn q18_a_reset_queue_pair_posts_as_much_as_its_completion_queue_has_room_for() {
    let mut bed = Bed::new(100, |all| (all, 0));
    let all = bed.cq.entries();
    assert_eq!(bed.post_all(0, all), all);
    completed(&bed.pair.testbed, all.into());
    // All that it holds lies there unpolled.
    bed.start_afresh();
    assert_eq!(bed.post_all(1000, 1), 0);
    assert!(bed.shown().is_empty());
    assert_eq!((bed.qp.outstanding(), bed.cq.reserved()), ((0, 0), all));
    assert_eq!(bed.post_all(1000, 2 * all), all);
    completed(&bed.pair.testbed, 2 * u64::from(all));
    // Half of it is polled.
    let mut shown = Vec::new();
    let half = all / 2;
    bed.poller
        .poll(half as usize, |wc| shown.push(wc.wr_id()))
        .unwrap();
    bed.start_afresh();
    assert_eq!(bed.post_all(2000, all), half);
    completed(&bed.pair.testbed, u64::from(2 * all + half));
    assert_eq!(bed.shown(), (2000..2000 + u64::from(half)).collect::<Vec<_>>());
    assert_eq!(bed.post_all(3000, 2 * all), all);
    completed(&bed.pair.testbed, u64::from(3 * all + half));
    assert_eq!(bed.shown().len(), all as usize);
    bed.assert_clean();
}

#[test]
fn q18_resets_one_after_the_other_overrun_nothing() {
    let mut bed = Bed::new(100, |all| (all / 4, all / 4));
    let all = bed.cq.entries();
    let (mut count, mut full) = (0, 0);
    for round in 0..12u64 {
        let sends = bed.post_all(1000 * round, all / 4);
        let mut recvs = 0;
        while bed.qp.post_recv(&RecvWr { wr_id: 9, sges: &[] }).is_ok() {
            recvs += 1;
        }
        bed.qp.ring_recv();
        full += u32::from(sends == all / 4 && recvs == all / 4);
        count += u64::from(sends);
        completed(&bed.pair.testbed, count);
        // The receives are flushed into the queue.
        bed.qp.modify_to_err().unwrap();
        count += u64::from(recvs);
        completed(&bed.pair.testbed, count);
        bed.start_afresh();
    }
    // Half of the queue is to spare, so that the first reset costs nothing.
    assert!((2..12).contains(&full), "{full}");
    assert!(bed.cq.reserved() <= all);
    assert!(bed.shown().is_empty());
    assert_eq!((bed.qp.outstanding(), bed.cq.reserved()), ((0, 0), all / 4 * 2));
    assert_eq!(bed.post_all(0, all), all / 4);
    completed(&bed.pair.testbed, count + u64::from(all / 4));
    assert_eq!(bed.shown().len(), all as usize / 4);
    bed.assert_clean();
}
