//! A peer that sends anything: no panic, no write outside of what it may, no growth without bound.

use proptest::prelude::*;

use super::*;

const GUARD: u32 = 0x88;

prop_compose! {
    fn any_packet()(
        opcode in prop_oneof![0u8..0x18, any::<u8>()],
        n in prop_oneof![0u32..12, any::<u32>()],
        ack_req: bool,
        fill: u8,
        len in prop_oneof![Just(0u32), Just(MTU), 0u32..600],
        reth in proptest::option::of((0u64..0x3000, prop_oneof![Just(KEY), Just(GUARD)], prop_oneof![
            0u32..1200,
            any::<u32>()
        ])),
        atomic in proptest::option::of((0u64..0x3000, any::<u64>(), 0u64..3)),
        aeth in proptest::option::of((any::<u8>(), any::<u32>())),
        atomic_ack: Option<u64>,
        immediate: Option<u32>,
        invalidate_rkey in proptest::option::of(0u32..0x100),
    ) -> Packet {
        let mut p = packet(opcode, n, fill, len);
        p.bth.ack_req = ack_req;
        p.reth = reth.map(|(at, rkey, dma_len)| Reth { va: VA - 0x800 + at, rkey, dma_len });
        p.atomic_eth = atomic.map(|(at, swap_add, compare)| AtomicEth {
            va: VA - 0x800 + at,
            rkey: KEY,
            swap_add,
            compare,
        });
        p.aeth = aeth.map(|(syndrome, msn)| Aeth { syndrome, msn: msn & 0xff_ffff });
        (p.atomic_ack, p.immediate, p.invalidate_rkey) = (atomic_ack, immediate, invalidate_rkey);
        p
    }
}

fn any_op() -> impl Strategy<Value = SendOp> {
    prop_oneof![
        Just(SendOp::Nop),
        Just(SendOp::Send),
        Just(SendOp::WriteImm {
            remote: REMOTE,
            imm: 1
        }),
        Just(SendOp::Read { remote: REMOTE }),
        Just(SendOp::FetchAdd {
            remote: REMOTE,
            add: 1
        }),
    ]
}

proptest! {
    #[test]
    fn any_packets_do_no_harm(
        packets in proptest::collection::vec((any_packet(), any::<u8>()), 0..60),
        ops in proptest::collection::vec((any_op(), 0u32..1200), 0..8),
    ) {
        let mut b = bench();
        let guard = Region { remote_read: false, remote_write: false, remote_atomic: false, ..Region::new(VA, MEMORY) };
        b.mem.regions.insert(GUARD, guard);
        for id in 0..8 {
            b.mem.post_recv(id, sge(0x1000, 700));
        }
        let posted = ops.len();
        for (id, (op, len)) in ops.into_iter().enumerate() {
            b.post(id as u64, op, len);
        }
        let mut ended = 0;
        for (packet, polls) in packets {
            b.deliver(packet);
            for _ in 0..polls % 16 {
                b.next();
            }
            if polls > 200 && b.qp.poll_timeout().is_some() {
                b.expire();
            }
            prop_assert!(b.qp.responder.replies.len() <= 4);
            prop_assert!(b.qp.responder.atomics.len() <= 2);
            ended += send_statuses(&b.events()).len();
            prop_assert_eq!(ended + b.qp.sends_held(), posted);
        }
        if let Some(guard) = b.mem.regions.get(&GUARD) {
            prop_assert!(guard.bytes.iter().all(|&x| x == 0));
        }
        b.qp.to_error();
        ended += send_statuses(&b.events()).len();
        prop_assert_eq!(ended, posted);
        prop_assert!(b.next().is_none());
    }
}
