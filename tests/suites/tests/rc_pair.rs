//! Two RC transports joined by a bad link under virtual time.

use std::collections::HashMap;
use std::time::Duration;

use ferroce_nic_model::clock::Nanos;
use ferroce_nic_model::rc::testing::{Dice, Faults, Pair, Region, open_config};
use ferroce_nic_model::rc::types::{
    AsyncEvent, CompletionStatus, Event, QpConfig, QpCounters, QpState, RecvKind, Remote, SendCompletion,
    SendData, SendKind, SendOp, SendWork, Sge,
};

const LOCAL: u32 = 0x100;
const REMOTE: u32 = 0x200;
const LOCAL_VA: u64 = 0x10_0000;
const REMOTE_VA: u64 = 0x8000_0000;
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// A pair whose ends have `len` bytes of noise under each of the keys.
fn pair(configs: [QpConfig; 2], faults: Faults, len: usize) -> Pair {
    let mut pair = Pair::new(configs, faults);
    for (i, end) in pair.ends.iter_mut().enumerate() {
        let mut dice = Dice::new(i as u64 + 77);
        for (key, va) in [(LOCAL, LOCAL_VA), (REMOTE, REMOTE_VA)] {
            let region = Region {
                bytes: (0..len).map(|_| dice.roll() as u8).collect(),
                ..Region::new(va, len)
            };
            end.mem.regions.insert(key, region);
        }
    }
    pair
}

fn both(config: QpConfig) -> [QpConfig; 2] {
    [config.clone(), config]
}

fn local(offset: u64, len: u32) -> SendData {
    SendData::Sges(vec![sge(offset, len)])
}

fn sge(offset: u64, len: u32) -> Sge {
    Sge {
        addr: LOCAL_VA + offset,
        len,
        lkey: LOCAL,
    }
}

fn remote(offset: u64) -> Remote {
    Remote {
        va: REMOTE_VA + offset,
        rkey: REMOTE,
    }
}

fn write(offset: u64) -> SendOp {
    SendOp::Write {
        remote: remote(offset),
    }
}

fn read(offset: u64) -> SendOp {
    SendOp::Read {
        remote: remote(offset),
    }
}

fn work(id: u64, op: SendOp, data: SendData) -> SendWork {
    SendWork {
        id,
        op,
        data,
        fence: false,
        signaled: true,
        solicited: false,
    }
}

fn sends(pair: &Pair, end: usize) -> Vec<SendCompletion> {
    let pick = |(_, e): &(Nanos, Event)| match e {
        Event::Send(c) => Some(*c),
        _ => None,
    };
    pair.ends[end].events.iter().filter_map(pick).collect()
}

fn statuses(pair: &Pair, end: usize) -> Vec<(u64, CompletionStatus)> {
    sends(pair, end).iter().map(|c| (c.id, c.status)).collect()
}

fn all_succeed(pair: &Pair, end: usize, ids: impl Iterator<Item = u64>) {
    let expected: Vec<_> = ids.map(|id| (id, CompletionStatus::Success)).collect();
    assert_eq!(statuses(pair, end), expected);
}

fn remote_bytes(pair: &Pair, end: usize, offset: u64, len: u64) -> &[u8] {
    pair.ends[end].mem.bytes(REMOTE, REMOTE_VA + offset, len)
}

fn local_bytes(pair: &Pair, end: usize, offset: u64, len: u64) -> &[u8] {
    pair.ends[end].mem.bytes(LOCAL, LOCAL_VA + offset, len)
}

/// The first `len` bytes that end 0 wrote or read are those at end 1.
fn assert_same(pair: &Pair, len: u64) {
    assert!(local_bytes(pair, 0, 0, len) == remote_bytes(pair, 1, 0, len));
}

