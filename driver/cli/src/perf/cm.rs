//! Two sides that meet by the connection manager, so that the NICs' own wire is all that they need.
//!
//! ```text
//! client                                                   server
//!   --- REQ: connection 0, what is measured, memory --->     compares; a REJ says why not
//!   <-- REP: memory ------------------------------------
//!   --- REQ: connection 1 … ---------------------------->    one for each queue pair
//!   <-- REP … -------------------------------------------
//!   <-- "here" by SEND over connection 0 --------------->    before and after each size, and at the end
//! ```

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use ferroce::cm::{
    Accepting, ConnectError, Connecting, Connection, Listener, Manager, Params, RejectReason, Request,
    ResolveError,
};
use ferroce::verbs::{Qp, RemoteAddr};

use super::args::PerfArgs;
use super::control::{Control, ControlEnds};
use super::ends::{Ends, Line};
use super::hello::{self, Hello};
use super::plan::Plan;
use super::talk::told;
use crate::error::{CliError, chain, failed};
use crate::nic::{self, Nic};
use crate::output::say;

/// How long between two tries to reach a server that is not there yet.
const RETRY: Duration = Duration::from_millis(50);

/// Connects both sides' queue pairs: what they talk over, and the peer's memory.
pub fn meet(
    args: &PerfArgs,
    nic: &Nic,
    manager: &Manager,
    ends: &mut Ends,
) -> Result<(Control, RemoteAddr), CliError> {
    match &args.server {
        Some(host) => connect(args, nic, manager, ends, host),
        None => serve(args, nic, manager, ends),
    }
}

fn params(args: &PerfArgs, said: &Hello) -> Result<Params, CliError> {
    Ok(args.nic.params(Params {
        mtu: Some(nic::mtu(args.mtu)?),
        ack_timeout: Some(Duration::from_nanos(4096 << args.qp_timeout)),
        ..Params::new().private_data(said.encode())
    }))
}

fn connect(
    args: &PerfArgs,
    nic: &Nic,
    manager: &Manager,
    ends: &mut Ends,
    host: &str,
) -> Result<(Control, RemoteAddr), CliError> {
    // As `check` has seen.
    let ip: IpAddr = host
        .parse()
        .map_err(|_| CliError::Other(format!("{host} is no IP address")))?;
    let address = SocketAddr::new(ip, args.port);
    let mut own = Hello {
        plan: Plan::of(args),
        number: 0,
        session: rand::random(),
        memory: ends.remote.remote(0),
    };
    let deadline = Instant::now() + args.patience();
    let (connection, control) = first(args, nic, manager, address, &own, deadline)?;
    let peer = Hello::decode(connection.private_data())?;
    own.plan.compare_with(&peer.plan)?;
    let mut asked: Vec<Connecting> = Vec::new();
    for line in std::mem::take(&mut ends.lines) {
        own.number += 1;
        let connecting = manager.start_connect(own_qp(line)?, address, &params(args, &own)?, deadline);
        asked.push(connecting.map_err(refused)?);
    }
    for connecting in asked {
        ends.lines
            .push(Line::Managed(connecting.wait().map_err(refused)?));
    }
    Ok((Control::new(connection, control, args.patience()), peer.memory))
}

/// The first connection, to a server that may start a little later than this.
fn first(
    args: &PerfArgs,
    nic: &Nic,
    manager: &Manager,
    address: SocketAddr,
    own: &Hello,
    deadline: Instant,
) -> Result<(Connection, ControlEnds), CliError> {
    let nobody = |error: &ConnectError| {
        CliError::Other(format!(
            "can't connect to {address}: {}; is the server started, with -R?",
            chain(error)
        ))
    };
    let mut last = None;
    loop {
        let (qp, control) = ControlEnds::new(nic)?;
        let not_yet = match manager.connect(qp, address, &params(args, own)?, deadline) {
            Ok(connection) => return Ok((connection, control)),
            Err(
                error @ (ConnectError::Resolve(ResolveError::NoAnswer { .. })
                | ConnectError::Rejected {
                    // The last for a queue pair of a client that was killed.
                    reason: RejectReason::InvalidServiceId | RejectReason::StaleConnection,
                    ..
                }),
            ) => error,
            // What the tries before it met says more.
            Err(error @ ConnectError::Deadline { .. }) => {
                return Err(nobody(last.as_ref().unwrap_or(&error)));
            }
            Err(error) => return Err(refused(error)),
        };
        if Instant::now() + RETRY >= deadline {
            return Err(nobody(&not_yet));
        }
        last = Some(not_yet);
        thread::sleep(RETRY);
    }
}

