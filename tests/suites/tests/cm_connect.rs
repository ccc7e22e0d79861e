//! Connections between two drivers on two NIC models, made by their connection managers.

use ferroce::cm::{DisconnectCause, Event};
use ferroce::verbs::{Payload, QpState, SendFlags, SendOp, SendWr};
use ferroce_suites::cm::{Hosts, soon};

#[test]
fn a_connection_carries_data_and_ends() {
    let mut hosts = Hosts::new();
    let mut listener = hosts.listen();
    let (mut active, mut passive) = hosts.connect(&mut listener);
    assert_eq!(
        (active.qp().state(), passive.qp().state()),
        (QpState::Rts, QpState::Rts)
    );
    let (source, target) = (hosts.a.region(4096), hosts.b.region(4096));
    source.write(0, b"over a connection").unwrap();
    let sges = [source.sge(0..17).unwrap()];
    let op = SendOp::Write {
        data: Payload::Gather(&sges),
        remote: target.remote(100),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    active
        .qp_mut()
        .post_send(&SendWr { wr_id: 1, op, flags })
        .unwrap();
    active.qp_mut().ring_send();
    hosts.a.poller.wait(soon()).unwrap();
    let done = hosts.a.poller.poll_one().unwrap().unwrap().result().unwrap();
    assert_eq!(done.wr_id, 1);
    let mut bytes = [0; 17];
    target.read(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"over a connection");

    active.disconnect(soon()).unwrap();
    assert_eq!(active.ended(), Some(DisconnectCause::Local));
    assert_eq!(
        passive.wait_event(soon()),
        Ok(Event::Disconnected(DisconnectCause::Peer))
    );
    assert_eq!(
        (active.qp().state(), passive.qp().state()),
        (QpState::Err, QpState::Err)
    );
    passive.disconnect(soon()).unwrap();
    drop((active, passive));
    for host in [&hosts.a, &hosts.b] {
        host.manager.wait_idle(soon()).unwrap();
    }
    hosts.assert_clean();
}