#[test]
fn t07_every_size_around_the_mtu_arrives_whole() {
    for mtu in MTUS {
        for len in [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, (1 << 20) + 1] {
            let mut pair = pair(both(open_config(mtu, 5)), Faults::default(), 3 << 20);
            pair.ends[1].mem.post_recv(70, sge(0, 2 << 20));
            pair.post(0, work(1, write(8), local(0, len)));
            pair.post(0, work(2, read(8), local(2 << 20, len.min(1 << 20))));
            pair.post(0, work(3, SendOp::SendImm { imm: 9 }, local(0, len)));
            pair.run_until_quiet();
            all_succeed(&pair, 0, 1..=3);
            let sent = local_bytes(&pair, 0, 0, len.into());
            let read = u64::from(len.min(1 << 20));
            assert!(
                remote_bytes(&pair, 1, 8, len.into()) == sent,
                "WRITE {len} at {mtu}"
            );
            assert!(
                local_bytes(&pair, 0, 2 << 20, read) == &sent[..read as usize],
                "READ {len} at {mtu}"
            );
            assert!(
                local_bytes(&pair, 1, 0, len.into()) == sent,
                "SEND {len} at {mtu}"
            );
            let recv = pair.ends[1].events.iter().find_map(|(_, e)| match e {
                Event::Recv(c) => Some((c.id, c.kind, c.byte_len, c.imm)),
                _ => None,
            });
            assert_eq!(recv, Some((70, RecvKind::SendImm, len, Some(9))));
        }
    }
}

#[test]
fn t07_ends_with_different_mtu_report_an_error() {
    for (ours, theirs) in [(4096, 1024), (256, 4096)] {
        for (op, status) in [
            (write(0), CompletionStatus::RemoteInvalidRequest),
            (read(0), CompletionStatus::BadResponse),
        ] {
            let configs = [open_config(ours, 1), open_config(theirs, 1)];
            let mut pair = pair(configs, Faults::default(), 1 << 20);
            pair.post(0, work(1, op, local(0, 3 * 4096)));
            pair.run_until_quiet();
            assert_eq!(statuses(&pair, 0), [(1, status)]);
            assert_eq!(pair.ends[0].qp.state(), QpState::Err);
        }
    }
}

/// READs and fenced SENDs for T04; gives how many there are.
fn t04_chain(pair: &mut Pair, reads: u64) -> u64 {
    let mut id = 0;
    for n in 0..reads {
        pair.post(0, work(id, read(n * 700), local(n * 700, 700)));
        id += 1;
        if n % 5 == 4 {
            pair.ends[1].mem.post_recv(1000 + n, sge(0, 64));
            let mut send = work(id, SendOp::Send, local(n * 700, 8));
            send.fence = true;
            pair.post(0, send);
            id += 1;
        }
    }
    id
}

#[test]
fn t04_chains_of_reads_complete_in_order_at_any_depth() {
    for depth in [16, 1] {
        for reads in [17, 33, 256] {
            let config = QpConfig {
                max_rd_atomic: depth,
                max_dest_rd_atomic: depth,
                ..open_config(256, 3)
            };
            let mut pair = pair(both(config), Faults::default(), 1 << 20);
            let count = t04_chain(&mut pair, reads);
            pair.run_until_quiet();
            all_succeed(&pair, 0, 0..count);
            assert_same(&pair, reads * 700);
            assert!(pair.healthy(), "depth {depth} was kept");
            assert_eq!(pair.ends[0].qp.counters().retransmitted, 0);
        }
    }
}

#[test]
fn t04_more_reads_than_the_responder_allows_are_an_invalid_request() {
    let configs = [4, 2].map(|depth| QpConfig {
        max_rd_atomic: depth,
        max_dest_rd_atomic: depth,
        ..open_config(256, 3)
    });
    let mut pair = pair(configs, Faults::default(), 1 << 20);
    for id in 0..4 {
        pair.post(0, work(id, read(0), local(0, 65536)));
    }
    pair.run_until_quiet();
    let statuses = statuses(&pair, 0);
    assert_eq!(statuses[0], (0, CompletionStatus::Success));
    assert_eq!(statuses[2], (2, CompletionStatus::RemoteInvalidRequest));
    assert_eq!(statuses[3], (3, CompletionStatus::Flushed));
    assert_eq!(pair.ends[1].qp.state(), QpState::Err);
}

