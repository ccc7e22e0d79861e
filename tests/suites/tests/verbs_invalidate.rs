//! SEND with invalidate: a peer ends a key that was made for it, and no other.

use ferroce::verbs::{Access, Mr, Payload, QpConfig, RecvWr, SendOp, WcOpcode, WcStatus};
use ferroce_suites::pair::{Pair, signaled};

#[test]
fn a_peer_ends_a_key_that_was_made_for_it() {
    let config = QpConfig {
        max_inline_data: 64,
        ..QpConfig::default()
    };
    let mut pair = Pair::new(&config);
    let region = Mr::alloc_invalidatable(pair.b.qp.pd(), 4096, Access::all()).unwrap();
    let write = signaled(
        1,
        SendOp::Write {
            data: Payload::Inline(b"in time"),
            remote: region.remote(0),
            imm: None,
        },
    );
    pair.a.qp.post_send_list(&[write]).unwrap();
    assert_eq!(pair.a.success().opcode, WcOpcode::RdmaWrite);
    let sges = [pair.b.mr.sge(0..64).unwrap()];
    pair.b
        .qp
        .post_recv_list(&[RecvWr {
            wr_id: 7,
            sges: &sges,
        }])
        .unwrap();
    let op = SendOp::SendInvalidate {
        data: Payload::Inline(b"the end"),
        rkey: region.rkey(),
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    let wc = pair.b.success();
    assert_eq!(
        (wc.opcode, wc.byte_len, wc.imm, wc.invalidated_rkey),
        (WcOpcode::Recv, 7, None, Some(region.rkey()))
    );
    assert_eq!(pair.b.bytes(0, 7), b"the end");
    assert_eq!(pair.a.success().opcode, WcOpcode::Send);
    // The key is no more; the memory is.
    pair.a.qp.post_send_list(&[write]).unwrap();
    assert_eq!(pair.a.failure().status, WcStatus::RemoteAccess);
    let mut bytes = [0; 7];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"in time");
    region.dereg().unwrap();
}

#[test]
fn other_keys_are_not_ended() {
    let mut pair = Pair::new(&QpConfig::default());
    let sges = [pair.b.mr.sge(0..64).unwrap()];
    pair.b
        .qp
        .post_recv_list(&[RecvWr {
            wr_id: 7,
            sges: &sges,
        }])
        .unwrap();
    let op = SendOp::SendInvalidate {
        data: Payload::Gather(&[]),
        rkey: pair.b.mr.rkey(),
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    assert!(matches!(
        pair.a.failure().status,
        WcStatus::RemoteAccess | WcStatus::RemoteOperation
    ));
}
