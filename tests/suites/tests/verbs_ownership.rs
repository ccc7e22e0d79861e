//! Who owns buffers, queues and regions, and what happens to them when they are dropped, forgotten or moved.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferroce::mem::CallerMemory;
use ferroce::verbs::{
    Access, BufferOp, CallerMr, Cq, CqConfig, CreateError, DestroyError, LocalBuffer, Payload, Pd, PostError,
    Qp, QpConfig, RecvWr, SendFlags, SendOp, ToInit, WcOpcode,
};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, Pair, Side, connect, empty_send, open, pattern, signaled};

#[test]
fn a02_buffers_move_into_requests_and_come_back() {
    let mut pair = Pair::new(&QpConfig::default());
    let inbox = LocalBuffer::alloc(&pair.b.pd, 5000).unwrap();
    pair.b.qp.post_recv_buffer(7, inbox).unwrap();
    pair.b.qp.ring_recv();
    let mut outbox = LocalBuffer::alloc(&pair.a.pd, 8192).unwrap();
    outbox.as_mut_slice().copy_from_slice(&pattern(8192, 1));
    pair.a
        .qp
        .post_send_buffer(
            8,
            BufferOp::Send { imm: Some(3) },
            SendFlags::empty(),
            outbox,
            100..4100,
        )
        .unwrap();
    pair.a.qp.ring_send();
    let wc = pair.b.success();
    let inbox = wc.buffer.expect("the receive's buffer");
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (7, 4000, Some(3)));
    assert_eq!(inbox.as_slice()[..4000], pattern(4100, 1)[100..]);
    assert_eq!(inbox.as_slice()[4000..], [0; 1000]);
    let outbox = pair.a.success().buffer.expect("the send's buffer");
    assert_eq!(outbox.as_slice(), pattern(8192, 1));

    // READ and an atomic, with the same buffer.
    pair.b.fill(9);
    let read = BufferOp::Read {
        remote: pair.b.mr.remote(10),
    };
    pair.a
        .qp
        .post_send_buffer(9, read, SendFlags::empty(), outbox, 0..64)
        .unwrap();
    pair.a.qp.ring_send();
    let buffer = pair.a.success().buffer.unwrap();
    assert_eq!(buffer.as_slice()[..64], pattern(100, 9)[10..74]);
    pair.b.mr.write_u64(64, 0x0102_0304_0506_0708).unwrap();
    let add = BufferOp::FetchAdd {
        remote: pair.b.mr.remote(64),
        add: 1,
    };
    pair.a
        .qp
        .post_send_buffer(10, add, SendFlags::empty(), buffer, 8..16)
        .unwrap();
    pair.a.qp.ring_send();
    let wc = pair.a.success();
    assert_eq!(wc.opcode, WcOpcode::FetchAdd);
    assert_eq!(wc.buffer.unwrap().atomic_result(8), Some(0x0102_0304_0506_0708));
    pair.assert_clean();
}

#[test]
fn a_refused_buffer_is_handed_back() {
    let mut pair = Pair::new(&QpConfig {
        max_recv_wr: 1,
        ..QpConfig::default()
    });
    let buffer = LocalBuffer::alloc(&pair.a.pd, 100).unwrap();
    let op = BufferOp::Send { imm: None };
    let refused = pair
        .a
        .qp
        .post_send_buffer(1, op, SendFlags::empty(), buffer, 50..101)
        .unwrap_err();
    assert_eq!(
        refused.error,
        PostError::OutOfBuffer {
            start: 50,
            end: 101,
            len: 100
        }
    );
    pair.a.qp.post_recv_buffer(1, refused.buffer).unwrap();
    let another = LocalBuffer::alloc(&pair.a.pd, 100).unwrap();
    let mut refused = pair.a.qp.post_recv_buffer(2, another).unwrap_err();
    assert_eq!(
        refused.error,
        PostError::QueueFull {
            queue: "receive",
            max_wr: 1
        }
    );
    refused.buffer.as_mut_slice()[0] = 1;
    // On another device its key would mean something else.
    let refused = pair.b.qp.post_recv_buffer(3, refused.buffer).unwrap_err();
    assert_eq!(refused.error, PostError::OtherPd);
}

