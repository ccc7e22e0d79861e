//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ferroce::function::{FunctionAddress, FunctionError, PciAddress};
use ferroce::host::Host;
use ferroce::port::MacAddress;
use ferroce_nic_model::profile::Profile as NicProfile;

use crate::cmtools::{CmtimeArgs, MessagesArgs};
use crate::error::CliError;
use crate::exercise::Step;
use crate::link::LinkArgs;
use crate::nic::GidChoice;
use crate::operations::OperationsArgs;
use crate::perf::PerfArgs;
use crate::perftest::PerftestArgs;
use crate::pingpong::PingpongArgs;
use crate::route::RouteArgs;
use crate::rping::RpingArgs;

/// A kernel-bypass driver for RoCE NICs.
#[derive(Debug, Parser)]
#[command(name = "ferroce", version, about, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Say more than warnings: -v what the driver does, -vv everything (RUST_LOG refines it).
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

impl Command {
    /// Whether a machine reads the result.
    pub fn json(&self) -> bool {
        match self {
            Command::Demo(args) => args.json,
            Command::Info(args) => args.json,
            Command::Devices(args) => args.host.json,
            Command::Doctor(args) => args.host.json,
            Command::Bind(args) => args.host.json,
            Command::Unbind(args) => args.host.json,
            Command::Pingpong(args) => args.json,
            Command::Perf(args) => args.json,
            Command::Rping(args) => args.json,
            Command::Ucmatose(args) | Command::Udaddy(args) => args.cm.json,
            Command::Cmtime(args) => args.cm.json,
            Command::Operations(_) | Command::Perftest(_) => true,
            Command::Route(args) => args.json,
            Command::Link(args) => args.json,
            Command::Model(_) | Command::Exercise(_) | Command::Report(_) => false,
        }
    }
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Move a file between two NIC models with the whole driver, and check every byte.
    Demo(DemoArgs),
    /// Run a NIC model that other processes (this driver, QEMU) reach over vfio-user.
    Model(ModelArgs),
    /// Show what a NIC is and can.
    Info(InfoArgs),
    /// List this machine's RoCE-capable functions, and what each lacks for this driver.
    Devices(DevicesArgs),
    /// Check what the driver needs, and say how to mend what is wrong. Exit status 1 when a check fails.
    Doctor(DoctorArgs),
    /// Give a function to vfio-pci, so that this driver can open it.
    Bind(BindArgs),
    /// Give a function back to the driver that it had before `bind`. Waits for processes that have it open.
    Unbind(UnbindArgs),
    /// Bring a NIC up and down, and write what its supporters need to see of it to a file: capabilities, firmware
    /// commands and their answers, registers, health, counters. MAC addresses and GUIDs are blotted out; look through it before
    /// you send it.
    Report(ReportArgs),
    /// Send messages to and fro, and say how long they take. The peer is another `ferroce pingpong`, or `ibv_rc_pingpong`
    /// and its siblings on Linux.
    Pingpong(PingpongArgs),
    /// Measure bandwidth or latency between two sides.
    Perf(PerfArgs),
    /// Connect by the connection manager and let the server read from the client and write back, again and again. The peer
    /// is another `ferroce rping`, or `rping` on Linux.
    Rping(RpingArgs),
    /// Connect by the connection manager and send messages, the server first. The peer is another `ferroce ucmatose`, or
    /// `ucmatose` on Linux.
    Ucmatose(MessagesArgs),
    /// Find a datagram service by the connection manager and send messages, the client first. The peer is another
    /// `ferroce udaddy`, or `udaddy` on Linux.
    Udaddy(MessagesArgs),
    /// Make many connections by the connection manager at once, and say how long it takes. The peer is another
    /// `ferroce cmtime`, or `cmtime` on Linux, which wants to talk by TCP as well (--sync).
    Cmtime(CmtimeArgs),
    /// All RC operations by chance with a program at the other end, for tests.
    #[command(hide = true)]
    Operations(OperationsArgs),
    /// Say which GID a connection to an address would use, through which next hop, and why no other one. Exit status 1 when
    /// there is no way, or nobody answers there.
    Route(RouteArgs),
    /// Bring a NIC up and answer for its addresses (ARP, neighbour discovery, ping) until it is stopped.
    Link(LinkArgs),
    /// A peer for perftest's ib_atomic_bw, for tests.
    #[command(hide = true)]
    Perftest(PerftestArgs),
    /// Hold a NIC and do one step after the other, for tests.
    #[command(hide = true)]
    Exercise(ExerciseArgs),
}