#[test]
fn fence_holds_a_send_until_the_read_before_it_is_complete() {
    let mut pair = pair(both(open_config(1024, 3)), Faults::default(), 1 << 20);
    pair.ends[1].mem.post_recv(1, sge(0, 1024));
    pair.post(0, work(0, read(0), local(0, 1024)));
    // Sends what the READ brought.
    let mut fenced = work(1, SendOp::Send, local(0, 1024));
    fenced.fence = true;
    pair.post(0, fenced);
    pair.run_until_quiet();
    all_succeed(&pair, 0, 0..2);
    assert_eq!(local_bytes(&pair, 1, 0, 1024), remote_bytes(&pair, 1, 0, 1024));
}

#[test]
fn t05_psn_wraps_with_a_drop_at_the_wrap() {
    for lost in [0xff_ffff_u32, 0, 1] {
        for op in [write(0), read(0)] {
            let mut pair = pair(both(open_config(1024, 0xff_fff0)), Faults::default(), 1 << 20);
            let mut drops_left = 1;
            pair.filter = Some(Box::new(move |_, _, packet| {
                let hit = packet.bth.psn.get() == lost && !packet.payload.is_empty() && drops_left > 0;
                drops_left -= u32::from(hit);
                hit
            }));
            pair.post(0, work(1, op, local(0, 64 * 1024)));
            pair.run_until_quiet();
            all_succeed(&pair, 0, 1..=1);
            assert_same(&pair, 64 * 1024);
            assert!(pair.ends[0].qp.counters().retransmitted > 0);
            assert_eq!(pair.ends[0].qp.counters().timeouts, 0, "the NAK does it");
        }
    }
}

/// End 1 posts its receive only after `late`.
fn late_receive(retry: u8, timer_code: u8, late: Duration) -> Pair {
    let config = QpConfig {
        rnr_retry: retry,
        min_rnr_nak: timer_code,
        ..open_config(1024, 3)
    };
    let mut pair = pair(both(config), Faults::default(), 1 << 16);
    pair.post(0, work(1, SendOp::Send, local(0, 100)));
    pair.post(0, work(2, write(0), local(0, 100)));
    pair.run_for(late);
    pair.ends[1].mem.post_recv(7, sge(512, 100));
    pair.run_until_quiet();
    pair
}

#[test]
fn t01_the_default_rnr_timer_costs_about_a_millisecond() {
    let default = QpConfig::default();
    let pair = late_receive(7, default.min_rnr_nak, Duration::from_millis(1));
    all_succeed(&pair, 0, 1..=2);
    let took = pair.ends[0].events[0].0.since(Nanos::ZERO);
    assert!(
        took > Duration::from_millis(1) && took < Duration::from_millis(2),
        "{took:?}"
    );

    let slow = late_receive(7, 0, Duration::from_millis(1));
    let took = slow.ends[0].events[0].0.since(Nanos::ZERO);
    assert!(took > Duration::from_millis(655), "{took:?}");
}

#[test]
fn t02_rnr_retry_counts_tries_and_seven_is_for_ever() {
    let late = Duration::from_millis(50);
    for (retry, tries) in [(0, 1), (3, 4)] {
        let pair = late_receive(retry, 12, late);
        assert_eq!(
            statuses(&pair, 0),
            [
                (1, CompletionStatus::RnrRetryExceeded),
                (2, CompletionStatus::Flushed)
            ]
        );
        assert_eq!(pair.ends[0].qp.counters().rnr_naks_received, tries);
        assert_eq!(pair.ends[0].qp.state(), QpState::Err);
        assert_eq!(pair.ends[1].qp.state(), QpState::Rts);
    }
    let pair = late_receive(7, 12, late);
    all_succeed(&pair, 0, 1..=2);
    assert!(pair.ends[0].qp.counters().rnr_naks_received > 70);
}