#[test]
fn a02_buffers_in_flight_come_back_from_a_flush_a_reset_and_a_destroyed_queue_pair() {
    let mut pair = Pair::new(&QpConfig::default());
    let buffers = |pd: &Pd| {
        (0..3)
            .map(|_| LocalBuffer::alloc(pd, 4096).unwrap())
            .collect::<Vec<_>>()
    };
    for buffer in buffers(&pair.a.pd) {
        pair.a.qp.post_recv_buffer(1, buffer).unwrap();
    }
    pair.a.qp.ring_recv();
    pair.a.qp.modify_to_err().unwrap();
    for _ in 0..3 {
        let mut error = pair.a.failure();
        assert!(error.is_flush());
        assert_eq!(error.take_buffer().unwrap().len(), 4096);
    }
    pair.a.qp.modify_to_reset().unwrap();
    pair.a.qp.modify_to_init(&ToInit::default()).unwrap();
    for buffer in buffers(&pair.a.pd) {
        pair.a.qp.post_recv_buffer(2, buffer).unwrap();
    }
    pair.a.qp.ring_recv();
    assert_eq!(pair.a.qp.modify_to_reset().unwrap().len(), 3);
    pair.a.qp.modify_to_init(&ToInit::default()).unwrap();
    for buffer in buffers(&pair.a.pd) {
        pair.a.qp.post_recv_buffer(3, buffer).unwrap();
    }
    let Side { qp, pd, context, .. } = pair.a;
    let mut back = qp.destroy().unwrap();
    assert_eq!(back.len(), 3);
    back[0].as_mut_slice()[0] = 1;
    drop((back, pd));
    assert_eq!(context.dma().leaked_bytes(), 0);
}

#[test]
fn a02_buffers_of_completions_that_nobody_looks_at_are_freed() {
    let mut pair = Pair::new(&QpConfig::default());
    let dma = pair.b.context.dma().clone();
    let before = dma.mapped_bytes();
    for wr_id in 0..6 {
        let buffer = LocalBuffer::alloc(&pair.b.pd, 4 << 20).unwrap();
        pair.b.qp.post_recv_buffer(wr_id, buffer).unwrap();
    }
    pair.b.qp.ring_recv();
    let sends: Vec<_> = (0..3).map(|wr_id| signaled(wr_id, empty_send())).collect();
    pair.a.qp.post_send_list(&sends).unwrap();
    for _ in 0..3 {
        let _ = pair.a.success();
    }
    // Three are received into, three are flushed.
    pair.b.qp.modify_to_err().unwrap();
    let (mut seen, mut good) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    while seen < 6 {
        assert!(Instant::now() < deadline);
        let polled = pair.b.poller.poll(64, |wc| good += u32::from(wc.is_ok()));
        seen += polled.unwrap();
    }
    assert_eq!(good, 3);
    while dma.mapped_bytes() >= before + (4 << 20) {
        assert_eq!(dma.leaked_bytes(), 0);
        assert!(
            Instant::now() < deadline,
            "{} bytes stay mapped",
            dma.mapped_bytes()
        );
        pair.b.context.process_events();
    }
    assert_eq!(dma.leaked_bytes(), 0);
    pair.assert_clean();
}

#[test]
fn a02_buffers_of_dropped_and_forgotten_queue_pairs_are_safe() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let pd = Pd::alloc(&context).unwrap();
    let before = context.dma().mapped_bytes();
    let config = QpConfig {
        max_send_wr: 4,
        max_recv_wr: 8,
        ..QpConfig::default()
    };
    let lend = || {
        let (cq, poller) = Cq::create(&context, CqConfig::new(31)).unwrap();
        let mut qp = Qp::create(&pd, &cq, &cq, &config).unwrap();
        qp.modify_to_init(&ToInit::default()).unwrap();
        for wr_id in 0..8 {
            qp.post_recv_buffer(wr_id, LocalBuffer::alloc(&pd, 2 << 20).unwrap())
                .unwrap();
        }
        qp.ring_recv();
        (qp, poller)
    };
    // Dropped: firmware destroys the queue pair, then the memory goes.
    let (qp, poller) = lend();
    drop(qp);
    drop(poller);
    let deadline = Instant::now() + PATIENCE;
    while context.dma().mapped_bytes() > before + (4 << 20) {
        assert!(
            Instant::now() < deadline,
            "{} bytes stay mapped",
            context.dma().mapped_bytes()
        );
        context.process_events();
    }
    assert_eq!(context.dma().leaked_bytes(), 0);
    // Forgotten: the memory stays, whatever else is dropped.
    let (qp, poller) = lend();
    std::mem::forget(qp);
    drop(poller);
    context.process_events();
    assert!(
        context.dma().mapped_bytes() >= before + (16 << 20),
        "the device may still write there"
    );
}