/// How a wire misbehaves.
#[derive(Clone, Copy, Debug, Args)]
pub struct FaultArgs {
    /// Fraction of frames that get lost, 0 to 1. A connection gives up where a packet is lost eight times in a row, which
    /// happens now and then from 0.2 on.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = fraction)]
    pub loss: f64,

    /// Fraction of frames that arrive after later ones.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = fraction)]
    pub reorder: f64,

    /// Fraction of frames that arrive twice.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = fraction)]
    pub duplicate: f64,

    /// Fraction of frames in which a bit flips.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = fraction)]
    pub corrupt: f64,

    /// Fraction of the frames that take part in ECN that are marked "congestion experienced", as by a full switch.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = fraction)]
    pub mark: f64,

    /// Seed of the faults, and of random data: the same seed gives the same faults. 1 by default.
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
}

impl FaultArgs {
    /// Seed of the faults, and of random data.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// The options that give a program the same faults.
    pub fn arguments(&self) -> Vec<String> {
        let FaultArgs {
            loss,
            reorder,
            duplicate,
            corrupt,
            mark,
            seed,
        } = self;
        let fractions = [
            ("--loss", loss),
            ("--reorder", reorder),
            ("--duplicate", duplicate),
            ("--corrupt", corrupt),
            ("--mark", mark),
        ];
        let fractions = fractions.map(|(name, value)| format!("{name}={value}"));
        let seed = seed.map(|seed| format!("--seed={seed}"));
        fractions.into_iter().chain(seed).collect()
    }
}

/// Which frames of a wire to somebody else suffer its faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FaultsOn {
    /// Those that this NIC sends.
    #[default]
    Sent,
    /// Those that come to it.
    Received,
    /// All.
    Both,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The file to transfer; without it, random bytes.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,

    /// Where the copy goes; without it, it is only checked.
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,

    /// How many random bytes, when no file is given (K, M, G, KiB, MiB, GiB count in 1024s).
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = size, conflicts_with = "file")]
    pub size: u64,

    /// How driver and models meet.
    #[arg(long, value_enum, default_value_t = Transport::InProcess)]
    pub transport: Transport,

    /// Use this NIC (`0000:3b:00.0`, with `group:` or `iommufd:` before it for one way through VFIO, or `vfio-user:PATH`)
    /// instead of a model. To be given twice, for two NICs that are joined by a cable or a switch.
    #[arg(
        long = "device",
        value_name = "DEV",
        num_args = 1,
        conflicts_with_all = ["transport", "profile", "pcap", "loss", "reorder", "duplicate", "corrupt", "mark"]
    )]
    pub devices: Vec<FunctionAddress>,

    /// Be the side to which the file goes, with one `--device`; the other side is this program elsewhere, which says
    /// `--connect`. TCP port, 0 for any; over it the sides say where they are.
    #[arg(
        long,
        value_name = "PORT",
        requires = "devices",
        conflicts_with_all = ["connect", "file", "size", "mtu", "seed"]
    )]
    pub listen: Option<u16>,

    /// Be the side that sends the file, with one `--device`, to the side that listens there.
    #[arg(long, value_name = "HOST:PORT", requires = "devices", conflicts_with = "out")]
    pub connect: Option<String>,

    /// Which of the NICs' GIDs to use, and so which frames go over the wire: roce-v2-ipv4, roce-v2-ipv6, roce-v2-link-local,
    /// roce-v1, or an index of both tables.
    #[arg(long, value_name = "GID", default_value = "roce-v2-ipv4")]
    pub gid: GidChoice,

    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096. The side that connects chooses.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = path_mtu)]
    pub mtu: u16,

    /// Traffic class of the packets: DSCP in the upper 6 bits, ECN in the lower 2. --mark marks those with an ECN of 1 or 2.
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    pub traffic_class: u8,

    /// Which NIC the models are.
    #[arg(long, value_enum, default_value_t = Profile::Connectx4)]
    pub profile: Profile,

    /// How the wire misbehaves.
    #[command(flatten)]
    pub faults: FaultArgs,

    /// Write the wire's frames to this file.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub json: bool,
}

