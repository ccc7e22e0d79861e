//! What the requester sends, and what it makes of answers.

use super::*;

const WRITE: SendOp = SendOp::Write { remote: REMOTE };
const READ: SendOp = SendOp::Read { remote: REMOTE };

fn read_response(opcode: u8, n: u32, fill: u8, len: u32) -> Packet {
    let mut packet = packet(opcode, n, fill, len);
    packet.aeth = Some(Aeth {
        syndrome: 0x1f,
        msn: 1,
    });
    packet
}

#[test]
fn message_is_cut_at_the_mtu_with_headers_where_they_belong() {
    let mut b = bench();
    b.mem.fill(KEY, VA + 512, &[6; 88]);
    let op = SendOp::WriteImm {
        remote: REMOTE,
        imm: 0x0a0b_0c0d,
    };
    let mut work = send(1, op, 599);
    work.solicited = true;
    b.qp.post_send(work);
    let packets = b.all();
    assert_eq!(
        opcodes_and_psns(&packets),
        [
            (opcode::RC_WRITE_FIRST, psn(0)),
            (opcode::RC_WRITE_MIDDLE, psn(1)),
            (opcode::RC_WRITE_LAST_IMM, psn(2)),
        ]
    );
    let reth = Reth {
        va: REMOTE.va,
        rkey: REMOTE.rkey,
        dma_len: 599,
    };
    let reths: Vec<_> = packets.iter().map(|p| p.reth).collect();
    assert_eq!(reths, [Some(reth), None, None]);
    let flags: Vec<_> = packets
        .iter()
        .map(|p| (p.bth.ack_req, p.bth.solicited, p.bth.pad_count, p.immediate))
        .collect();
    let last = (true, true, 1, Some(0x0a0b_0c0d));
    assert_eq!(flags, [(false, false, 0, None), (false, false, 0, None), last]);
    assert!(packets[2].payload.to_vec().is_ok_and(|v| v == [6; 87]));
    assert_eq!((packets[0].bth.dest_qp, packets[0].bth.pkey), (0x1234, 0xffff));
}

#[test]
fn solicited_is_not_set_where_no_receive_is_consumed() {
    let mut b = bench();
    let mut work = send(1, WRITE, 8);
    work.solicited = true;
    b.qp.post_send(work);
    assert!(!b.all()[0].bth.solicited);
}

#[test]
fn inline_data_and_invalidate_go_out() {
    let mut b = bench();
    let mut work = send(1, SendOp::SendInvalidate { rkey: 0x99 }, 0);
    work.data = SendData::Inline(Payload::from_vec((0..=255).chain(0..10).collect()));
    b.qp.post_send(work);
    let packets = b.all();
    assert_eq!(
        opcodes_and_psns(&packets),
        [
            (opcode::RC_SEND_FIRST, psn(0)),
            (opcode::RC_SEND_LAST_INV, psn(1)),
        ]
    );
    assert_eq!(packets[1].invalidate_rkey, Some(0x99));
    assert!(
        packets[1]
            .payload
            .to_vec()
            .is_ok_and(|v| v == Vec::from_iter(0..10))
    );
}

#[test]
fn window_bounds_what_is_out_and_asks_for_acknowledgements() {
    let mut b = bench_with(QpConfig {
        window_bytes: 8 * MTU,
        ..config()
    });
    b.post(1, WRITE, 4096);
    b.post(2, WRITE, 4096);
    let packets = b.all();
    assert_eq!(packets.len(), 8);
    let asked: Vec<_> = packets.iter().map(|p| p.bth.ack_req).collect();
    assert_eq!(asked, [false, true, false, true, false, true, false, true]);
    b.deliver(ack(3, GOOD, 0));
    assert_eq!(b.all().len(), 4);
}

#[test]
fn acknowledgement_completes_all_before_it_and_signaled_ones_are_reported() {
    let mut b = bench();
    for id in 0..4 {
        let mut work = send(id, WRITE, 8);
        work.signaled = id != 1;
        b.qp.post_send(work);
    }
    b.all();
    b.deliver(ack(2, GOOD, 3));
    let ok = CompletionStatus::Success;
    assert_eq!(send_statuses(&b.events()), [(0, ok), (2, ok)]);
    assert!(b.qp.poll_timeout().is_some(), "one is still out");
    b.deliver(ack(3, GOOD, 4));
    assert_eq!(send_statuses(&b.events()), [(3, ok)]);
    assert_eq!(b.qp.poll_timeout(), None);
    assert_eq!(b.qp.last_acked_psn(), psn(3));
}

