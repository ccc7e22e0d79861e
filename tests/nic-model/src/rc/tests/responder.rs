//! What the responder does with requests.

use super::*;

#[test]
fn request_in_order_is_executed_and_acknowledged_when_asked() {
    let mut b = bench();
    let mut quiet = write_only(0, 0xaa, 8);
    quiet.bth.ack_req = false;
    assert_eq!(b.answer(quiet), None);
    assert_eq!(b.bytes(0, 8), [0xaa; 8]);
    b.deliver(write_only(1, 0xbb, 8));
    let answer = b.next().expect("an ACK");
    assert_eq!(syndrome(&answer), (psn(1), GOOD));
    assert_eq!(answer.aeth.map(|a| a.msn), Some(2));
    assert_eq!((answer.bth.dest_qp, answer.bth.pkey), (0x1234, 0xffff));
    assert_eq!(b.qp.next_recv_psn(), psn(2));
}

#[test]
fn acknowledgements_coalesce_until_polled() {
    let mut b = bench();
    for n in 0..5 {
        b.deliver(write_only(n, 1, 8));
    }
    assert_eq!(b.all().iter().map(syndrome).collect::<Vec<_>>(), [(psn(4), GOOD)]);
}

#[test]
fn msn_counts_messages_and_wraps() {
    let mut b = bench();
    b.qp.responder.msn = 0xff_ffff;
    let first = with_reth(packet(opcode::RC_WRITE_FIRST, 0, 1, MTU), 0, 2 * MTU);
    b.deliver(first);
    assert_eq!(b.next().and_then(|p| p.aeth).map(|a| a.msn), Some(0xff_ffff));
    b.deliver(packet(opcode::RC_WRITE_LAST, 1, 1, MTU));
    assert_eq!(b.next().and_then(|p| p.aeth).map(|a| a.msn), Some(0));
}

#[test]
fn gap_is_told_once_and_again_when_there_is_another() {
    let mut b = bench();
    b.deliver(write_only(0, 1, 8));
    b.all();
    for n in [2, 3, 4] {
        b.deliver(write_only(n, 2, 8));
    }
    assert_eq!(
        b.all().iter().map(syndrome).collect::<Vec<_>>(),
        [(psn(1), Syndrome::Nak(NakCode::Sequence))]
    );
    assert_eq!(b.answer(write_only(5, 2, 8)), None);
    assert_eq!(b.answer(write_only(1, 3, 8)), Some((psn(1), GOOD)));
    assert_eq!(b.answer(write_only(3, 2, 8)), nak(2, NakCode::Sequence));
    assert_eq!(b.qp.counters().out_of_sequence, 5);
    assert_eq!(b.bytes(0, 8), [3; 8], "what came behind a gap was not executed");
}

#[test]
fn nak_that_has_not_left_asks_for_what_is_missing_now() {
    let mut b = bench();
    b.deliver(write_only(1, 1, 8));
    b.deliver(write_only(0, 1, 8));
    // 0 filled the gap; 1 was dropped and must come again.
    assert_eq!(b.next().map(|p| syndrome(&p)), nak(1, NakCode::Sequence));
    b.deliver(write_only(2, 1, 8));
    assert_eq!(b.next().map(|p| syndrome(&p)), None, "it is told once");
    // A gap that closes by itself needs no NAK.
    let mut b = bench();
    b.deliver(write_only(1, 1, 8));
    b.deliver(write_only(0, 1, 8));
    b.deliver(write_only(1, 1, 8));
    assert_eq!(b.next().map(|p| syndrome(&p)), Some((psn(1), GOOD)));
}

#[test]
fn duplicate_write_is_acknowledged_and_not_executed() {
    let mut b = bench();
    b.deliver(write_only(0, 1, 8));
    b.deliver(write_only(1, 2, 8));
    b.all();
    assert_eq!(b.answer(write_only(0, 9, 8)), Some((psn(1), GOOD)));
    assert_eq!(b.bytes(0, 8), [2; 8]);
    assert_eq!(b.qp.counters().duplicates, 1);
}

#[test]
fn duplicate_write_before_a_read_is_acknowledged_without_the_reads_psns() {
    let mut b = bench();
    b.deliver(write_only(0, 1, 8));
    b.deliver(read_request(1, 0, 8));
    b.all();
    assert_eq!(b.answer(write_only(0, 9, 8)), Some((psn(0), GOOD)));
}