#[test]
fn a06_each_kind_of_completion_comes_out_of_its_own_queue() {
    let pair = Pair::new(&QpConfig::default());
    let (send_cq, mut sends) = Cq::create(&pair.a.context, CqConfig::new(200)).unwrap();
    let (recv_cq, mut recvs) = Cq::create(&pair.a.context, CqConfig::new(200)).unwrap();
    let mut qp = Qp::create(&pair.a.pd, &send_cq, &recv_cq, &QpConfig::default()).unwrap();
    let mut peer =
        Qp::create(&pair.b.pd, &pair.b.cq, &pair.b.cq, &QpConfig::default()).map_err(|e| e.to_string());
    assert!(
        peer.as_ref().is_err_and(|e| e.contains("256 of them taken")),
        "{peer:?}"
    );
    let (b_cq, mut b_poller) = Cq::create(&pair.b.context, CqConfig::new(500)).unwrap();
    peer = Qp::create(&pair.b.pd, &b_cq, &b_cq, &QpConfig::default()).map_err(|e| e.to_string());
    let mut peer = peer.unwrap();
    connect(
        (&mut qp, &pair.a.context),
        (&mut peer, &pair.b.context),
        |_, _| (),
    );
    qp.post_recv_list(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    peer.post_recv_list(&[RecvWr { wr_id: 2, sges: &[] }]).unwrap();
    qp.post_send_list(&[signaled(3, empty_send())]).unwrap();
    peer.post_send_list(&[signaled(4, empty_send())]).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let one = |poller: &mut ferroce::verbs::CqPoller| {
        poller.wait(deadline).unwrap();
        poller.poll_one().unwrap().unwrap().result().unwrap().wr_id
    };
    assert_eq!((one(&mut sends), one(&mut recvs)), (3, 1));
    let mut both = [one(&mut b_poller), one(&mut b_poller)];
    both.sort_unstable();
    assert_eq!(both, [2, 4]);
    assert!(sends.poll_one().unwrap().is_none() && recvs.poll_one().unwrap().is_none());
    // CQs of another device are refused, in either place.
    for (send, recv, object) in [(&b_cq, &recv_cq, "send CQ"), (&send_cq, &b_cq, "receive CQ")] {
        let error = Qp::create(&pair.a.pd, send, recv, &QpConfig::default()).unwrap_err();
        assert!(matches!(error, CreateError::OtherDevice { object: o } if o == object));
    }
    drop(pair.a.poller.cq());
    pair.assert_clean();
}

#[test]
fn a06_objects_may_go_in_any_order() {
    for order in 0..24 {
        let testbed = Testbed::new(TestbedConfig::default()).unwrap();
        let side = Side::new(&testbed, 0, &QpConfig::default());
        let Side {
            qp,
            poller,
            cq,
            mr,
            pd,
            context,
        } = side;
        let mut things: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(qp), Box::new((poller, cq)), Box::new(mr), Box::new(pd)];
        // The order's digits in the factorial system pick who goes next.
        let mut left = order;
        for choices in (1..=4).rev() {
            things.remove(left % choices);
            left /= choices;
        }
        assert_eq!(context.dma().leaked_bytes(), 0);
        context.process_events();
        let stats = testbed.stats(0).unwrap();
        assert_eq!(
            (stats.data_path_violations, stats.firmware_violations),
            (0, 0),
            "order {order}"
        );
        let report = context.close().unwrap();
        assert_eq!(
            (report.objects_failed, report.pages_lost),
            (0, 0),
            "order {order}"
        );
    }
}

#[test]
fn a_domain_that_is_used_is_not_given_back() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let Side {
        qp,
        poller,
        cq,
        mr,
        pd,
        context,
    } = Side::new(&testbed, 0, &QpConfig::default());
    let error = pd.clone().dealloc().unwrap_err();
    assert!(
        matches!(
            error,
            DestroyError::Busy {
                object: "PD",
                users: 3
            }
        ),
        "{error}"
    );
    mr.dereg().unwrap();
    qp.destroy().unwrap();
    drop((poller, cq));
    pd.dealloc().unwrap();
    context.close().unwrap();
}