#[test]
fn ghosts_and_reserved_syndromes_change_nothing() {
    let mut b = bench();
    b.post(1, WRITE, 8);
    b.post(2, WRITE, 8);
    b.all();
    b.deliver(ack(0, GOOD, 1));
    b.events();
    for ghost in [
        ack(0, GOOD, 1),
        ack(0, Syndrome::Nak(NakCode::RemoteAccess), 1),
        ack(2, GOOD, 3),
        ack(1, Syndrome::Reserved(0x9f), 2),
        read_response(opcode::RC_READ_RESPONSE_ONLY, 2, 1, 8),
    ] {
        b.deliver(ghost);
    }
    assert_eq!(b.events(), []);
    assert_eq!(b.qp.sends_held(), 1);
    assert_eq!(b.qp.counters().dropped, 5);
}

#[test]
fn sequence_nak_goes_back_once_and_gathers_again() {
    let mut b = bench();
    b.post(1, WRITE, 600);
    b.post(2, WRITE, 8);
    b.all();
    b.mem.fill(KEY, VA, &[8; 600]);
    b.deliver(ack(1, Syndrome::Nak(NakCode::Sequence), 0));
    b.deliver(ack(1, Syndrome::Nak(NakCode::Sequence), 0));
    let again = b.all();
    assert_eq!(
        opcodes_and_psns(&again),
        [
            (opcode::RC_WRITE_MIDDLE, psn(1)),
            (opcode::RC_WRITE_LAST, psn(2)),
            (opcode::RC_WRITE_ONLY, psn(3)),
        ]
    );
    assert!(again[0].payload.to_vec().is_ok_and(|v| v == [8; 256]));
    b.deliver(ack(1, Syndrome::Nak(NakCode::Sequence), 0));
    assert!(b.all().is_empty());
    let counters = b.qp.counters();
    assert_eq!((counters.retransmitted, counters.sequence_naks_received), (3, 3));
}

#[test]
fn fatal_nak_ends_its_request_after_those_before_it() {
    for (code, status) in [
        (NakCode::InvalidRequest, CompletionStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, CompletionStatus::RemoteAccess),
        (NakCode::RemoteOperation, CompletionStatus::RemoteOperation),
    ] {
        let mut b = bench();
        for id in 0..4 {
            b.post(id, WRITE, 8);
        }
        b.all();
        b.deliver(ack(1, Syndrome::Nak(code), 1));
        let events = b.events();
        let flushed = CompletionStatus::Flushed;
        let ok = CompletionStatus::Success;
        assert_eq!(
            send_statuses(&events),
            [(0, ok), (1, status), (2, flushed), (3, flushed)]
        );
        assert_eq!(events.last(), Some(&Event::EnteredError));
        assert_eq!(b.qp.state(), QpState::Err);
        assert_eq!((b.all().len(), b.qp.poll_timeout()), (0, None));
        b.post(9, WRITE, 8);
        assert_eq!(send_statuses(&b.events()), [(9, flushed)]);
    }
}

#[test]
fn read_stores_its_responses_and_completes() {
    let mut b = bench();
    b.post(1, WRITE, 8);
    b.post(2, READ, 300);
    let requests = b.all();
    assert_eq!(opcodes_and_psns(&requests)[1], (opcode::RC_READ_REQUEST, psn(1)));
    b.deliver(read_response(opcode::RC_READ_RESPONSE_FIRST, 1, 4, 256));
    assert_eq!(send_statuses(&b.events()), [(1, CompletionStatus::Success)]);
    b.deliver(read_response(opcode::RC_READ_RESPONSE_LAST, 2, 5, 44));
    assert_eq!(send_statuses(&b.events()), [(2, CompletionStatus::Success)]);
    assert_eq!(b.bytes(0, 256), [4; 256]);
    assert_eq!(b.bytes(256, 44), [5; 44]);
}

