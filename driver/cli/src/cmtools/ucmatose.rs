//! Messages over connections: the server sends first and ends them.

use std::time::Instant;

use ferroce::cm::{Connection, Event, Listener, Manager};
use ferroce::verbs::QpType;

use super::ends::Ends;
use super::{CmArgs, MessagesArgs, Report, Tool};
use crate::error::{CliError, failed};
use crate::nic::Nic;

pub fn play(messages: &MessagesArgs, nic: &Nic, manager: &Manager) -> Result<Report, CliError> {
    let args = &messages.cm;
    let count = args.connections(Tool::Ucmatose);
    let size = messages.size as usize;
    let mut ends = Ends::new(nic, count, messages.messages, size, QpType::Rc)?;
    let started = Instant::now();
    let mut connections = match args.server(Tool::Ucmatose) {
        Some(server) => {
            let connect = |_| {
                let connected = manager.connect(ends.qp(None)?, server, &args.params(), args.deadline());
                connected.map_err(failed("the connection"))
            };
            (0..count).map(connect).collect::<Result<Vec<_>, _>>()?
        }
        None => accept(args, manager, &ends, count)?,
    };
    let took = started.elapsed();
    let all = messages.all(count);
    let deadline = args.deadline();
    if args.peer.is_none() {
        args.progress("connected; sending first");
        send(&ends, &mut connections)?;
        ends.complete((all, all), deadline, |_| Ok(()))?;
        for connection in &mut connections {
            connection
                .disconnect(args.deadline())
                .map_err(failed("the end of the connection"))?;
        }
    } else {
        args.progress("connected; waiting for messages");
        ends.complete((0, all), deadline, |_| Ok(()))?;
        send(&ends, &mut connections)?;
        ends.complete((all, 0), deadline, |_| Ok(()))?;
        for connection in &mut connections {
            let event = connection.wait_event(args.deadline());
            let event = event.map_err(failed("waiting for the end of the connection"))?;
            if let Event::Stopped(stopped) = event {
                return Err(failed("waiting for the end of the connection")(stopped));
            }
        }
    }
    Ok(Report {
        connections: count,
        sent: all,
        received: all,
        took,
    })
}

fn accept(args: &CmArgs, manager: &Manager, ends: &Ends, count: usize) -> Result<Vec<Connection>, CliError> {
    let address = args.own(Tool::Ucmatose);
    let mut listener = Listener::bind(manager, address).map_err(failed("can't listen"))?;
    args.progress(&format!("listening at {}", listener.local_address()));
    let next = |number| {
        let request = listener.next_request(args.client_by(number == 0));
        let request = request.map_err(failed("waiting for a client"))?;
        let accepted = request.accept(ends.qp(None)?, &args.params(), args.deadline());
        accepted.map_err(failed("the connection"))
    };
    (0..count).map(next).collect()
}

fn send(ends: &Ends, connections: &mut [Connection]) -> Result<(), CliError> {
    connections
        .iter_mut()
        .try_for_each(|connection| ends.send(connection.qp_mut(), None))
}
