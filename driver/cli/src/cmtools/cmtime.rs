//! Connections, as many at once as are asked for, and their ends. The client ends them.
//!
//! librdmacm's `cmtime` keeps step with its peer by TCP, and plays three rounds: one connection, all, and all again without
//! queue pairs at its side. With `--sync` so does this, with queue pairs in each round; without it there is one round, and no
//! TCP.

use std::io::Write;
use std::net::TcpStream;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use ferroce::cm::{Accepting, ConnectError, Connecting, Connection, Listener, Manager};
use ferroce::verbs::QpType;

use super::ends::Ends;
use super::{CmArgs, Report, Tool};
use crate::error::{CliError, failed};
use crate::exchange;
use crate::nic::Nic;

/// Arguments of `cmtime`.
#[derive(Debug, Args)]
pub struct CmtimeArgs {
    /// What it has in common with the others.
    #[command(flatten)]
    pub cm: CmArgs,

    /// Keep step with the other side by TCP as librdmacm's cmtime does, which then plays to its end, in three rounds. At a
    /// server the TCP port to listen at, after a host to listen at one of its addresses only; at a client the server's, after
    /// its name where it is not the one of -s.
    #[arg(long, value_name = "[HOST:]PORT")]
    pub sync: Option<Place>,
}

/// A TCP port, and a host if it is not the one that is meant anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    host: Option<String>,
    port: u16,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (Some(host.trim_matches(['[', ']']).to_string()), port),
            None => (None, text),
        };
        match port.parse() {
            Ok(port) if port != 0 && host.as_deref() != Some("") => Ok(Place { host, port }),
            _ => Err(format!("{text:?} is not [HOST:]PORT")),
        }
    }
}

/// Where both sides have to have come to: the numbers of librdmacm's steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin = 0,
    Connected = 12,
    Disconnected = 14,
}

/// The peer's word by TCP that it has come so far, too.
struct Pace(Option<TcpStream>);

impl Pace {
    /// Waits until both sides are at a step. The client speaks first.
    fn meet(&mut self, step: Step, client: bool) -> Result<(), CliError> {
        let Some(stream) = &mut self.0 else {
            return Ok(());
        };
        let lost = |e| CliError::System("the TCP connection to the other side", e);
        if client {
            stream.write_all(&[step as u8]).map_err(lost)?;
        }
        let mut said = [0];
        exchange::read(stream, &mut said, "the other side did not come so far")?;
        if said != [step as u8] {
            return Err(CliError::Other(format!(
                "the other side is at step {} where {} is due; do both sides have the same -c?",
                said[0], step as u8
            )));
        }
        if !client {
            stream.write_all(&said).map_err(lost)?;
        }
        Ok(())
    }
}

pub fn play(args: &CmtimeArgs, nic: &Nic, manager: &Manager) -> Result<Report, CliError> {
    let (cm, sync) = (&args.cm, args.sync.as_ref());
    let count = cm.connections(Tool::Cmtime);
    let rounds = if sync.is_some() {
        vec![1, count, count]
    } else {
        vec![count]
    };
    // Queue pairs of a round that are in time-wait still have their places in the completion queue.
    let ends = Ends::new(nic, rounds.iter().sum(), 1, 1, QpType::Rc)?;
    let times = match cm.peer {
        Some(_) => be_client(cm, sync, manager, &ends, &rounds)?,
        None => be_server(cm, sync, manager, &ends, &rounds)?,
    };
    Ok(Report {
        connections: count,
        sent: 0,
        received: 0,
        // The first of the long rounds.
        took: times.get(1).or(times.first()).copied().unwrap_or_default(),
    })
}

