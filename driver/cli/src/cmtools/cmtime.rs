//! Connections, as many at once as are asked for, and their ends. The client ends them.

use std::time::Instant;

use ferroce::cm::{Accepting, ConnectError, Connecting, Connection, Listener, Manager, Params};
use ferroce::verbs::QpType;

use super::ends::Ends;
use super::{CmArgs, Report, Tool};
use crate::error::{CliError, failed};
use crate::nic::Nic;

fn params() -> Params {
    Params {
        responder_resources: 1,
        initiator_depth: 1,
        ..Params::new()
    }
}

pub fn play(args: &CmArgs, nic: &Nic, manager: &Manager) -> Result<Report, CliError> {
    let count = args.connections(Tool::Cmtime);
    let ends = Ends::new(nic, count, 1, 1, QpType::Rc)?;
    let (mut connections, took) = match args.server(Tool::Cmtime) {
        Some(server) => {
            let started = Instant::now();
            let ask = |_| {
                let asked = manager.start_connect(ends.qp(None)?, server, &params(), args.deadline());
                asked.map_err(failed("the connection"))
            };
            let asked: Vec<Connecting> = (0..count).map(ask).collect::<Result<_, CliError>>()?;
            let made = asked
                .into_iter()
                .map(Connecting::wait)
                .collect::<Result<Vec<_>, ConnectError>>();
            (made.map_err(failed("the connection"))?, started.elapsed())
        }
        None => {
            let mut listener =
                Listener::bind(manager, args.own(Tool::Cmtime)).map_err(failed("can't listen"))?;
            args.progress(&format!("listening at {}", listener.local_address()));
            let mut started = None;
            let take = |_| {
                let request = listener.next_request(args.deadline());
                let request = request.map_err(failed("waiting for a client"))?;
                started.get_or_insert_with(Instant::now);
                let accepted = request.start_accept(ends.qp(None)?, &params(), args.deadline());
                accepted.map_err(failed("the connection"))
            };
            let taken: Vec<Accepting> = (0..count).map(take).collect::<Result<_, CliError>>()?;
            let made = taken
                .into_iter()
                .map(Accepting::wait)
                .collect::<Result<Vec<_>, ConnectError>>();
            let took = started.map_or_else(Default::default, |started| started.elapsed());
            (made.map_err(failed("the connection"))?, took)
        }
    };
    args.progress(&format!("{count} connections in {took:.2?}"));
    if args.peer.is_some() {
        for connection in &mut connections {
            let asked = connection.start_disconnect(args.deadline());
            asked.map_err(failed("the end of the connection"))?;
        }
    }
    connections
        .iter_mut()
        .try_for_each(|connection| end(args, connection))?;
    Ok(Report {
        connections: count,
        sent: 0,
        received: 0,
        took,
    })
}

fn end(args: &CmArgs, connection: &mut Connection) -> Result<(), CliError> {
    while connection.ended().is_none() {
        let event = connection.wait_event(args.deadline());
        event.map_err(failed("waiting for the end of the connection"))?;
    }
    Ok(())
}