#[test]
fn read_is_answered_in_segments_with_its_psns() {
    let mut b = bench();
    b.mem.fill(KEY, VA + 16, &[7; 600]);
    b.deliver(read_request(0, 16, 600));
    b.deliver(read_request(3, 16, 0));
    let packets = b.all();
    assert_eq!(
        opcodes_and_psns(&packets),
        [
            (opcode::RC_READ_RESPONSE_FIRST, psn(0)),
            (opcode::RC_READ_RESPONSE_MIDDLE, psn(1)),
            (opcode::RC_READ_RESPONSE_LAST, psn(2)),
            (opcode::RC_READ_RESPONSE_ONLY, psn(3)),
        ]
    );
    let msns: Vec<_> = packets.iter().map(|p| p.aeth.map(|a| a.msn)).collect();
    assert_eq!(msns, [Some(1), None, Some(1), Some(2)]);
    let lens: Vec<_> = packets.iter().map(|p| p.payload.len()).collect();
    assert_eq!(lens, [256, 256, 88, 0]);
    assert!(packets[2].payload.to_vec().is_ok_and(|v| v == [7; 88]));
    assert_eq!(b.qp.next_recv_psn(), psn(4));
}

#[test]
fn acknowledgement_waits_for_read_responses_before_it() {
    let mut b = bench();
    b.deliver(write_only(0, 1, 8));
    b.deliver(read_request(1, 0, 600));
    b.deliver(write_only(4, 1, 8));
    let psns: Vec<_> = b.all().iter().map(|p| (p.bth.opcode, p.bth.psn)).collect();
    // The first WRITE is acknowledged by the READ's responses.
    assert_eq!(
        psns,
        [
            (opcode::RC_READ_RESPONSE_FIRST, psn(1)),
            (opcode::RC_READ_RESPONSE_MIDDLE, psn(2)),
            (opcode::RC_READ_RESPONSE_LAST, psn(3)),
            (opcode::RC_ACKNOWLEDGE, psn(4)),
        ]
    );
}

#[test]
fn answer_to_a_later_request_stands_for_the_acknowledgement() {
    let mut b = bench();
    b.deliver(write_only(0, 1, 8));
    b.deliver(fetch_add(1, 0, 1));
    assert_eq!(
        opcodes_and_psns(&b.all()),
        [(opcode::RC_ATOMIC_ACKNOWLEDGE, psn(1))]
    );
}

#[test]
fn duplicate_read_request_is_executed_again_also_from_the_middle() {
    let mut b = bench();
    b.deliver(read_request(0, 0, 600));
    b.deliver(write_only(3, 5, 8));
    b.all();
    b.mem.fill(KEY, VA, &[9; 600]);
    b.deliver(read_request(1, 256, 344));
    let packets = b.all();
    assert_eq!(
        opcodes_and_psns(&packets),
        [
            (opcode::RC_READ_RESPONSE_FIRST, psn(1)),
            (opcode::RC_READ_RESPONSE_LAST, psn(2)),
        ]
    );
    assert!(packets[0].payload.to_vec().is_ok_and(|v| v == [9; 256]));
    assert_eq!(b.qp.next_recv_psn(), psn(4));
}

#[test]
fn read_response_on_its_way_starts_again_where_it_is_asked_to() {
    let mut b = bench();
    b.deliver(read_request(0, 0, 1024));
    b.next();
    b.next();
    b.deliver(read_request(1, 256, 768));
    assert_eq!(
        opcodes_and_psns(&b.all()),
        [
            (opcode::RC_READ_RESPONSE_FIRST, psn(1)),
            (opcode::RC_READ_RESPONSE_MIDDLE, psn(2)),
            (opcode::RC_READ_RESPONSE_LAST, psn(3)),
        ]
    );
}

#[test]
fn replay_comes_before_answers_to_later_requests() {
    let mut b = bench();
    b.deliver(read_request(0, 0, 8));
    b.all();
    b.deliver(fetch_add(1, 0, 1));
    b.deliver(read_request(0, 0, 8));
    assert_eq!(
        opcodes_and_psns(&b.all()),
        [
            (opcode::RC_READ_RESPONSE_ONLY, psn(0)),
            (opcode::RC_ATOMIC_ACKNOWLEDGE, psn(1)),
        ]
    );
}