#[test]
fn t08_first_transmissions_all_lost_still_arrive() {
    let mut pair = pair(both(open_config(1024, 9)), Faults::default(), 1 << 20);
    let mut seen = HashMap::new();
    pair.filter = Some(Box::new(move |_, end, packet| {
        let times = seen.entry((end, packet.bth.psn, packet.bth.opcode)).or_insert(0);
        *times += 1;
        *times == 1
    }));
    for id in 0..8 {
        pair.post(0, work(id, write(id * 3000), local(id * 3000, 3000)));
    }
    pair.post(0, work(8, read(65536), local(65536, 3000)));
    pair.run_until_quiet();
    all_succeed(&pair, 0, 0..9);
    assert_same(&pair, 24000);
    assert!(pair.offered < 2000, "{} packets", pair.offered);
}

#[test]
fn t08_all_acks_lost_for_100_ms_costs_time_and_nothing_else() {
    let mut pair = pair(both(open_config(4096, 9)), Faults::default(), 1 << 20);
    let end = Nanos::ZERO + Duration::from_millis(100);
    pair.filter = Some(Box::new(move |now, from, _| from == 1 && now < end));
    for id in 0..64 {
        pair.post(0, work(id, write(id * 16384), local(id * 16384, 16384)));
    }
    pair.run_until_quiet();
    all_succeed(&pair, 0, 0..64);
    assert_same(&pair, 1 << 20);
    assert!(pair.offered < 2000, "{} packets", pair.offered);
}

/// 256 WRITEs of 1 MiB on a link that goes away for `pause` after 1 ms.
fn t11(pause: Duration) -> Pair {
    let config = QpConfig {
        ack_timeout: 14,
        retry_count: 7,
        ..open_config(4096, 9)
    };
    let mut pair = pair(both(config), Faults::default(), 1 << 20);
    let from = Nanos::ZERO + Duration::from_millis(1);
    pair.filter = Some(Box::new(move |now, _, _| now >= from && now < from + pause));
    for id in 0..256 {
        pair.post(0, work(id, write(0), local(0, 1 << 20)));
    }
    pair.run_until_quiet();
    pair
}

#[test]
fn t11_a_pause_of_200_ms_is_survived() {
    let pair = t11(Duration::from_millis(200));
    all_succeed(&pair, 0, 0..256);
    assert_eq!(pair.ends[0].qp.counters().timeouts, 3);
}

#[test]
fn t11_a_pause_of_10_s_ends_in_retry_exceeded_after_the_computed_time() {
    let pair = t11(Duration::from_secs(10));
    let ended = sends(&pair, 0);
    let failed = ended
        .iter()
        .position(|c| c.status != CompletionStatus::Success)
        .unwrap();
    assert_eq!(ended[failed].status, CompletionStatus::TransportRetryExceeded);
    assert_eq!(ended[failed].status.syndrome(), 0x15);
    assert!(
        ended[failed + 1..]
            .iter()
            .all(|c| c.status == CompletionStatus::Flushed)
    );
    let ids: Vec<_> = ended.iter().map(|c| c.id).collect();
    assert_eq!(ids, (0..256).collect::<Vec<_>>());
    // Eight times the timeout: the first try and seven retries.
    let timeout = Duration::from_nanos(4096 << 14);
    let took = pair.ends[0]
        .events
        .last()
        .map(|(t, _)| t.since(Nanos::ZERO))
        .unwrap();
    assert!(
        took >= timeout * 8 && took < timeout * 8 + Duration::from_millis(2),
        "{took:?}"
    );
}

