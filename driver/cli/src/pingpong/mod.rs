//! `ferroce pingpong`: messages to and fro, with this program or with rdma-core's `ibv_*_pingpong` at the other end.

mod args;
mod ends;
mod game;
mod report;

use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use rand::Rng;

use self::args::Kind;
pub use self::args::PingpongArgs;
use self::ends::Ends;
use self::report::Report;
use crate::error::CliError;
use crate::exchange::{self, Destination};
use crate::nic::{LocalGid, Nic};
use crate::output::say;

pub fn run(args: &PingpongArgs) -> Result<ExitCode, CliError> {
    args.check()?;
    let meeting = Meeting::start(args)?;
    let report = Nic::open(&args.nic())?.with(|nic| play(args, meeting, nic))?;
    report.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Where the two sides meet.
enum Meeting {
    Server(TcpListener),
    Client(TcpStream),
}

impl Meeting {
    /// Before the NIC is brought up: what is wrong with the network is told at once.
    fn start(args: &PingpongArgs) -> Result<Meeting, CliError> {
        let patience = args.patience();
        match &args.server {
            None => exchange::listen(args.port).map(Meeting::Server),
            Some(host) => exchange::connect(host, args.port, patience).map(Meeting::Client),
        }
    }
}

fn play(args: &PingpongArgs, meeting: Meeting, nic: &Nic) -> Result<Report, CliError> {
    let mut ends = Ends::new(args, nic)?;
    ends.post_receives()?;
    let gid = nic.gid(None)?;
    let own = destinations(&ends, &gid);
    let peers = match meeting {
        Meeting::Client(stream) => meet_server(args, nic, &mut ends, stream, (&own, gid))?,
        Meeting::Server(listener) => meet_client(args, nic, &mut ends, &listener, own.clone())?,
    };
    let (own, peers, stream) = peers;
    let result = game::play(args, &mut ends)?;
    exchange::part(stream, args.patience());
    let report = Report::new(args, own, peers, &result, ends.counters()?);
    ends.close()?;
    Ok(report)
}

/// Where this side's queue pairs are, with PSNs by chance.
fn destinations(ends: &Ends, gid: &LocalGid) -> Vec<Destination> {
    let mut random = rand::rng();
    let qpns = ends.qpns();
    qpns.into_iter()
        .map(|qpn| Destination {
            qpn,
            psn: random.random_range(0..1 << 24),
            gid: gid.entry.gid,
        })
        .collect()
}

/// Where both sides' queue pairs are, and the connection that told.
type Both = (Vec<Destination>, Vec<Destination>, TcpStream);

fn meet_server(
    args: &PingpongArgs,
    nic: &Nic,
    ends: &mut Ends,
    mut stream: TcpStream,
    (own, gid): (&[Destination], LocalGid),
) -> Result<Both, CliError> {
    show(args, "local address: ", own);
    exchange::send(&mut stream, own, args.kind.places())?;
    let peers = receive(args, &mut stream, own.len())?;
    show(args, "remote address:", &peers);
    // Before the last word: the server may send as soon as it has heard it.
    ends.connect(args, nic, &gid, own, &peers)?;
    exchange::send_done(&mut stream)?;
    Ok((own.to_vec(), peers, stream))
}

fn meet_client(
    args: &PingpongArgs,
    nic: &Nic,
    ends: &mut Ends,
    listener: &TcpListener,
    mut own: Vec<Destination>,
) -> Result<Both, CliError> {
    if args.port == 0
        && let Ok(address) = listener.local_addr()
        && !args.json
    {
        say!("  listening at TCP port {}", address.port());
    }
    let mut stream = exchange::accept(listener, args.patience())?;
    let peers = receive(args, &mut stream, own.len())?;
    // This side's GID is one that fits the peer's.
    let gid = nic.gid(peers.first().map(|peer| peer.gid))?;
    for own in &mut own {
        own.gid = gid.entry.gid;
    }
    show(args, "local address: ", &own);
    show(args, "remote address:", &peers);
    ends.connect(args, nic, &gid, &own, &peers)?;
    exchange::send(&mut stream, &own, args.kind.places())?;
    exchange::receive_done(&mut stream)?;
    Ok((own, peers, stream))
}

/// What the peer says of its queue pairs. Its tools take a GID only if they are told to.
fn receive(args: &PingpongArgs, stream: &mut TcpStream, count: usize) -> Result<Vec<Destination>, CliError> {
    let peers = exchange::receive(stream, count, args.kind.places())?;
    let there = peers.iter().filter(|peer| !peer.gid.is_unspecified()).count();
    if there > 0 && there < count {
        return Err(CliError::Other(format!(
            "the peer has {there} queue pairs and this side {count}; give both sides the same --num-qp"
        )));
    }
    if peers.iter().any(|peer| peer.gid.is_unspecified()) {
        let text = "the peer sent no GID, without which nothing goes over Ethernet; give ibv_*_pingpong -g and an index of its \
                    GID table";
        return Err(CliError::Other(text.to_string()));
    }
    Ok(peers)
}

fn show(args: &PingpongArgs, what: &str, destinations: &[Destination]) {
    if !args.json {
        for destination in destinations {
            say!("  {what} {}", destination.describe());
        }
    }
}

impl PingpongArgs {
    /// How long the peer may take for anything.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

impl Kind {
    /// How many addresses go over the wire: `ibv_srq_pingpong` always sends as many as it could have.
    fn places(self) -> usize {
        match self {
            Kind::Rc | Kind::Uc | Kind::Ud => 1,
            Kind::Srq => 256,
        }
    }
}