/// Why there is no connection, in the server's words where it gives some.
fn refused(error: ConnectError) -> CliError {
    if let ConnectError::Rejected { private_data, .. } = &error
        && let Some(reason) = hello::refused(private_data)
    {
        return told(&reason);
    }
    failed("the connection")(error)
}

/// A queue pair that has no connection yet.
fn own_qp(line: Line) -> Result<Qp, CliError> {
    match line {
        Line::Own(qp) => Ok(qp),
        Line::Managed(_) => Err(CliError::Other("a queue pair is connected already".to_string())),
    }
}

fn serve(
    args: &PerfArgs,
    nic: &Nic,
    manager: &Manager,
    ends: &mut Ends,
) -> Result<(Control, RemoteAddr), CliError> {
    let any = SocketAddr::new(IpAddr::from([0; 4]), args.port);
    let mut listener = Listener::bind(manager, any).map_err(failed("can't listen"))?;
    if args.port == 0 && !args.json {
        say!("  listening at RDMA port {}", listener.local_address().port());
    }
    let request = listener.next_request(nic::far());
    let request = request.map_err(failed("waiting for a client"))?;
    let client = match admit(args, &request) {
        Ok(client) => client,
        Err(error) => return Err(reject(request, error)),
    };
    let own = Hello {
        memory: ends.remote.remote(0),
        ..client.clone()
    };
    let deadline = Instant::now() + args.patience();
    let (qp, control) = ControlEnds::new(nic)?;
    let accepted = request.accept(qp, &params(args, &own)?, deadline);
    let connection = accepted.map_err(failed("the connection"))?;
    take_all(
        args,
        &mut listener,
        ends,
        &own,
        connection.remote_address().ip(),
        deadline,
    )?;
    Ok((Control::new(connection, control, args.patience()), client.memory))
}

/// The first request of a client that does the same.
fn admit(args: &PerfArgs, request: &Request) -> Result<Hello, CliError> {
    let said = Hello::decode(request.private_data())?;
    Plan::of(args).compare_with(&said.plan)?;
    if said.number != 0 {
        return Err(CliError::Other(format!(
            "connection {} came before the first; start the client again",
            said.number
        )));
    }
    Ok(said)
}

/// Tells the client why, too.
fn reject(request: Request, error: CliError) -> CliError {
    if let Err(error) = request.reject(&hello::refusal(&chain(&error))) {
        log::debug!("{error}");
    }
    error
}

/// Takes the client's connections for the queue pairs, in whatever order they come, and nobody else's.
fn take_all(
    args: &PerfArgs,
    listener: &mut Listener,
    ends: &mut Ends,
    own: &Hello,
    client: IpAddr,
    deadline: Instant,
) -> Result<(), CliError> {
    let mut free: Vec<Option<Line>> = std::mem::take(&mut ends.lines).into_iter().map(Some).collect();
    let mut taken: Vec<Option<Accepting>> = free.iter().map(|_| None).collect();
    while free.iter().any(Option::is_some) {
        let request = listener.next_request(deadline);
        let request = request.map_err(failed("waiting for the client's other connections"))?;
        let said = match Hello::decode(request.private_data()) {
            Ok(said) => said,
            Err(error) => {
                log::warn!("{}: {}", request.remote_address(), reject(request, error));
                continue;
            }
        };
        let place = usize::from(said.number).wrapping_sub(1);
        let ours = said.session == own.session && request.remote_address().ip() == client;
        let Some(line) = free.get_mut(place).filter(|_| ours).and_then(Option::take) else {
            let busy = CliError::Other("this server is busy with another client; try again".to_string());
            log::warn!("{}: {}", request.remote_address(), reject(request, busy));
            continue;
        };
        let number = said.number;
        let params = params(
            args,
            &Hello {
                number,
                ..own.clone()
            },
        )?;
        let accepting = request.start_accept(own_qp(line)?, &params, deadline);
        taken[place] = Some(accepting.map_err(failed("the connection"))?);
    }
    for accepting in taken.into_iter().flatten() {
        let connection = accepting.wait().map_err(failed("the connection"))?;
        ends.lines.push(Line::Managed(connection));
    }
    Ok(())
}