impl DemoArgs {
    /// Whether the options go together.
    ///
    /// # Errors
    /// Marks that no frame would get.
    pub fn check(&self) -> Result<(), CliError> {
        // ECT(1) and ECT(0) (RFC 3168, 5).
        if self.faults.mark > 0.0 && !matches!(self.traffic_class & 3, 1 | 2) {
            return Err(CliError::Other(format!(
                "--mark {} marks frames that take part in ECN, which those of --traffic-class {} don't; give one with an ECN \
                 of 1 or 2, such as 2",
                self.faults.mark, self.traffic_class
            )));
        }
        Ok(())
    }
}

/// Arguments of `model`.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Socket at which a NIC is served. Given twice, two NICs are joined by a cable.
    #[arg(long, value_name = "PATH", required = true, num_args = 1)]
    pub socket: Vec<PathBuf>,

    /// MAC address of the first NIC; a second one has the next. By default 02:fe:44:0c:e0:01, and the next at that end of a
    /// --wire whose LOCAL comes after its REMOTE in the alphabet.
    #[arg(long, value_name = "MAC", value_parser = own_mac)]
    pub mac: Option<MacAddress>,

    /// Which NIC it is.
    #[arg(long, value_enum, default_value_t = Profile::Connectx4)]
    pub profile: Profile,

    /// Where the frames of a single NIC go: `dgram:LOCAL,REMOTE` (unix datagram sockets, one Ethernet frame each, as
    /// QEMU's `-netdev dgram`), or `none`: no cable. Given once for each port, from port 1 on.
    #[arg(long, value_name = "WIRE", default_value = "none")]
    pub wire: Vec<Wire>,

    /// Ports of the NIC, each with a wire of its own; two NICs have a cable for each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(NicProfile::MAX_PORTS)))]
    pub ports: u8,

    /// How the wire misbehaves.
    #[command(flatten)]
    pub faults: FaultArgs,

    /// Which frames of --wire misbehave. Where the other end is a model too, it has options of its own for what it sends.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t, requires = "wire")]
    pub faults_on: FaultsOn,

    /// Write the wire's frames to this file.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Write each firmware command and its answer to this file, decoded and as a hexdump.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Write commands, registers, doorbells, work queue entries, completions and events to this file, one JSON object a
    /// line.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// A NIC without function reset: what its user leaves behind stays until the next one tears it down.
    #[arg(long)]
    pub no_reset: bool,

    /// Listen at this unix socket for commands, one a line: `fatal NIC [SYNDROME]` (a fatal firmware error, as the health
    /// buffer shows it), `health NIC SYNDROME` (one that is not fatal), `port NIC down|up [PORT]` (its wire is pulled out or
    /// plugged in), `release NIC` (the host wants the function back), `state NIC`. NICs are numbered from 0, ports from 1.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Stop by itself when the first client of each socket has gone.
    #[arg(long)]
    pub once: bool,
}

/// Arguments of `info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The NIC: `0000:3b:00.0` (`group:` or `iommufd:` before it chooses the way through VFIO) or `vfio-user:PATH`.
    #[arg(value_name = "DEV")]
    pub device: FunctionAddress,

    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Where the machine is looked at.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Look at the folders sys, dev, proc and run of this one, which imitates a machine.
    #[arg(long, value_name = "DIR", hide = true)]
    pub root: Option<PathBuf>,

    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub json: bool,
}

impl HostArgs {
    /// The machine.
    pub fn host(&self) -> Host {
        self.root.as_deref().map_or_else(Host::new, Host::imitated)
    }
}

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Where, and how it is printed.
    #[command(flatten)]
    pub host: HostArgs,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The function to look at, such as `0000:3b:00.0`; without it, all.
    #[arg(value_name = "ADDR", value_parser = on_the_bus)]
    pub address: Option<PciAddress>,

    /// Where, and how it is printed.
    #[command(flatten)]
    pub host: HostArgs,
}