#[test]
fn timeout_code_0_never_times_out() {
    let config = QpConfig {
        ack_timeout: 0,
        ..open_config(1024, 3)
    };
    let mut pair = pair(both(config), Faults::default(), 1 << 16);
    pair.filter = Some(Box::new(|_, _, _| true));
    pair.post(0, work(1, write(0), local(0, 8)));
    pair.run_until_quiet();
    assert_eq!(statuses(&pair, 0), []);
    assert_eq!(pair.ends[0].qp.poll_timeout(), None);
    pair.ends[0].qp.to_error();
    assert!(matches!(
        pair.ends[0].qp.poll_event(),
        Some(Event::Send(c)) if c.status == CompletionStatus::Flushed
    ));
}

#[test]
fn credits_keep_a_sender_from_running_into_rnr() {
    let config = QpConfig {
        min_rnr_nak: 12,
        ..open_config(1024, 3)
    };
    let mut pair = pair(both(config), Faults::default(), 1 << 16);
    pair.ends[1].mem.give_credits = true;
    let receives = 32;
    for id in 0..receives {
        pair.ends[1].mem.post_recv(id, sge(0, 4096));
    }
    for id in 0..receives + 4 {
        pair.post(0, work(id, SendOp::Send, local(0, 3000)));
    }
    pair.run_for(Duration::from_micros(500));
    all_succeed(&pair, 0, 0..receives);
    // Beyond the credits one packet is tried, not four messages of three.
    let counters = *pair.ends[1].qp.counters();
    assert_eq!((counters.rnr_naks_sent, counters.out_of_sequence), (1, 0));
    assert_eq!(pair.ends[0].qp.counters().packets_sent, receives * 3 + 1);
    for id in 0..4 {
        pair.ends[1].mem.post_recv(100 + id, sge(0, 4096));
    }
    pair.run_until_quiet();
    all_succeed(&pair, 0, 0..receives + 4);
}

#[test]
fn drain_finishes_what_was_started_and_starts_nothing() {
    let mut pair = pair(both(open_config(1024, 3)), Faults::default(), 1 << 20);
    for id in 0..3 {
        pair.post(0, work(id, write(0), local(0, 200_000)));
    }
    pair.run_for(Duration::from_micros(10));
    pair.ends[0].qp.to_sqd();
    pair.run_until_quiet();
    all_succeed(&pair, 0, 0..1);
    let last = pair.ends[0].events.last().map(|(_, e)| *e);
    assert_eq!(last, Some(Event::Async(AsyncEvent::SendQueueDrained)));
    pair.ends[0].qp.sqd_to_rts();
    pair.run_until_quiet();
    all_succeed(&pair, 0, 0..3);
}

/// A receive as it should be reported: id, kind, length, immediate, and the bytes of a SEND.
type Received = (u64, RecvKind, u32, Option<u32>, Option<Vec<u8>>);

/// What random operations should have done, kept outside the transport.
struct Model {
    /// Remote memory of each end as it must be in the end.
    remote: [Vec<u8>; 2],
    /// Sends in order: id, kind, length.
    sends: [Vec<(u64, SendKind, u32)>; 2],
    receives: [Vec<Received>; 2],
    /// Fetched data: end, local offset, bytes.
    fetched: Vec<(usize, u64, Vec<u8>)>,
}

/// Bytes that one operation may use.
const SLOT: u64 = 20_000;

/// Local memory is three areas: what is sent, what is fetched, what is received.
fn area(pair: &Pair, which: u64) -> u64 {
    pair.ends[0].mem.regions[&LOCAL].bytes.len() as u64 / 4 * which
}

/// Random operations both ways. Each has its own slots of memory, except atomics, which go to two counters.
fn random_traffic(pair: &mut Pair, seed: u64, ops: u64) -> Model {
    let mut dice = Dice::new(seed);
    let mut model = Model {
        remote: [0, 1].map(|end| pair.ends[end].mem.regions[&REMOTE].bytes.clone()),
        sends: [vec![], vec![]],
        receives: [vec![], vec![]],
        fetched: vec![],
    };
    for id in 0..ops {
        for end in 0..2 {
            let op = random_op(&mut dice, id);
            let len = match op {
                SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => 8,
                _ => [16, 2000, SLOT, SLOT][dice.below(4) as usize] as u32,
            };
            let len = if len == 8 {
                len
            } else {
                dice.below(len.into()) as u32
            };
            let fenced = dice.below(8) == 0;
            apply(pair, &mut model, end, id, op, len, fenced);
        }
    }
    model
}