#[test]
fn lost_read_response_is_asked_for_from_where_it_is_missing() {
    let mut b = bench();
    b.post(1, READ, 1000);
    b.post(2, WRITE, 8);
    b.all();
    b.deliver(read_response(opcode::RC_READ_RESPONSE_FIRST, 0, 4, 256));
    b.deliver(read_response(opcode::RC_READ_RESPONSE_MIDDLE, 2, 4, 256));
    b.deliver(read_response(opcode::RC_READ_RESPONSE_LAST, 3, 4, 232));
    let again = b.all();
    assert_eq!(
        opcodes_and_psns(&again),
        [(opcode::RC_READ_REQUEST, psn(1)), (opcode::RC_WRITE_ONLY, psn(4))]
    );
    let reth = Reth {
        va: REMOTE.va + 256,
        rkey: REMOTE.rkey,
        dma_len: 744,
    };
    assert_eq!(again[0].reth, Some(reth));
    assert_eq!(b.qp.counters().implied_naks, 2);
    assert_eq!(b.bytes(256, 8), [0; 8], "what came too early was not stored");
}

#[test]
fn acknowledgement_beyond_a_read_without_response_is_an_implied_nak() {
    for late in [ack(1, GOOD, 2), ack(1, Syndrome::Nak(NakCode::RemoteAccess), 1)] {
        let mut b = bench();
        b.post(1, READ, 8);
        b.post(2, WRITE, 8);
        b.all();
        b.deliver(late);
        assert_eq!(b.events(), []);
        assert_eq!(opcodes_and_psns(&b.all())[0], (opcode::RC_READ_REQUEST, psn(0)));
    }
}

#[test]
fn answers_that_do_not_fit_are_bad_responses() {
    let atomic = |n| {
        let mut packet = read_response(opcode::RC_ATOMIC_ACKNOWLEDGE, n, 0, 0);
        packet.atomic_ack = Some(1);
        packet
    };
    for wrong in [
        read_response(opcode::RC_READ_RESPONSE_ONLY, 0, 1, 256),
        read_response(opcode::RC_READ_RESPONSE_FIRST, 0, 1, 255),
        read_response(opcode::RC_READ_RESPONSE_FIRST, 0, 1, 300),
        atomic(0),
    ] {
        let mut b = bench();
        b.post(1, READ, 300);
        b.all();
        b.deliver(wrong);
        assert_eq!(send_statuses(&b.events()), [(1, CompletionStatus::BadResponse)]);
        assert_eq!(b.bytes(0, 8), [0; 8]);
    }
    // A READ response where a WRITE waits for its ACK.
    let mut b = bench();
    b.post(1, WRITE, 8);
    b.all();
    b.deliver(read_response(opcode::RC_READ_RESPONSE_ONLY, 0, 1, 8));
    assert_eq!(send_statuses(&b.events()), [(1, CompletionStatus::BadResponse)]);
}

#[test]
fn t12_atomic_result_lands_in_host_order() {
    let mut b = bench();
    let op = SendOp::CompareSwap {
        remote: REMOTE,
        compare: 7,
        swap: 8,
    };
    b.post(1, op, 8);
    let request = b.all().remove(0);
    let header = request.atomic_eth.expect("an AtomicETH");
    assert_eq!((header.compare, header.swap_add, header.va), (7, 8, REMOTE.va));
    let mut answer = read_response(opcode::RC_ATOMIC_ACKNOWLEDGE, 0, 0, 0);
    answer.atomic_ack = Some(0x0102_0304_0506_0708);
    b.deliver(answer);
    assert_eq!(b.bytes(0, 8), 0x0102_0304_0506_0708_u64.to_le_bytes());
    assert_eq!(send_statuses(&b.events()), [(1, CompletionStatus::Success)]);
}

#[test]
fn local_memory_that_cannot_be_read_fails_in_its_turn() {
    for (unplugged, status) in [
        (false, CompletionStatus::LocalProtection),
        (true, CompletionStatus::LocalQpOperation),
    ] {
        let mut b = bench();
        b.mem.regions.insert(
            9,
            Region {
                unplugged,
                ..Region::new(0, 8 * usize::from(unplugged))
            },
        );
        b.post(1, WRITE, 8);
        let mut bad = send(2, WRITE, 8);
        bad.data = SendData::Sges(vec![Sge {
            addr: 0,
            len: 8,
            lkey: 9,
        }]);
        b.qp.post_send(bad);
        b.post(3, WRITE, 8);
        assert_eq!(b.all().len(), 1, "nothing is sent past it");
        assert_eq!(b.events(), []);
        b.deliver(ack(0, GOOD, 1));
        assert_eq!(
            send_statuses(&b.events()),
            [
                (1, CompletionStatus::Success),
                (2, status),
                (3, CompletionStatus::Flushed)
            ]
        );
    }
}