#[test]
fn q18_a_destroyed_queue_pair_shows_no_more_completions() {
    let mut pair = Pair::new(&QpConfig::default());
    let (cq, mut poller) = Cq::create(&pair.b.context, CqConfig::new(2000)).unwrap();
    for round in 0..20 {
        let mut qp = Qp::create(&pair.b.pd, &cq, &cq, &QpConfig::default()).unwrap();
        pair.a.qp.modify_to_reset().unwrap();
        connect(
            (&mut pair.a.qp, &pair.a.context),
            (&mut qp, &pair.b.context),
            |_, _| (),
        );
        let recvs: Vec<_> = (0..100).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
        qp.post_recv_list(&recvs).unwrap();
        let sends: Vec<_> = (0..50).map(|wr_id| signaled(wr_id, empty_send())).collect();
        pair.a.qp.post_send_list(&sends).unwrap();
        for _ in 0..50 {
            let _ = pair.a.success();
        }
        // 50 are in the CQ, 50 are flushed on the way.
        qp.modify_to_err().unwrap();
        if round % 2 == 0 {
            poller.poll(10, |wc| assert_eq!(wc.qpn(), qp.qpn())).unwrap();
        }
        if round % 3 == 0 {
            drop(qp);
        } else {
            qp.destroy().unwrap();
        }
        poller
            .poll(1000, |wc| panic!("{wc:?} of a queue pair that is gone"))
            .unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while cq.reserved() != 0 {
        assert!(Instant::now() < deadline);
        pair.b.context.process_events();
        poller
            .poll(1000, |wc| panic!("{wc:?} of a queue pair that is gone"))
            .unwrap();
    }
    assert_eq!(poller.bad_completions(), 0);
    pair.assert_clean();
}

#[test]
fn a_reset_queue_pair_starts_afresh_and_old_completions_are_not_shown() {
    let mut pair = Pair::new(&QpConfig::default());
    for round in 0..10u64 {
        let recvs: Vec<_> = (0..20)
            .map(|i| RecvWr {
                wr_id: round * 100 + i,
                sges: &[],
            })
            .collect();
        pair.b.qp.post_recv_list(&recvs).unwrap();
        let sends: Vec<_> = (0..10).map(|i| signaled(round * 100 + i, empty_send())).collect();
        pair.a.qp.post_send_list(&sends).unwrap();
        let ids: Vec<u64> = (0..10).map(|_| pair.a.success().wr_id).collect();
        assert_eq!(ids, (0..10).map(|i| round * 100 + i).collect::<Vec<_>>());
        // Of the other side only some are polled; the rest is of the time before the reset.
        for i in 0..round {
            assert_eq!(pair.b.success().wr_id, round * 100 + i);
        }
        pair.a.qp.modify_to_reset().unwrap();
        pair.b.qp.modify_to_reset().unwrap();
        assert_eq!(pair.b.qp.outstanding(), (0, 0));
        pair.connect(|_, _| ());
    }
    assert!(pair.b.poller.poll_one().unwrap().is_none());
    assert_eq!(pair.b.poller.bad_completions(), 0);
    pair.assert_clean();
}

#[test]
fn q18_a_reset_inside_a_poll_takes_effect_at_once() {
    let Pair {
        mut a,
        mut b,
        testbed,
    } = Pair::new(&QpConfig::default());
    let remote = b.mr.remote(0);
    let write = |wr_id: u64, bytes: &'static [u8]| {
        let op = SendOp::Write {
            data: Payload::Inline(bytes),
            remote,
            imm: None,
        };
        signaled(wr_id, op)
    };
    a.qp.post_send_list(&[write(1, b"1"), write(2, b"2"), write(3, b"3")])
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while a.poller.waiting() < 3 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    // All three completions are there; in the middle of polling them the queue pair starts afresh.
    let Side {
        qp, poller, context, ..
    } = &mut a;
    let mut seen = Vec::new();
    poller
        .poll(16, |wc| {
            let wr_id = wc.result().unwrap().wr_id;
            seen.push(wr_id);
            if wr_id != 1 {
                return;
            }
            qp.modify_to_reset().unwrap();
            b.qp.modify_to_reset().unwrap();
            connect((&mut *qp, &**context), (&mut b.qp, &*b.context), |_, _| ());
            qp.post_send_list(&[write(100, b"x")]).unwrap();
            let deadline = Instant::now() + PATIENCE;
            while testbed.stats(0).unwrap().engine.cqes < 4 {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
        })
        .unwrap();
    assert_eq!(seen, [1, 100]);
    assert_eq!(a.poller.bad_completions(), 0);
    assert_eq!(a.qp.outstanding(), (0, 0));
    Pair { a, b, testbed }.assert_clean();
}

#[test]
fn q06_queue_pairs_come_and_go_while_another_thread_polls() {
    let mut pair = Pair::new(&QpConfig::default());
    let (cq, mut poller) = Cq::create(&pair.b.context, CqConfig::new(50 * 256)).unwrap();
    let stop = AtomicBool::new(false);
    let polled = std::thread::scope(|scope| {
        let polling = scope.spawn(|| {
            let mut seen = 0u64;
            while !stop.load(Ordering::Relaxed) {
                seen += poller.poll(16, |_| ()).unwrap() as u64;
                std::thread::yield_now();
            }
            seen
        });
        // Also where an assertion fails.
        let _stop = StopOnDrop(&stop);
        let started = Instant::now();
        for _ in 0..50 {
            let mut qp = Qp::create(&pair.b.pd, &cq, &cq, &QpConfig::default()).unwrap();
            pair.a.qp.modify_to_reset().unwrap();
            connect(
                (&mut pair.a.qp, &pair.a.context),
                (&mut qp, &pair.b.context),
                |_, _| (),
            );
            let recvs: Vec<_> = (0..20).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
            qp.post_recv_list(&recvs).unwrap();
            let sends: Vec<_> = (0..10).map(|wr_id| signaled(wr_id, empty_send())).collect();
            pair.a.qp.post_send_list(&sends).unwrap();
            for _ in 0..10 {
                let _ = pair.a.success();
            }
            qp.destroy().unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(60));
        stop.store(true, Ordering::Relaxed);
        polling.join().unwrap()
    });
    assert!(polled > 0);
    pair.assert_clean();
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn queue_pair_and_poller_move_between_threads() {
    let mut pair = Pair::new(&QpConfig::default());
    let remote = pair.b.mr.remote(0);
    for round in 0..20u8 {
        let Side { qp, poller, .. } = &mut pair.a;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let op = SendOp::Write {
                    data: Payload::Inline(&[round]),
                    remote,
                    imm: None,
                };
                qp.post_send_list(&[signaled(round.into(), op)]).unwrap();
            });
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                poller.wait(Instant::now() + PATIENCE).unwrap();
                let wc = poller.poll_one().unwrap().unwrap();
                assert_eq!(wc.result().unwrap().wr_id, u64::from(round));
            });
        });
        assert_eq!(pair.b.bytes(0, 1), [round]);
    }
}

