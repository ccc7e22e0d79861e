//! Datagrams to a service that is found by its address, and back. The client sends first.

use std::time::Instant;

use ferroce::cm::{DatagramListener, Manager};
use ferroce::ids::Qpn;
use ferroce::verbs::{Ah, Path, Qp, QpType};

use super::ends::{Ends, To};
use super::{CmArgs, MessagesArgs, Report, Tool};
use crate::error::{CliError, failed};
use crate::nic::Nic;

/// The Q_Key of Linux's `rdma_cm` for datagrams (`RDMA_UDP_QKEY`).
const QKEY: u32 = 0x0123_4567;

pub fn play(messages: &MessagesArgs, nic: &Nic, manager: &Manager) -> Result<Report, CliError> {
    let args = &messages.cm;
    let count = args.connections(Tool::Udaddy);
    let size = messages.size as usize;
    let mut ends = Ends::new(nic, count, messages.messages, size, QpType::Ud)?;
    let all = messages.all(count);
    let started = Instant::now();
    let took = if args.peer.is_some() {
        let mut peers = find(args, manager, &ends, count)?;
        let took = started.elapsed();
        args.progress("found; sending first");
        peers
            .iter_mut()
            .try_for_each(|(qp, to)| ends.send(qp, Some(to)))?;
        ends.complete((all, all), args.deadline(), |_| Ok(()))?;
        took
    } else {
        let mut clients = offer(args, manager, &ends, count)?;
        let took = started.elapsed();
        args.progress("asked; waiting for messages");
        // Where the answers go is said in each message.
        ends.complete((0, all), args.deadline(), |done| {
            let client = clients.iter_mut().find(|client| client.qp.qpn() == done.qpn);
            if let (Some(client), Some(imm)) = (client, done.imm) {
                client.peer = Qpn::new(imm).ok();
            }
            Ok(())
        })?;
        for client in &mut clients {
            let missing = || CliError::Other("a message came without its sender's queue pair".into());
            let to = To {
                ah: way(args, &ends, &client.path)?,
                qpn: client.peer.ok_or_else(missing)?,
                qkey: QKEY,
            };
            ends.send(&mut client.qp, Some(&to))?;
        }
        ends.complete((all, 0), args.deadline(), |_| Ok(()))?;
        took
    };
    Ok(Report {
        connections: count,
        sent: all,
        received: all,
        took,
    })
}

fn find(args: &CmArgs, manager: &Manager, ends: &Ends, count: usize) -> Result<Vec<(Qp, To)>, CliError> {
    let missing = || CliError::Other("-s is needed".into());
    let server = args.server(Tool::Udaddy).ok_or_else(missing)?;
    let one = |_| {
        let found = manager.connect_datagram(server, &[], args.deadline());
        let found = found.map_err(failed("the service"))?;
        let to = To {
            ah: way(args, ends, &found.path)?,
            qpn: found.qpn,
            qkey: found.qkey,
        };
        Ok((ends.qp(Some(QKEY))?, to))
    };
    (0..count).map(one).collect()
}

/// The way to a peer, with what the options ask of it: each side chooses for its own datagrams.
fn way(args: &CmArgs, ends: &Ends, found: &Path) -> Result<Ah, CliError> {
    let path = Path {
        priority: args.nic.priority,
        traffic_class: args.nic.traffic_class,
        ..*found
    };
    Ah::new(ends.pd(), &path).map_err(failed("the way to the peer"))
}

/// One who has asked.
struct Client {
    qp: Qp,
    path: Path,
    peer: Option<Qpn>,
}

fn offer(args: &CmArgs, manager: &Manager, ends: &Ends, count: usize) -> Result<Vec<Client>, CliError> {
    let address = args.own(Tool::Udaddy);
    let mut listener = DatagramListener::bind(manager, address).map_err(failed("can't listen"))?;
    args.progress(&format!("listening at {}", listener.local_address()));
    let one = |number| {
        let request = listener.next_request(args.client_by(number == 0));
        let request = request.map_err(failed("waiting for a client"))?;
        let (qp, path) = (ends.qp(Some(QKEY))?, *request.path());
        let answered = request.accept(qp.qpn(), QKEY, &[]);
        answered.map_err(failed("the answer"))?;
        Ok(Client { qp, path, peer: None })
    };
    (0..count).map(one).collect()
}