fn random_op(dice: &mut Dice, id: u64) -> SendOp {
    let at = (id + 1) * SLOT;
    let imm = dice.roll() as u32;
    match dice.below(8) {
        0 => SendOp::Send,
        1 => SendOp::SendImm { imm },
        2 => write(at),
        3 => SendOp::WriteImm {
            remote: remote(at),
            imm,
        },
        4 | 5 => read(at),
        6 => SendOp::FetchAdd {
            remote: remote(0),
            add: id,
        },
        _ => SendOp::CompareSwap {
            remote: remote(8),
            compare: id,
            swap: id + 1,
        },
    }
}

fn apply(pair: &mut Pair, model: &mut Model, end: usize, id: u64, op: SendOp, len: u32, fenced: bool) {
    let peer = 1 - end;
    let at = (id + 1) * SLOT;
    let fetches = matches!(
        op,
        SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }
    );
    let offset = area(pair, fetches.into()) + at;
    let bytes = local_bytes(pair, end, offset, len.into()).to_vec();
    let next_receive = model.receives[peer].len() as u64;
    let slot = at as usize..at as usize + len as usize;
    match op {
        SendOp::Write { .. } | SendOp::WriteImm { .. } => {
            model.remote[peer][slot].copy_from_slice(&bytes);
        }
        SendOp::Read { .. } => {
            let read = model.remote[peer][slot].to_vec();
            model.fetched.push((end, offset, read));
        }
        SendOp::FetchAdd { .. } => fetch(model, end, offset, 0, |old| old.wrapping_add(id)),
        SendOp::CompareSwap { .. } => {
            fetch(model, end, offset, 8, |old| if old == id { id + 1 } else { old })
        }
        SendOp::Nop | SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => {}
    }
    let received = match op {
        SendOp::Send => Some((RecvKind::Send, None, Some(bytes))),
        SendOp::SendImm { imm } => Some((RecvKind::SendImm, Some(imm), Some(bytes))),
        SendOp::WriteImm { imm, .. } => Some((RecvKind::WriteImm, Some(imm), None)),
        _ => None,
    };
    if let Some((kind, imm, bytes)) = received {
        let to = sge(area(pair, 2) + next_receive * SLOT, SLOT as u32);
        pair.ends[peer].mem.post_recv(next_receive, to);
        model.receives[peer].push((next_receive, kind, len, imm, bytes));
    }
    model.sends[end].push((id, op.kind(), len));
    let mut posted = work(id, op, local(offset, len));
    posted.fence = fenced;
    pair.post(end, posted);
}

/// An atomic on the counter at `at`.
fn fetch(model: &mut Model, end: usize, offset: u64, at: usize, change: impl Fn(u64) -> u64) {
    let cell = &mut model.remote[1 - end][at..at + 8];
    let old = u64::from_le_bytes(<[u8; 8]>::try_from(&*cell).unwrap());
    cell.copy_from_slice(&change(old).to_le_bytes());
    model.fetched.push((end, offset, old.to_le_bytes().to_vec()));
}