#[test]
#[allow(unsafe_code)]
fn memory_of_the_program_is_reached_by_both_sides() {
    let mut pair = Pair::new(&QpConfig::default());
    // Memory with a file behind it, as an in-process device needs: here the driver's own, of another device.
    let lender = pair.b.context.dma().alloc(3 * 4096).unwrap();
    lender.write(0, &pattern(3 * 4096, 5)).unwrap();
    // SAFETY: the device is given the buffer's part of the file, no more.
    let (file, offset) = unsafe { lender.file() };
    let memory = CallerMemory {
        va: lender.as_ptr(),
        len: 3 * 4096,
        file: Some((file.as_fd(), offset)),
    };
    // SAFETY: the buffer outlives the region and is accessed by copies only.
    let region = unsafe { CallerMr::register(&pair.a.pd, &memory, Access::all()) }.unwrap();
    let sge = [region.sge(10..9000).unwrap()];
    let op = SendOp::Write {
        data: Payload::Gather(&sge),
        remote: pair.b.mr.remote(0),
        imm: None,
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    assert_eq!(pair.a.success().wr_id, 1);
    assert_eq!(pair.b.bytes(0, 8990), pattern(9000, 5)[10..]);
    let sge = [pair.b.mr.sge(0..100).unwrap()];
    let op = SendOp::Write {
        data: Payload::Gather(&sge),
        remote: region.remote(4096),
        imm: None,
    };
    pair.b.qp.post_send_list(&[signaled(2, op)]).unwrap();
    assert_eq!(pair.b.success().wr_id, 2);
    let mut bytes = [0; 100];
    lender.read(4096, &mut bytes).unwrap();
    assert_eq!(bytes[..], pattern(200, 5)[10..110]);
    region.dereg().unwrap();
    pair.assert_clean();
}