fn be_client(
    args: &CmArgs,
    sync: Option<&Place>,
    manager: &Manager,
    ends: &Ends,
    rounds: &[usize],
) -> Result<Vec<Duration>, CliError> {
    let server = args
        .server(Tool::Cmtime)
        .ok_or_else(|| CliError::Other("no server".to_string()))?;
    let stream = sync.map(|place| {
        let host = place.host.clone().unwrap_or_else(|| server.ip().to_string());
        exchange::connect(&host, place.port, args.patience())
    });
    let mut pace = Pace(stream.transpose()?);
    let mut times = Vec::new();
    for &count in rounds {
        pace.meet(Step::Begin, true)?;
        let started = Instant::now();
        let ask = |_| {
            let asked = manager.start_connect(ends.qp(None)?, server, &args.params(), args.deadline());
            asked.map_err(failed("the connection"))
        };
        let asked: Vec<Connecting> = (0..count).map(ask).collect::<Result<_, CliError>>()?;
        let made: Result<Vec<_>, ConnectError> = asked.into_iter().map(Connecting::wait).collect();
        let mut connections = made.map_err(failed("the connection"))?;
        times.push(started.elapsed());
        args.progress(&format!("{count} connections in {:.2?}", started.elapsed()));
        pace.meet(Step::Connected, true)?;
        for connection in &mut connections {
            let asked = connection.start_disconnect(args.deadline());
            asked.map_err(failed("the end of the connection"))?;
        }
        connections
            .iter_mut()
            .try_for_each(|connection| end(args, connection))?;
        pace.meet(Step::Disconnected, true)?;
    }
    Ok(times)
}

fn be_server(
    args: &CmArgs,
    sync: Option<&Place>,
    manager: &Manager,
    ends: &Ends,
    rounds: &[usize],
) -> Result<Vec<Duration>, CliError> {
    let mut listener = Listener::bind(manager, args.own(Tool::Cmtime)).map_err(failed("can't listen"))?;
    let socket = sync.map(|place| match &place.host {
        Some(host) => exchange::listen_at(host, place.port),
        None => exchange::listen(place.port),
    });
    let socket = socket.transpose()?;
    args.progress(&format!("listening at {}", listener.local_address()));
    let stream = socket.map(|socket| exchange::accept(&socket, args.patience()));
    let mut pace = Pace(stream.transpose()?);
    let mut times = Vec::new();
    for &count in rounds {
        pace.meet(Step::Begin, false)?;
        let mut started = None;
        let take = |number| {
            // Where TCP keeps step, the client is there already.
            let request = listener.next_request(args.client_by(sync.is_none() && number == 0));
            let request = request.map_err(failed("waiting for a client"))?;
            started.get_or_insert_with(Instant::now);
            let accepted = request.start_accept(ends.qp(None)?, &args.params(), args.deadline());
            accepted.map_err(failed("the connection"))
        };
        let taken: Vec<Accepting> = (0..count).map(take).collect::<Result<_, CliError>>()?;
        let made: Result<Vec<_>, ConnectError> = taken.into_iter().map(Accepting::wait).collect();
        let mut connections = made.map_err(failed("the connection"))?;
        let took = started.map_or_else(Default::default, |started| started.elapsed());
        times.push(took);
        args.progress(&format!("{count} connections in {took:.2?}"));
        pace.meet(Step::Connected, false)?;
        connections
            .iter_mut()
            .try_for_each(|connection| end(args, connection))?;
        pace.meet(Step::Disconnected, false)?;
    }
    Ok(times)
}

fn end(args: &CmArgs, connection: &mut Connection) -> Result<(), CliError> {
    while connection.ended().is_none() {
        let event = connection.wait_event(args.deadline());
        event.map_err(failed("waiting for the end of the connection"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_port_with_or_without_a_host() {
        let place = |host: Option<&str>, port| {
            Ok(Place {
                host: host.map(str::to_string),
                port,
            })
        };
        assert_eq!("7471".parse(), place(None, 7471));
        assert_eq!("localhost:1".parse(), place(Some("localhost"), 1));
        assert_eq!("[fd00::1]:9".parse(), place(Some("fd00::1"), 9));
        for wrong in ["", "0", ":7471", "host", "host:", "host:70000"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