#[test]
fn fetched_data_that_cannot_be_stored_fails() {
    let mut b = bench();
    b.mem.regions.get_mut(&KEY).expect("the region").local_write = false;
    b.post(1, READ, 8);
    b.all();
    b.deliver(read_response(opcode::RC_READ_RESPONSE_ONLY, 0, 1, 8));
    assert_eq!(
        send_statuses(&b.events()),
        [(1, CompletionStatus::LocalProtection)]
    );
}

#[test]
fn work_that_makes_no_sense_is_refused_in_its_turn() {
    let huge = SendData::Sges(vec![sge(0, 1 << 31), sge(0, 1)]);
    let inline = SendData::Inline(Payload::from_vec(vec![0; 8]));
    let add = SendOp::FetchAdd {
        remote: REMOTE,
        add: 1,
    };
    let cases = [
        (WRITE, huge, 2, CompletionStatus::LocalLength),
        (READ, inline, 2, CompletionStatus::LocalQpOperation),
        (
            add,
            SendData::Sges(vec![sge(0, 4)]),
            2,
            CompletionStatus::LocalLength,
        ),
        (
            READ,
            SendData::Sges(vec![sge(0, 4)]),
            0,
            CompletionStatus::LocalQpOperation,
        ),
    ];
    for (op, data, max_rd_atomic, status) in cases {
        let mut b = bench_with(QpConfig {
            max_rd_atomic,
            ..config()
        });
        b.post(1, WRITE, 8);
        let mut work = send(2, op, 0);
        work.data = data;
        b.qp.post_send(work);
        assert_eq!(b.all().len(), 1);
        b.deliver(ack(0, GOOD, 1));
        let ok = CompletionStatus::Success;
        assert_eq!(send_statuses(&b.events()), [(1, ok), (2, status)]);
    }
}

#[test]
fn work_without_packets_completes_in_its_turn() {
    let mut b = bench();
    let ok = CompletionStatus::Success;
    b.post(1, SendOp::Nop, 0);
    assert_eq!(send_statuses(&b.events()), [(1, ok)]);
    b.post(2, WRITE, 8);
    b.post(3, SendOp::Nop, 0);
    b.post(4, WRITE, 8);
    assert_eq!(b.all().len(), 2);
    assert_eq!(b.events(), []);
    b.deliver(ack(0, GOOD, 1));
    assert_eq!(send_statuses(&b.events()), [(2, ok), (3, ok)]);
    b.deliver(ack(1, GOOD, 2));
    assert_eq!(send_statuses(&b.events()), [(4, ok)]);
}

#[test]
fn timeout_sends_again_and_progress_restores_the_retries() {
    let mut b = bench_with(QpConfig {
        retry_count: 1,
        ..config()
    });
    b.post(1, WRITE, 512);
    assert_eq!(b.all().len(), 2);
    let timeout = super::timer::ack_timeout(14).expect("a time");
    assert_eq!(b.qp.poll_timeout(), Some(Nanos::ZERO + timeout));
    b.qp.handle_timeout(Nanos::ZERO + timeout / 2);
    assert!(b.all().is_empty(), "too early");
    b.expire();
    assert_eq!(opcodes_and_psns(&b.all())[0], (opcode::RC_WRITE_FIRST, psn(0)));
    b.deliver(ack(0, GOOD, 0));
    b.expire();
    assert_eq!(opcodes_and_psns(&b.all()), [(opcode::RC_WRITE_LAST, psn(1))]);
    b.expire();
    assert_eq!(
        send_statuses(&b.events()),
        [(1, CompletionStatus::TransportRetryExceeded)]
    );
    assert_eq!(b.qp.counters().timeouts, 3);
}

#[test]
fn late_acknowledgement_after_going_back_completes_without_sending_again() {
    let mut b = bench();
    b.post(1, READ, 8);
    b.post(2, WRITE, 8);
    b.all();
    b.expire();
    b.deliver(read_response(opcode::RC_READ_RESPONSE_ONLY, 0, 1, 8));
    b.deliver(ack(1, GOOD, 2));
    let ok = CompletionStatus::Success;
    assert_eq!(send_statuses(&b.events()), [(1, ok), (2, ok)]);
    assert!(b.all().is_empty());
    assert_eq!(b.qp.poll_timeout(), None);
    // The READ does not count as outstanding any more.
    b.post(3, READ, 8);
    b.post(4, READ, 8);
    assert_eq!(b.all().len(), 2);
}

