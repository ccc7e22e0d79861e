//! The connection manager's datagrams.

use std::time::{Duration, Instant};

use ferroce::cm::machine::{
    AcceptReply, ConnectRequest, Machine, MachineConfig, MachineEvent, TimeCode, Transport,
};
use ferroce::cm::mad::{self, IpHeader, MAD_BYTES, PortSpace, ServiceId};
use ferroce::gid::Gid;
use ferroce::port::MacAddress;
use ferroce::verbs::{Mtu, Path};

use super::Input;

/// Connections that a peer can make here at most.
const MOST: usize = 16;

fn path() -> Path {
    Path::new(0, Gid([7; 16]), MacAddress([2, 0, 0, 0, 0, 1]))
}

fn ask() -> ConnectRequest {
    ConnectRequest {
        path: path(),
        local_gid: Gid([8; 16]),
        service_id: ServiceId::of_port(PortSpace::Tcp, 1),
        transport: Transport::Rc,
        qpn: 5,
        psn: 6,
        mtu: Mtu::Mtu1024,
        responder_resources: 1,
        initiator_depth: 1,
        ack_timeout: TimeCode::covering(Duration::from_millis(67)),
        retry_count: 7,
        rnr_retry: 7,
        srq: false,
        private_data: Vec::new(),
        deadline: None,
    }
}

/// Datagrams of any content, made nearly right, at a machine that listens, asks and accepts.
pub fn cm_datagrams(data: &[u8]) {
    let _ = IpHeader::parse(data);
    if let Ok(message) = mad::parse(data) {
        let _ = (format!("{message:?}"), message.reserved_bit_set());
    }
    let mut input = Input(data);
    let (mut now, mut drawn) = (Instant::now(), 0);
    let config = MachineConfig {
        max_connections: MOST,
        max_sidr: MOST,
        ..MachineConfig::default()
    };
    // Small ids, so that the input meets them.
    let mut machine = Machine::new(config, move || {
        drawn += 1;
        drawn
    });
    let service = ServiceId(u64::from(input.u8()));
    machine.listen(service, 4).expect("nobody listens yet");
    let _ = machine.connect(now, &ask());
    while !input.is_empty() {
        let mut bytes = [0; MAD_BYTES];
        let len = usize::from(input.u8()) + 1;
        let given = input.take(len);
        bytes[0x18..0x18 + given.len().min(232)].copy_from_slice(&given[..given.len().min(232)]);
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[0x11] = 0x10 + input.u8() % 12;
        // The address in a REQ is the sender's.
        bytes[0x50..0x60].copy_from_slice(&[7; 16]);
        bytes[0x1b] %= 32;
        bytes[0x1f] %= 32;
        machine.handle_mad(now, &path(), &bytes);
        while let Some(event) = machine.poll_event() {
            match event {
                MachineEvent::Requested(id, _) if input.u8() & 1 == 0 => {
                    let reply = AcceptReply {
                        qpn: 9,
                        psn: 9,
                        responder_resources: 1,
                        initiator_depth: 1,
                        rnr_retry: 7,
                        srq: false,
                        private_data: Vec::new(),
                        deadline: None,
                    };
                    machine.accept(now, id, &reply).expect("it was asked for");
                }
                MachineEvent::Accepted(id, _) => machine.confirm(id).expect("it was accepted"),
                _ => {}
            }
        }
        if input.u8() & 3 == 0
            && let Some(next) = machine.poll_timeout()
        {
            now = now.max(next);
            machine.handle_timeout(now);
        }
        assert!(machine.connections() <= MOST);
        while machine.poll_transmit().is_some() {}
    }
}