/// Arguments of `bind`.
#[derive(Debug, Args)]
pub struct BindArgs {
    /// The function, such as `0000:3b:00.0`.
    #[arg(value_name = "ADDR", value_parser = on_the_bus)]
    pub address: PciAddress,

    /// Also when its network interface is up or has addresses, or can't be seen: it may be in a container.
    #[arg(long)]
    pub force: bool,

    /// Where, and how it is printed.
    #[command(flatten)]
    pub host: HostArgs,
}

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The NIC: `0000:3b:00.0` (`group:` or `iommufd:` before it chooses the way through VFIO) or `vfio-user:PATH`.
    #[arg(value_name = "DEV")]
    pub device: FunctionAddress,

    /// Where the report goes.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Arguments of `exercise`.
#[derive(Debug, Args)]
pub struct ExerciseArgs {
    /// The NIC.
    #[arg(value_name = "DEV")]
    pub device: FunctionAddress,

    /// What to do.
    #[arg(value_name = "STEP", required = true)]
    pub steps: Vec<Step>,

    /// Give firmware huge pages.
    #[arg(long)]
    pub huge_firmware_pages: bool,
}

/// Arguments of `unbind`.
#[derive(Debug, Args)]
pub struct UnbindArgs {
    /// The function, such as `0000:3b:00.0`.
    #[arg(value_name = "ADDR", value_parser = on_the_bus)]
    pub address: PciAddress,

    /// Where, and how it is printed.
    #[command(flatten)]
    pub host: HostArgs,
}

/// How driver and model meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// The models are objects in this process.
    InProcess,
    /// The models run in a process of their own, reached over vfio-user sockets.
    VfioUser,
}

/// Which NIC a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// The ConnectX-4 whose answers were recorded.
    Connectx4,
    /// A ConnectX-4 with the least that drivers need.
    Minimal,
    /// A ConnectX-5.
    Connectx5,
    /// A ConnectX-6 Dx.
    Connectx6dx,
    /// A virtual function.
    Vf,
    /// A virtual function with the least that drivers need.
    MinimalVf,
}

/// Where a model's frames go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Nowhere.
    None,
    /// A pair of unix datagram sockets.
    Dgram {
        /// Where frames are received.
        local: PathBuf,
        /// Where they are sent.
        remote: PathBuf,
    },
}

impl Wire {
    /// MAC address of a model's NIC at this end, where none is given: models at both ends have different ones.
    pub fn default_mac(&self) -> MacAddress {
        let mut mac = DEFAULT_MAC;
        if let Wire::Dgram { local, remote } = self {
            // One side may say it from another folder.
            let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
            mac[5] += u8::from(whole(local) > whole(remote));
        }
        MacAddress(mac)
    }
}

/// Locally administered.
pub const DEFAULT_MAC: [u8; 6] = [0x02, 0xfe, 0x44, 0x0c, 0xe0, 0x01];

impl std::str::FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Wire, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Wire::None),
            Some(("dgram", paths)) => match paths.split_once(',') {
                Some((local, remote)) if !local.is_empty() && local == remote => Err(format!(
                    "both ends of the wire are {local}; the other side has the names turned round: dgram:LOCAL,REMOTE and \
                     dgram:REMOTE,LOCAL"
                )),
                Some((local, remote)) if !local.is_empty() && !remote.is_empty() => Ok(Wire::Dgram {
                    local: local.into(),
                    remote: remote.into(),
                }),
                _ => Err("dgram needs two paths: dgram:LOCAL,REMOTE".to_string()),
            },
            _ => Err("a wire is none or dgram:LOCAL,REMOTE".to_string()),
        }
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("it must be a fraction from 0 to 1, such as 0.01 for one in a hundred".to_string()),
    }
}

/// What a port can have: no group address, not zero.
pub fn own_mac(text: &str) -> Result<MacAddress, String> {
    let mac: MacAddress = text
        .parse()
        .map_err(|e: <MacAddress as std::str::FromStr>::Err| e.to_string())?;
    if mac.0[0] & 1 != 0 {
        return Err("it is a multicast address; a NIC's own has an even first byte".to_string());
    }
    if mac.0 == [0; 6] {
        return Err("all zeros is no NIC's address".to_string());
    }
    Ok(mac)
}

