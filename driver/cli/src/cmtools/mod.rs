//! `ferroce ucmatose`, `udaddy` and `cmtime`: the same as librdmacm's, any of which may be at the other end.

mod cmtime;
mod ends;
mod ucmatose;
mod udaddy;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ferroce::cm::{Manager, Params};
use serde_json::{Value, json};

pub use self::cmtime::CmtimeArgs;
use crate::error::CliError;
use crate::nic::{self, Nic, NicArgs};
use crate::output::say;

/// Which of the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Messages over connections.
    Ucmatose,
    /// Datagrams to and from a service.
    Udaddy,
    /// Connections, timed.
    Cmtime,
}

/// Arguments of those that send messages.
#[derive(Debug, Args)]
pub struct MessagesArgs {
    /// What it has in common with `cmtime`.
    #[command(flatten)]
    pub cm: CmArgs,

    /// Messages of each side on each connection; both sides have to be told the same.
    #[arg(short = 'C', long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub messages: u32,

    /// Bytes of a message; both sides have to be told the same.
    #[arg(short = 'S', long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub size: u32,
}

impl MessagesArgs {
    /// How many messages there are each way on so many connections.
    fn all(&self, connections: usize) -> u64 {
        connections as u64 * u64::from(self.messages)
    }
}

/// Arguments of all three.
#[derive(Debug, Args)]
pub struct CmArgs {
    /// Be the client: connect to the server at this address. Without it, be the server.
    #[arg(short = 's', value_name = "IP")]
    pub peer: Option<IpAddr>,

    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,

    /// Port of the connection manager's, which has nothing to do with TCP; by default the tool's.
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,

    /// Connections; both sides have to be told the same.
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: Option<u32>,

    /// Seconds that the peer may take for its part before this side gives up. A server waits for its first client without end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,

    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub json: bool,
}

impl CmArgs {
    fn deadline(&self) -> Instant {
        Instant::now() + self.patience()
    }

    /// Until when a server waits for a client, which may take its time if it is the first.
    fn client_by(&self, first: bool) -> Instant {
        if first { nic::far() } else { self.deadline() }
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    fn connections(&self, tool: Tool) -> usize {
        let usual = if tool == Tool::Cmtime { 100 } else { 1 };
        self.connections.unwrap_or(usual) as usize
    }

    fn port(&self, tool: Tool) -> u16 {
        self.port
            .unwrap_or(if tool == Tool::Udaddy { 7174 } else { 7471 })
    }

    /// The server's address, at the client.
    fn server(&self, tool: Tool) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.peer?, self.port(tool)))
    }

    /// Where a server listens: at all addresses.
    fn own(&self, tool: Tool) -> SocketAddr {
        SocketAddr::new(IpAddr::from([0; 4]), self.port(tool))
    }

    /// What a connection is to be like.
    fn params(&self) -> Params {
        self.nic.params(Params {
            responder_resources: 1,
            initiator_depth: 1,
            ..Params::new()
        })
    }

    fn progress(&self, text: &str) {
        if !self.json {
            say!("{text}");
        }
    }
}

/// What a tool has done.
struct Report {
    connections: usize,
    sent: u64,
    received: u64,
    took: Duration,
}

/// `ferroce ucmatose` or `udaddy`.
pub fn run(tool: Tool, args: &MessagesArgs) -> Result<ExitCode, CliError> {
    tell(tool, &args.cm, |nic, manager| match tool {
        Tool::Udaddy => udaddy::play(args, nic, manager),
        _ => ucmatose::play(args, nic, manager),
    })
}

/// `ferroce cmtime`.
pub fn run_cmtime(args: &CmtimeArgs) -> Result<ExitCode, CliError> {
    tell(Tool::Cmtime, &args.cm, |nic, manager| {
        cmtime::play(args, nic, manager)
    })
}

fn tell(
    tool: Tool,
    args: &CmArgs,
    play: impl FnOnce(&Nic, &Manager) -> Result<Report, CliError>,
) -> Result<ExitCode, CliError> {
    let accepts = tool != Tool::Udaddy && args.peer.is_none();
    args.nic.check_managed(accepts)?;
    let with_manager = |nic: &Nic| nic.with_manager(args.patience(), |manager| play(nic, manager));
    let report = Nic::open(&args.nic)?.with(with_manager)?;
    if args.json {
        say!("{}", report.json(args));
    } else {
        let Report {
            connections,
            sent,
            received,
            took,
        } = report;
        say!("{connections} connections in {took:.2?}; {sent} messages sent, {received} received");
    }
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn json(&self, args: &CmArgs) -> Value {
        json!({
            "ok": true,
            "role": if args.peer.is_some() { "client" } else { "server" },
            "connections": self.connections,
            "seconds": self.took.as_secs_f64(),
            "sent": self.sent,
            "received": self.received,
        })
    }
}