#[test]
fn duplicate_read_that_reaches_beyond_what_was_executed_is_dropped() {
    let mut b = bench();
    b.deliver(read_request(0, 0, 8));
    b.all();
    b.deliver(read_request(0, 0, 600));
    // Nor is one executed whose memory is not ours to give.
    let mut stranger = read_request(0, 0, 8);
    stranger.reth.as_mut().expect("a RETH").rkey = 1;
    b.deliver(stranger);
    assert!(b.all().is_empty());
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn duplicate_atomic_is_answered_from_its_saved_result() {
    let mut b = bench();
    for n in 0..3 {
        b.deliver(fetch_add(n, 0, 10));
        b.all();
    }
    assert_eq!(b.mem.atomics_done, 3);
    b.deliver(fetch_add(2, 0, 10));
    let replay = b.all();
    assert_eq!(
        replay.iter().map(|p| p.atomic_ack).collect::<Vec<_>>(),
        [Some(20)]
    );
    assert_eq!(replay[0].aeth.map(|a| a.msn), Some(3));
    // Two results are kept, as many as the peer may have outstanding.
    b.deliver(fetch_add(0, 0, 10));
    assert!(b.all().is_empty());
    assert_eq!(b.mem.atomics_done, 3);
}

#[test]
fn compare_and_swap_swaps_only_when_equal() {
    let mut b = bench();
    let cas = |n, compare, swap| {
        let mut packet = fetch_add(n, 8, swap);
        packet.bth.opcode = opcode::RC_COMPARE_SWAP;
        packet.atomic_eth.as_mut().expect("an AtomicETH").compare = compare;
        packet
    };
    b.deliver(cas(0, 0, 5));
    b.deliver(cas(1, 4, 6));
    let originals: Vec<_> = b.all().iter().map(|p| p.atomic_ack).collect();
    assert_eq!(originals, [Some(0), Some(5)]);
    assert_eq!(b.bytes(8, 8), 5u64.to_le_bytes());
}

#[test]
fn packets_out_of_message_order_are_invalid() {
    let send_first = || packet(opcode::RC_SEND_FIRST, 0, 1, MTU);
    let cases: [(Option<Packet>, Packet); 6] = [
        (None, packet(opcode::RC_SEND_MIDDLE, 0, 1, MTU)),
        (None, packet(opcode::RC_WRITE_LAST, 0, 1, 8)),
        (Some(send_first()), packet(opcode::RC_SEND_ONLY, 1, 1, 8)),
        (Some(send_first()), packet(opcode::RC_WRITE_MIDDLE, 1, 1, MTU)),
        (Some(send_first()), read_request(1, 0, 8)),
        (None, packet(0x15, 0, 0, 0)),
    ];
    for (before, wrong) in cases {
        let mut b = bench();
        b.mem.post_recv(3, sge(0, 4096));
        let started = before.is_some();
        if let Some(before) = before {
            b.deliver(before);
            b.all();
        }
        let n = u32::from(started);
        assert_eq!(
            b.answer(wrong.clone()),
            nak(n, NakCode::InvalidRequest),
            "{wrong:?}"
        );
        let events = b.events();
        if started {
            assert_eq!(
                recv_statuses(&events),
                [(3, CompletionStatus::RemoteInvalidRequest)]
            );
        } else {
            assert_eq!(events[0], Event::Async(AsyncEvent::InvalidRequest));
        }
        assert_eq!(events.last(), Some(&Event::EnteredError));
        assert_eq!(b.qp.state(), QpState::Err);
        assert_eq!(b.answer(write_only(n, 1, 8)), None, "a QP in error is silent");
    }
}

#[test]
fn operations_that_are_not_enabled_are_invalid() {
    let closed = QpConfig {
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
        ..config()
    };
    let no_atomics = QpConfig {
        atomic_mode: AtomicMode::None,
        ..config()
    };
    for (config, request) in [
        (closed.clone(), write_only(0, 1, 8)),
        (closed.clone(), read_request(0, 0, 8)),
        (closed, fetch_add(0, 0, 1)),
        (no_atomics, fetch_add(0, 0, 1)),
    ] {
        let mut b = bench_with(config);
        assert_eq!(b.answer(request), nak(0, NakCode::InvalidRequest));
        assert_eq!(b.bytes(0, 8), [0; 8]);
    }
}

#[test]
fn lengths_must_fit_position_mtu_and_reth() {
    let first = |len, dma_len| with_reth(packet(opcode::RC_WRITE_FIRST, 0, 1, len), 0, dma_len);
    let wrong = [
        vec![first(MTU - 1, 600)],
        vec![first(MTU + 1, 600)],
        vec![first(MTU, MTU)],
        vec![first(MTU, (1 << 31) + 1)],
        vec![with_reth(
            packet(opcode::RC_WRITE_ONLY, 0, 1, MTU + 1),
            0,
            MTU + 1,
        )],
        vec![with_reth(packet(opcode::RC_WRITE_ONLY, 0, 1, 8), 0, 9)],
        vec![read_request(0, 0, (1 << 31) + 1)],
        vec![first(MTU, 600), packet(opcode::RC_WRITE_LAST, 1, 1, 88)],
        vec![first(MTU, 300), packet(opcode::RC_WRITE_MIDDLE, 1, 1, MTU)],
        vec![first(MTU, 600), packet(opcode::RC_WRITE_MIDDLE, 1, 1, 88)],
        vec![
            packet(opcode::RC_SEND_FIRST, 0, 1, MTU),
            packet(opcode::RC_SEND_LAST, 1, 1, 0),
        ],
    ];
    for sequence in wrong {
        let mut b = bench();
        b.mem.post_recv(3, sge(0x1000, 4096));
        let n = sequence.len() as u32 - 1;
        for packet in sequence.iter().cloned() {
            b.all();
            b.deliver(packet);
        }
        let answers: Vec<_> = b.all().iter().map(syndrome).collect();
        assert_eq!(
            answers,
            Vec::from_iter(nak(n, NakCode::InvalidRequest)),
            "{sequence:?}"
        );
    }
}

#[test]
fn memory_key_is_checked_for_the_whole_operation_at_its_start() {
    let mut stranger = write_only(0, 1, 8);
    stranger.reth.as_mut().expect("a RETH").rkey = 1;
    let end = MEMORY as u64;
    let first_of_long = with_reth(packet(opcode::RC_WRITE_FIRST, 0, 1, MTU), end - 300, 301);
    let mut wraps = write_only(0, 1, 8);
    wraps.reth.as_mut().expect("a RETH").va = u64::MAX - 3;
    for request in [
        stranger,
        first_of_long,
        wraps,
        read_request(0, end - 8, 9),
        fetch_add(0, end, 1),
    ] {
        let mut b = bench();
        assert_eq!(
            b.answer(request.clone()),
            nak(0, NakCode::RemoteAccess),
            "{request:?}"
        );
        assert!(b.bytes(0, end).iter().all(|&x| x == 0));
        assert_eq!(b.events()[0], Event::Async(AsyncEvent::AccessError));
    }
}

#[test]
fn empty_write_and_read_ask_for_no_key() {
    let mut b = bench();
    for (n, mut request) in [write_only(0, 1, 0), read_request(1, 0, 0)]
        .into_iter()
        .enumerate()
    {
        let reth = request.reth.as_mut().expect("a RETH");
        (reth.rkey, reth.va) = (0xdead, u64::MAX);
        b.deliver(request);
        assert_eq!(b.all()[0].bth.psn, psn(n as u32));
    }
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn misaligned_atomic_is_invalid() {
    let mut b = bench();
    assert_eq!(b.answer(fetch_add(0, 4, 1)), nak(0, NakCode::InvalidRequest));
    assert_eq!(b.mem.atomics_done, 0);
}

#[test]
fn more_reads_than_agreed_are_invalid() {
    let mut b = bench();
    b.deliver(read_request(0, 0, 600));
    b.deliver(read_request(3, 0, 600));
    b.deliver(read_request(6, 0, 600));
    let packets = b.all();
    assert_eq!(packets.len(), 7, "what was accepted is answered first");
    assert_eq!(packets.last().map(syndrome), nak(6, NakCode::InvalidRequest));
}

#[test]
fn send_takes_one_receive_and_reports_it() {
    let mut b = bench();
    b.mem.post_recv(3, sge(0, 600));
    b.deliver(packet(opcode::RC_SEND_FIRST, 0, 1, MTU));
    let mut last = packet(opcode::RC_SEND_LAST_IMM, 1, 2, 10);
    last.immediate = Some(0x0102_0304);
    last.bth.solicited = true;
    b.deliver(last);
    assert_eq!(
        b.events(),
        [Event::Recv(RecvCompletion {
            id: 3,
            status: CompletionStatus::Success,
            kind: RecvKind::SendImm,
            byte_len: 266,
            imm: Some(0x0102_0304),
            invalidated_rkey: None,
            solicited: true,
        })]
    );
    assert_eq!(b.bytes(0, 256), [1; 256]);
    assert_eq!(b.bytes(256, 10), [2; 10]);
}

#[test]
fn send_longer_than_its_receive_is_a_local_length_error() {
    let mut b = bench();
    b.mem.post_recv(3, sge(0, 300));
    b.deliver(packet(opcode::RC_SEND_FIRST, 0, 1, MTU));
    b.all();
    assert_eq!(
        b.answer(packet(opcode::RC_SEND_LAST, 1, 2, 45)),
        nak(1, NakCode::InvalidRequest)
    );
    assert_eq!(recv_statuses(&b.events()), [(3, CompletionStatus::LocalLength)]);
    assert_eq!(b.bytes(256, 64), [0; 64]);
}

#[test]
fn receive_into_memory_that_is_not_ours_is_a_local_protection_error() {
    let mut b = bench();
    b.mem.post_recv(3, sge(MEMORY as u64 - 4, 8));
    assert_eq!(
        b.answer(packet(opcode::RC_SEND_ONLY, 0, 2, 8)),
        nak(0, NakCode::RemoteOperation)
    );
    assert_eq!(
        recv_statuses(&b.events()),
        [(3, CompletionStatus::LocalProtection)]
    );
}

#[test]
fn receive_that_cannot_be_read_is_catastrophic() {
    let mut b = bench();
    b.mem.receive_fault = true;
    assert_eq!(
        b.answer(packet(opcode::RC_SEND_ONLY, 0, 2, 8)),
        nak(0, NakCode::RemoteOperation)
    );
    assert_eq!(
        b.events(),
        [Event::Async(AsyncEvent::Catastrophic), Event::EnteredError]
    );
}

#[test]
fn send_without_a_receive_gets_rnr_and_what_follows_gets_nothing() {
    let mut b = bench();
    let rnr = Some((psn(0), Syndrome::Rnr { timer: 12 }));
    assert_eq!(b.answer(packet(opcode::RC_SEND_ONLY, 0, 1, 8)), rnr);
    assert_eq!(b.answer(write_only(1, 1, 8)), None);
    assert_eq!(b.answer(packet(opcode::RC_SEND_ONLY, 0, 1, 8)), rnr);
    b.mem.post_recv(3, sge(0, 8));
    assert_eq!(
        b.answer(packet(opcode::RC_SEND_ONLY, 0, 1, 8)),
        Some((psn(0), GOOD))
    );
    assert_eq!(b.qp.counters().rnr_naks_sent, 2);
}

#[test]
fn write_with_immediate_that_waits_for_a_receive_resumes_with_its_last_packet() {
    let mut b = bench();
    b.deliver(with_reth(packet(opcode::RC_WRITE_FIRST, 0, 1, MTU), 0, 300));
    b.all();
    let last = || Packet {
        immediate: Some(5),
        ..packet(opcode::RC_WRITE_LAST_IMM, 1, 2, 44)
    };
    assert_eq!(b.answer(last()), Some((psn(1), Syndrome::Rnr { timer: 12 })));
    assert_eq!(b.bytes(256, 44), [0; 44]);
    b.mem.post_recv(3, Sge::default());
    assert_eq!(b.answer(last()), Some((psn(1), GOOD)));
    assert_eq!(b.bytes(256, 44), [2; 44]);
    let Some(Event::Recv(done)) = b.events().pop() else {
        panic!("no receive completion");
    };
    assert_eq!(
        (done.byte_len, done.imm, done.kind),
        (300, Some(5), RecvKind::WriteImm)
    );
}

#[test]
fn send_with_invalidate_invalidates_or_breaks_the_qp() {
    let mut b = bench();
    b.mem.regions.insert(9, Region::new(0, 8));
    let send = |n| {
        let mut packet = packet(opcode::RC_SEND_ONLY_INV, n, 1, 8);
        packet.invalidate_rkey = Some(9);
        packet
    };
    b.mem.post_recv(3, sge(0, 8));
    b.mem.post_recv(4, sge(0, 8));
    assert_eq!(b.answer(send(0)), Some((psn(0), GOOD)));
    assert_eq!(b.mem.invalidated, [9]);
    let Some(Event::Recv(done)) = b.events().pop() else {
        panic!("no receive completion");
    };
    assert_eq!(
        (done.kind, done.invalidated_rkey),
        (RecvKind::SendInvalidate, Some(9))
    );
    assert_eq!(b.answer(send(1)), nak(1, NakCode::RemoteAccess));
    assert_eq!(recv_statuses(&b.events()), [(4, CompletionStatus::LocalAccess)]);
}

#[test]
fn memory_that_goes_away_during_a_read_ends_it_with_a_nak_in_its_place() {
    for (unplugged, code, event) in [
        (true, NakCode::RemoteOperation, AsyncEvent::Catastrophic),
        (false, NakCode::RemoteAccess, AsyncEvent::AccessError),
    ] {
        let mut b = bench();
        b.deliver(read_request(0, 0, 600));
        assert_eq!(b.next().map(|p| p.bth.psn), Some(psn(0)));
        let region = b.mem.regions.get_mut(&KEY).expect("the region");
        (region.unplugged, region.remote_read) = (unplugged, unplugged);
        assert_eq!(
            b.all().iter().map(syndrome).collect::<Vec<_>>(),
            Vec::from_iter(nak(1, code))
        );
        assert_eq!(b.events(), [Event::Async(event), Event::EnteredError]);
    }
}

#[test]
fn fatal_request_flushes_sends_and_is_still_answered() {
    let mut b = bench();
    b.post(1, SendOp::Write { remote: REMOTE }, 8);
    b.post(2, SendOp::Nop, 0);
    b.deliver(read_request(0, 0, 8));
    b.deliver(packet(opcode::RC_WRITE_LAST, 1, 1, 8));
    let events = b.events();
    assert_eq!(
        send_statuses(&events),
        [(1, CompletionStatus::Flushed), (2, CompletionStatus::Flushed)]
    );
    assert_eq!(events.first(), Some(&Event::Async(AsyncEvent::InvalidRequest)));
    assert_eq!(events.last(), Some(&Event::EnteredError));
    let packets = b.all();
    assert_eq!(packets[0].bth.opcode, opcode::RC_READ_RESPONSE_ONLY);
    assert_eq!(
        packets[1..].iter().map(syndrome).collect::<Vec<_>>(),
        Vec::from_iter(nak(1, NakCode::InvalidRequest))
    );
}

#[test]
fn receives_are_flushed_in_order_from_the_one_in_use_on() {
    let mut b = bench();
    for id in 0..4 {
        b.mem.post_recv(id, sge(0, 600));
    }
    b.deliver(packet(opcode::RC_SEND_FIRST, 0, 1, MTU));
    b.qp.to_error();
    assert_eq!(b.qp.flush_receives(&mut b.mem, 2), 2);
    assert_eq!(b.qp.flush_receives(&mut b.mem, 2), 1);
    let flushed: Vec<_> = (0..4).map(|id| (id, CompletionStatus::Flushed)).collect();
    assert_eq!(recv_statuses(&b.events()), flushed);
    assert!(b.all().is_empty());
}

#[test]
fn foreign_partition_and_version_are_dropped() {
    let mut b = bench_with(QpConfig {
        pkey: 0x7fff,
        ..config()
    });
    for (pkey, tver, taken) in [
        (0xfffe, 0, false),
        (0x7fff, 0, false),
        (0xffff, 1, false),
        (0xffff, 0, true),
    ] {
        let mut request = write_only(0, 1, 8);
        (request.bth.pkey, request.bth.tver) = (pkey, tver);
        assert_eq!(b.answer(request).is_some(), taken, "{pkey:#x} {tver}");
    }
    assert_eq!(b.qp.counters().dropped, 3);
}

#[test]
fn first_packet_in_rtr_establishes_communication_once() {
    let mut b = bench();
    b.qp = RcQp::new(config());
    b.deliver(ack(0, GOOD, 1));
    assert_eq!(b.events(), []);
    assert_eq!(b.answer(write_only(0, 1, 8)), Some((psn(0), GOOD)));
    b.deliver(write_only(1, 1, 8));
    assert_eq!(b.events(), [Event::Async(AsyncEvent::CommunicationEstablished)]);
    b.qp.to_rts(config());
    assert_eq!(b.qp.next_recv_psn(), psn(2), "the receive side goes on");
}