fn check_traffic(pair: &Pair, model: &Model, what: &str) {
    for end in 0..2 {
        let done = sends(pair, end);
        assert!(
            done.iter().all(|c| c.status == CompletionStatus::Success),
            "{what}: {done:?}"
        );
        let done: Vec<_> = done.iter().map(|c| (c.id, c.kind, c.byte_len)).collect();
        assert_eq!(done, model.sends[end], "{what}: sends of end {end}");
        let got = pair.ends[end].events.iter().filter_map(|(_, e)| match e {
            Event::Recv(c) => Some((c.id, c.kind, c.byte_len, c.imm)),
            _ => None,
        });
        let wanted: Vec<_> = model.receives[end].iter().map(|r| (r.0, r.1, r.2, r.3)).collect();
        assert_eq!(got.collect::<Vec<_>>(), wanted, "{what}: receives of end {end}");
        for (id, _, len, _, bytes) in &model.receives[end] {
            let at = area(pair, 2) + id * SLOT;
            let same = bytes
                .as_ref()
                .is_none_or(|b| local_bytes(pair, end, at, (*len).into()) == b);
            assert!(same, "{what}: receive {id} of end {end}");
        }
        assert!(
            pair.ends[end].mem.regions[&REMOTE].bytes == model.remote[end],
            "{what}: remote memory of end {end}"
        );
    }
    for (end, offset, bytes) in &model.fetched {
        let got = local_bytes(pair, *end, *offset, bytes.len() as u64);
        assert!(got == bytes, "{what}: fetched at {offset} by end {end}");
    }
}

fn bad_wire(seed: u64, faults: Faults, config: QpConfig, ops: u64) -> Pair {
    let what = format!("seed {seed:#x} {faults:?}");
    let len = (ops + 2) * SLOT * 8;
    let mut pair = pair(both(config), faults, usize::try_from(len).unwrap());
    let model = random_traffic(&mut pair, seed, ops);
    pair.run_until_quiet();
    check_traffic(&pair, &model, &what);
    pair
}

#[test]
fn t08_random_operations_on_a_bad_wire_are_right_and_complete_once() {
    let kinds = [
        (0, 0, 0),
        (100, 0, 0),
        (0, 300, 0),
        (0, 0, 1000),
        (100, 100, 500),
        (300, 300, 300),
    ];
    let mut seen = QpCounters::default();
    for (n, (loss, duplicate, reorder)) in kinds.into_iter().enumerate() {
        for round in 0..8 {
            let seed = 0xbad0_0000 + n as u64 * 256 + round;
            println!("seed {seed:#x}");
            let mtu = MTUS[(seed % 5) as usize];
            let depth = [1, 2, 16][(seed % 3) as usize];
            let faults = Faults {
                seed,
                loss,
                duplicate,
                reorder,
                max_delay: Duration::from_micros(20),
            };
            let config = QpConfig {
                ack_timeout: 8,
                max_rd_atomic: depth,
                max_dest_rd_atomic: depth,
                ..open_config(mtu, 0xff_ff00)
            };
            let pair = bad_wire(seed, faults, config, 60);
            for end in &pair.ends {
                let c = end.qp.counters();
                seen.retransmitted += c.retransmitted;
                seen.timeouts += c.timeouts;
                seen.duplicates += c.duplicates;
                seen.out_of_sequence += c.out_of_sequence;
                seen.implied_naks += c.implied_naks;
                seen.sequence_naks_received += c.sequence_naks_received;
            }
        }
    }
    // The wire was bad enough to need every means of recovery.
    println!("{seen:?}");
    let means = [
        seen.retransmitted,
        seen.timeouts,
        seen.duplicates,
        seen.out_of_sequence,
        seen.implied_naks,
        seen.sequence_naks_received,
    ];
    assert!(means.iter().all(|&n| n > 20), "{seen:?}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    #[test]
    fn any_wire_any_window_any_depth(
        seed: u64,
        loss in 0u32..300,
        duplicate in 0u32..500,
        reorder in 0u32..2000,
        mtu in 0usize..5,
        depth in 1u8..17,
        window in 0u32..100_000,
        psn in 0u32..1 << 24,
    ) {
        let faults = Faults { seed, loss, duplicate, reorder, max_delay: Duration::from_micros(50) };
        let config = QpConfig {
            ack_timeout: 9,
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            window_bytes: window,
            ..open_config(MTUS[mtu], psn)
        };
        bad_wire(seed, faults, config, 30);
    }
}