#[test]
fn rnr_nak_holds_everything_until_its_time() {
    let mut b = bench();
    b.post(1, SendOp::Send, 8);
    b.post(2, WRITE, 8);
    b.all();
    b.deliver(ack(0, Syndrome::Rnr { timer: 1 }, 0));
    b.deliver(ack(0, Syndrome::Rnr { timer: 1 }, 0));
    assert!(b.all().is_empty());
    assert_eq!(b.qp.poll_timeout(), Some(Nanos(10_000)));
    b.expire();
    assert_eq!(
        opcodes_and_psns(&b.all()),
        [(opcode::RC_SEND_ONLY, psn(0)), (opcode::RC_WRITE_ONLY, psn(1))]
    );
}

#[test]
fn depth_of_reads_and_atomics_is_kept() {
    let mut b = bench();
    let add = SendOp::FetchAdd {
        remote: REMOTE,
        add: 1,
    };
    for (id, op) in [READ, add, READ, WRITE].into_iter().enumerate() {
        b.post(id as u64, op, 8);
    }
    assert_eq!(b.all().len(), 2);
    b.deliver(read_response(opcode::RC_READ_RESPONSE_ONLY, 0, 1, 8));
    assert_eq!(
        opcodes_and_psns(&b.all()),
        [(opcode::RC_READ_REQUEST, psn(2)), (opcode::RC_WRITE_ONLY, psn(3))]
    );
}

#[test]
fn beyond_the_credits_one_packet_is_tried() {
    let mut b = bench();
    for id in 0..4 {
        b.post(id, SendOp::Send, 300);
    }
    b.all();
    b.deliver(ack(1, Syndrome::Ack { credits: Some(3) }, 1));
    for id in 4..6 {
        b.post(id, SendOp::Send, 300);
    }
    b.post(6, WRITE, 8);
    assert!(b.all().is_empty(), "others are out");
    b.deliver(ack(7, Syndrome::Ack { credits: Some(0) }, 4));
    let probe = b.all();
    assert_eq!(opcodes_and_psns(&probe), [(opcode::RC_SEND_FIRST, psn(8))]);
    assert!(probe[0].bth.ack_req);
    // It was taken: the message may go on, and no other.
    b.deliver(ack(8, Syndrome::Ack { credits: Some(0) }, 4));
    assert_eq!(opcodes_and_psns(&b.all()), [(opcode::RC_SEND_LAST, psn(9))]);
    // More receives were posted, and an ACK says so unasked.
    b.deliver(ack(9, Syndrome::Ack { credits: Some(0) }, 5));
    assert_eq!(b.all().len(), 1);
    b.deliver(ack(10, GOOD, 5));
    assert_eq!(b.all().len(), 2, "no limit any more");
}

#[test]
fn sends_before_rts_are_flushed_and_responses_ignored() {
    let mut b = bench();
    b.qp = RcQp::new(config());
    assert_eq!(b.qp.send_room(), 0);
    b.post(1, WRITE, 8);
    assert_eq!(send_statuses(&b.events()), [(1, CompletionStatus::Flushed)]);
    b.deliver(ack(0, GOOD, 1));
    assert_eq!(b.events(), []);
}

#[test]
fn longest_read_takes_half_of_the_psn_space() {
    let mut b = bench();
    let mut work = send(1, READ, 0);
    work.data = SendData::Sges(vec![sge(0, 1 << 31)]);
    b.qp.post_send(work);
    b.post(2, READ, 8);
    assert_eq!(b.all().len(), 1, "another would make PSNs ambiguous");
    assert_eq!(b.qp.next_send_psn(), psn(1 << 23));
}

#[test]
fn mtu_that_does_not_exist_counts_as_the_next_lower() {
    for (asked, used) in [(0, 256), (1500, 1024), (4096, 4096), (u32::MAX, 4096)] {
        let b = bench_with(QpConfig {
            path_mtu: asked,
            ..config()
        });
        assert_eq!(b.qp.config().path_mtu, used);
    }
}
