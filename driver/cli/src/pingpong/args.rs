//! The options, which are those of `ibv_*_pingpong` where these have them.

use clap::{Args, ValueEnum};

use crate::args::{path_mtu, size};
use crate::error::CliError;
use crate::nic::NicArgs;

/// Largest message (bytes): what `ibv_*_pingpong` could send is bounded by the memory, this by reason.
const MAX_SIZE: u64 = 1 << 30;

/// Arguments of `pingpong`.
#[derive(Debug, Args)]
pub struct PingpongArgs {
    /// Which transport service.
    #[arg(value_enum)]
    pub kind: Kind,

    /// Host name or IP address of the server; without it, this is the server.
    #[arg(value_name = "HOST")]
    pub server: Option<String>,

    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,

    /// TCP port at which the two sides meet. 0 lets a server choose.
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    pub port: u16,

    /// Bytes of a message (K, M, KiB, MiB count in 1024s). By default 4096, and 2048 for ud, where it has to fit the port's
    /// path MTU.
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    pub size: Option<u64>,

    /// Messages each way.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: u32,

    /// Queue pairs, for srq; 16 by default.
    #[arg(short = 'q', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub num_qp: Option<u32>,

    /// Path MTU in bytes: 256, 512, 1024 (the default), 2048 or 4096; both sides have the same. Not for ud.
    #[arg(short, long, value_name = "BYTES", value_parser = path_mtu)]
    pub mtu: Option<u16>,

    /// Receives to post at a time.
    #[arg(short, long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub rx_depth: u32,

    /// Sleep until completions are announced, instead of polling.
    #[arg(short, long)]
    pub events: bool,

    /// Check what is received. A client sends other bytes in each message (with srq the same in all) and compares them with
    /// what comes back, as the server sends back what it got; a server checks what `ibv_*_pingpong -c` would.
    #[arg(short = 'c', long = "chk")]
    pub check: bool,

    /// Seconds that the peer may take for its part before this side gives up. A server waits for its client without end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,

    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub json: bool,
}

impl PingpongArgs {
    /// Bytes of a message.
    pub fn size(&self) -> u64 {
        let usual = if self.kind == Kind::Ud { 2048 } else { 4096 };
        self.size.unwrap_or(usual)
    }

    /// Queue pairs.
    pub fn qps(&self) -> u32 {
        match self.kind {
            Kind::Srq => self.num_qp.unwrap_or(16),
            _ => 1,
        }
    }

    /// Path MTU in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu.unwrap_or(1024)
    }

    /// Whether this side is the client.
    pub fn is_client(&self) -> bool {
        self.server.is_some()
    }

    /// The NIC. Whoever compares messages has random ones.
    pub fn nic(&self) -> NicArgs {
        if self.check && self.is_client() {
            self.nic.with_data_of_seed()
        } else {
            self.nic.clone()
        }
    }

    /// Whether the options go together.
    pub fn check(&self) -> Result<(), CliError> {
        self.nic().check()?;
        if self.size() > MAX_SIZE {
            let text = format!(
                "--size {} is more than the {MAX_SIZE} bytes that a message may have",
                self.size()
            );
            return Err(CliError::Other(text));
        }
        if self.kind != Kind::Srq && self.num_qp.is_some() {
            let text = "--num-qp is for srq: the other services have one queue pair; leave it out";
            return Err(CliError::Other(text.to_string()));
        }
        if self.kind == Kind::Ud && self.mtu.is_some() {
            let text =
                "--mtu is for connections: a datagram is one packet, of up to the port's MTU; leave it out";
            return Err(CliError::Other(text.to_string()));
        }
        if self.rx_depth < self.qps() {
            let text = format!(
                "--rx-depth {} is less than one receive for each of {} queue pairs",
                self.rx_depth,
                self.qps()
            );
            return Err(CliError::Other(text));
        }
        if self.json && self.port == 0 && self.server.is_none() {
            let text = "--port 0 tells its port in text, which --json leaves out; give a port";
            return Err(CliError::Other(text.to_string()));
        }
        if self.port == 0 && self.server.is_some() {
            return Err(CliError::Other("--port 0 is for a server".to_string()));
        }
        Ok(())
    }
}

/// Transport services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Reliable connection; the peer may be ibv_rc_pingpong.
    Rc,
    /// Unreliable connection; the peer may be ibv_uc_pingpong. A message that gets lost ends the game.
    Uc,
    /// Unreliable datagrams; the peer may be ibv_ud_pingpong. A message that gets lost ends the game.
    Ud,
    /// Reliable connections of several queue pairs on one shared receive queue; the peer may be ibv_srq_pingpong.
    Srq,
}
