//! `ferroce rping`: the same as librdmacm's `rping`, which may be at the other end.
//!
//! ```text
//! client                                server
//!   --- SEND: where the data are ------>
//!                                         READs them
//!   <-- SEND: go on --------------------
//!   --- SEND: where they may go back -->
//!                                         WRITEs them
//!   <-- SEND: go on --------------------
//! ```
//! A place is told in 16 bytes: address, R_Key and length, most significant byte first.

mod ends;
mod turns;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ferroce::cm::{Listener, Manager, Params};
use serde_json::json;

use self::ends::Ends;
use crate::error::{CliError, chain, failed};
use crate::nic::{self, Nic, NicArgs};
use crate::output::say;

/// What `rping` takes at most.
const MAX_SIZE: u32 = 65_535;
/// Room for the text at the beginning of each ping.
const MIN_SIZE: u32 = 32;

/// Arguments of `rping`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("role").required(true))]
pub struct RpingArgs {
    /// Be the server: wait for a client.
    #[arg(short, long, group = "role")]
    pub server: bool,

    /// Be the client: connect to a server.
    #[arg(short, long, group = "role", requires = "peer")]
    pub client: bool,

    /// The server's IP address; at the server, the address to listen at, by default all.
    #[arg(short = 'a', value_name = "IP")]
    pub peer: Option<IpAddr>,

    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,

    /// Port of the connection manager's, which has nothing to do with TCP.
    #[arg(short, long, value_name = "PORT", default_value_t = 7174, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Pings; a client's without end if it is 0.
    #[arg(short = 'C', long, value_name = "COUNT", default_value_t = 0)]
    pub count: u32,

    /// Bytes of a ping. A server takes pings of that size at most.
    #[arg(short = 'S', long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(i64::from(MIN_SIZE)..=i64::from(MAX_SIZE)))]
    pub size: u32,

    /// Compare what comes back with what was there.
    #[arg(short = 'V', long)]
    pub validate: bool,

    /// Seconds that the peer may take for its part before this side gives up. A server waits for its client without end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,

    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub json: bool,
}

impl RpingArgs {
    fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// As `rping` has them: one READ at a time.
    fn params(&self) -> Params {
        self.nic.params(Params {
            responder_resources: 1,
            initiator_depth: 1,
            ..Params::new()
        })
    }
}

pub fn run(args: &RpingArgs, show: bool) -> Result<ExitCode, CliError> {
    args.nic.check_managed(args.server)?;
    let show = show && !args.json;
    let play = |nic: &Nic, manager: &Manager| match args.server {
        true => serve(args, nic, manager, show),
        false => connect(args, nic, manager, show),
    };
    let with_manager = |nic: &Nic| nic.with_manager(args.patience(), |manager| play(nic, manager));
    let pings = Nic::open(&args.nic)?.with(with_manager)?;
    if args.json {
        let role = if args.server { "server" } else { "client" };
        say!(
            "{}",
            json!({ "ok": true, "role": role, "pings": pings, "size": args.size, "validated": args.validate })
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn connect(args: &RpingArgs, nic: &Nic, manager: &Manager, show: bool) -> Result<u32, CliError> {
    let peer = args.peer.map(|ip| SocketAddr::new(ip, args.port));
    let peer = peer.ok_or_else(|| CliError::Other("-a is needed: the server's IP address".to_string()))?;
    let (qp, mut ends) = Ends::new(nic, args.size as usize)?;
    let deadline = Instant::now() + args.patience();
    let connection = manager.connect(qp, peer, &args.params(), deadline);
    let mut connection = connection.map_err(failed("the connection"))?;
    let played = turns::client(args, &mut connection, &mut ends, show);
    let ended = connection.disconnect(Instant::now() + args.patience());
    drop(connection);
    let pings = played?;
    ended.map_err(failed("the end of the connection"))?;
    ends.close()?;
    Ok(pings)
}

fn serve(args: &RpingArgs, nic: &Nic, manager: &Manager, show: bool) -> Result<u32, CliError> {
    let any = if nic.context().gids().find(|e| e.gid.to_ipv4().is_some()).is_some() {
        IpAddr::from([0; 4])
    } else {
        IpAddr::from([0; 16])
    };
    let address = SocketAddr::new(args.peer.unwrap_or(any), args.port);
    nic.check_own(address.ip())?;
    let mut listener = Listener::bind(manager, address).map_err(failed("can't listen"))?;
    if !args.json {
        say!("listening at {}", listener.local_address());
    }
    let request = listener
        .next_request(nic::far())
        .map_err(failed("waiting for a client"))?;
    let (qp, mut ends) = Ends::new(nic, args.size as usize)?;
    let accepted = request.accept(qp, &args.params(), Instant::now() + args.patience());
    let mut connection = accepted.map_err(failed("the connection"))?;
    let played = turns::server(args, &mut connection, &mut ends, show);
    // The client's is the last word, unless something went wrong here.
    let ended = connection.disconnect(Instant::now() + args.patience());
    drop(connection);
    let pings = played?;
    if let Err(error) = ended {
        log::info!("{}", chain(&error));
    }
    ends.close()?;
    Ok(pings)
}
