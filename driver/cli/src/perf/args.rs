//! The options, which are perftest's where it has them.

use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::args::{path_mtu, size};
use crate::error::CliError;
use crate::nic::NicArgs;

/// Largest message in bytes.
const MAX_SIZE: u64 = 1 << 30;
/// Sizes with `-a`: powers of two up to 8 MiB, as perftest.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

/// Arguments of `perf`.
#[derive(Debug, Args)]
pub struct PerfArgs {
    /// What is measured. Bandwidth: the client sends, as much at a time as --tx-depth says. Latency of WRITE and SEND: half
    /// of the time there and back; of READ and atomics: the whole.
    #[arg(value_enum)]
    pub test: Test,

    /// Host name or IP address of the server, with -R the IP address of its NIC; without it, this is the server.
    #[arg(value_name = "HOST")]
    pub server: Option<String>,

    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,

    /// Port at which the two sides meet: of TCP, or with -R of the connection manager's. 0 lets a server choose.
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    pub port: u16,

    /// Meet and connect by the connection manager, as RDMA CM does, instead of over TCP: the NICs' wire is all that is needed.
    #[arg(short = 'R', long)]
    pub rdma_cm: bool,

    /// The other side is Linux's perftest: `ib_write_bw`, `ib_write_lat` and so on, without -R there and with -x for a GID.
    /// Give both the same -s, -a, -n and -q, which they don't compare.
    #[arg(long, conflicts_with = "rdma_cm")]
    pub with_perftest: bool,

    /// Bytes of a message (K, M, KiB, MiB count in 1024s). By default 65536 for bandwidth, 8 for latency of atomics, else 2.
    #[arg(short, long, value_name = "BYTES", value_parser = size, conflicts_with = "all")]
    pub size: Option<u64>,

    /// All sizes that are powers of two, from 2 bytes to 8 MiB.
    #[arg(short, long)]
    pub all: bool,

    /// Messages of each size and queue pair. By default 1000, and 5000 for write-bw.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: Option<u32>,

    /// Queue pairs, for bandwidth.
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub qps: u32,

    /// Messages under way at a time, of each queue pair, for bandwidth.
    #[arg(short, long, value_name = "COUNT", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub tx_depth: u32,

    /// Receives posted at a time, of each queue pair, for SEND.
    #[arg(short, long, value_name = "COUNT", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub rx_depth: u32,

    /// Messages of up to so many bytes are sent inline, for WRITE and SEND.
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=928))]
    pub inline: u32,

    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = path_mtu)]
    pub mtu: u16,

    /// Sleep until completions are announced, instead of polling. Not for write-lat, which has no completion to wait for.
    #[arg(short, long)]
    pub events: bool,

    /// How long a queue pair waits for an acknowledgement before it sends again: 4.096 us * 2^EXPONENT, by default 67 ms. With -R
    /// the client's is used for both.
    #[arg(short = 'u', long, value_name = "EXPONENT", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    pub qp_timeout: u8,

    /// Seconds that the peer may take for its part before this side gives up. A server waits for its client without end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,

    /// Print one JSON object on standard output instead of text, with a histogram of each latency.
    #[arg(long)]
    pub json: bool,
}

impl PerfArgs {
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    pub fn is_client(&self) -> bool {
        self.server.is_some()
    }

    pub fn iters(&self) -> u32 {
        self.iters
            .unwrap_or(if self.test == Test::WriteBw { 5000 } else { 1000 })
    }

    /// Sizes to measure, in bytes.
    pub fn sizes(&self) -> Vec<usize> {
        if self.all && self.test != Test::AtomicLat {
            return PerfArgs::all_sizes();
        }
        let usual = match self.test {
            Test::AtomicLat => 8,
            test if test.is_bandwidth() => 65536,
            _ => 2,
        };
        // Bounded by `check`.
        vec![self.size.unwrap_or(usual) as usize]
    }

    /// Those of `-a`.
    pub fn all_sizes() -> Vec<usize> {
        ALL_SIZES.map(|log| 1 << log).collect()
    }

    /// The largest of them.
    pub fn largest(&self) -> usize {
        self.sizes().into_iter().max().unwrap_or(1)
    }

    /// Queue pairs.
    pub fn qps(&self) -> u32 {
        if self.test.is_bandwidth() { self.qps } else { 1 }
    }

    /// Whether the options go together.
    pub fn check(&self) -> Result<(), CliError> {
        let refuse = |text: String| Err(CliError::Other(text));
        let size = self.size.unwrap_or(2);
        if size == 0 || size > MAX_SIZE {
            return refuse(format!("--size {size} is not from 1 to {MAX_SIZE}"));
        }
        if self.test == Test::AtomicLat && self.size.is_some_and(|size| size != 8) {
            return refuse(format!("--size {size}: atomics are of 8 bytes"));
        }
        if self.test == Test::WriteLat && self.events {
            return refuse("write-lat has no --events: the data themselves are looked at".to_string());
        }
        if self.qps > 1 && !self.test.is_bandwidth() {
            return refuse(format!(
                "--qps {}: latency is measured on one queue pair",
                self.qps
            ));
        }
        if self.rdma_cm {
            self.check_rdma_cm()?;
        }
        if self.port == 0 && (self.json || self.is_client()) {
            return refuse("--port 0 is for a server without --json, which tells the port".to_string());
        }
        Ok(())
    }

    /// With -R there is no exchange, and the link agent finds the peer.
    fn check_rdma_cm(&self) -> Result<(), CliError> {
        if let Some(host) = &self.server
            && host.parse::<IpAddr>().is_err()
        {
            return Err(CliError::Other(format!(
                "{host:?} is no IP address: -R needs that of the server's NIC, as nothing else of the server is asked"
            )));
        }
        self.nic.check_managed(!self.is_client())
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Bandwidth of RDMA WRITE.
    WriteBw,
    /// Latency of RDMA WRITE.
    WriteLat,
    /// Bandwidth of RDMA READ.
    ReadBw,
    /// Latency of RDMA READ.
    ReadLat,
    /// Bandwidth of SEND.
    SendBw,
    /// Latency of SEND.
    SendLat,
    /// Latency of fetch-and-add.
    AtomicLat,
}

impl Test {
    pub fn is_bandwidth(self) -> bool {
        matches!(self, Test::WriteBw | Test::ReadBw | Test::SendBw)
    }

    pub fn is_send(self) -> bool {
        matches!(self, Test::SendBw | Test::SendLat)
    }
}