/// A function on the PCI bus, where other kinds of devices don't do.
fn on_the_bus(text: &str) -> Result<PciAddress, String> {
    text.parse().map_err(|error| match error {
        FunctionError::BadAddress { reason, .. } => {
            format!("it must be a function on the PCI bus, such as 0000:3b:00.0: {reason}")
        }
        error => error.to_string(),
    })
}

pub fn path_mtu(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("a path MTU is 256, 512, 1024, 2048 or 4096".to_string()),
    }
}

/// A number of bytes such as `4096`, `64K` or `1GiB`.
pub fn size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => {
            return Err(format!(
                "unknown unit {unit:?}; K, M, G, KiB, MiB and GiB are known"
            ));
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "it must be a number of bytes, such as 4096 or 64MiB".to_string())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes <= MAX_BYTES)
        .ok_or_else(|| format!("more than {} GiB", MAX_BYTES >> 30))
}

/// The most that the demo keeps in memory, three times over.
pub const MAX_BYTES: u64 = 4 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn faults_can_be_told_to_another_program() {
        #[derive(Debug, Parser)]
        struct Faults {
            #[command(flatten)]
            faults: FaultArgs,
        }
        for given in [
            &[][..],
            &[
                "--loss=0.1",
                "--reorder=0.2",
                "--duplicate=0.3",
                "--corrupt=1",
                "--mark=0.5",
                "--seed=7",
            ],
        ] {
            let told = |args: &[String]| {
                Faults::parse_from(std::iter::once("model").chain(args.iter().map(String::as_str))).faults
            };
            let given: Vec<_> = given.iter().map(|option| option.to_string()).collect();
            let faults = told(&given);
            assert_eq!(format!("{:?}", told(&faults.arguments())), format!("{faults:?}"));
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64K"), Ok(64 << 10));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert!(size("5G").is_err());
        assert!(size("1T").is_err());
        assert!(size("-1").is_err());
        assert!(size("").is_err());
    }

    #[test]
    fn wires_are_named() {
        assert_eq!("none".parse(), Ok(Wire::None));
        let (local, remote) = ("/a".into(), "/b".into());
        assert_eq!("dgram:/a,/b".parse(), Ok(Wire::Dgram { local, remote }));
        assert!("dgram:/a".parse::<Wire>().is_err());
        assert!("cable".parse::<Wire>().is_err());
        let error = "dgram:/a,/a".parse::<Wire>().unwrap_err();
        assert!(error.contains("turned round"), "{error}");
    }

    #[test]
    fn models_at_both_ends_of_a_wire_have_different_macs() {
        let here = std::env::current_dir().unwrap().join("b").display().to_string();
        let mac = |text: &str| text.parse::<Wire>().unwrap().default_mac();
        for (one, other) in [("/a", "/b"), ("/tmp/a", "b"), ("a", &here), ("x/y", "x")] {
            let macs = [(one, other), (other, one)].map(|(l, r)| mac(&format!("dgram:{l},{r}")).0[5]);
            assert!(macs == [1, 2] || macs == [2, 1], "{one}, {other}: {macs:?}");
        }
        assert_eq!(mac("none").0, DEFAULT_MAC);
    }

    #[test]
    fn what_is_bound_is_on_the_pci_bus() {
        assert!(on_the_bus("3b:00.0").is_ok());
        for text in ["vfio-user:/run/nic0.sock", "eth0", "0000:3b:00.9"] {
            let error = on_the_bus(text).unwrap_err();
            assert!(
                error.contains("0000:3b:00.0") && !error.contains("vfio-user"),
                "{error}"
            );
        }
    }

    #[test]
    fn fractions_and_mtus_have_bounds() {
        assert_eq!(fraction("0.01"), Ok(0.01));
        assert!(fraction("1.5").is_err());
        assert!(fraction("nan").is_err());
        assert!(path_mtu("1500").is_err());
        assert!(own_mac("02:00:00:00:00:01").is_ok());
        assert!(own_mac("03:00:00:00:00:01").is_err());
        assert!(own_mac("00:00:00:00:00:00").is_err());
    }
}
