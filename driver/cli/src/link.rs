//! `ferroce link`: a NIC that answers for its addresses, and tells what happens on its link.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ferroce::link::{
    AddressError, Agent, DuplicateDetection, InterfaceAddress, LinkEvent, NeighbourKey, Place,
};
use serde_json::{Value, json};

use crate::error::{CliError, chain};
use crate::nic::{Nic, NicArgs};
use crate::output::say;

/// Arguments of `link`.
#[derive(Debug, Args)]
#[command(
    after_help = "Commands on standard input, one a line: `add IP/PREFIX[@VLAN]`, `remove IP[@VLAN]`, `resolve \
                        IP[@VLAN]`, `watch IP[@VLAN]`, `addresses`, `neighbours`, `counters`, `quit`."
)]
pub struct LinkArgs {
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,

    /// Whether others with its addresses are looked for.
    #[arg(long, value_enum, default_value_t = Detection::BeforeUse)]
    pub duplicate_detection: Detection,

    /// Stop by itself after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,

    /// Print a JSON object for each thing that happens, one a line.
    #[arg(long)]
    pub json: bool,
}

/// Whether others with an address are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Detection {
    /// Before it is used, as the standards say: 4 to 9 seconds for IPv4.
    BeforeUse,
    /// While it is used already.
    Optimistic,
    /// Not at all.
    Off,
}

impl From<Detection> for DuplicateDetection {
    fn from(detection: Detection) -> DuplicateDetection {
        match detection {
            Detection::BeforeUse => DuplicateDetection::BeforeUse,
            Detection::Optimistic => DuplicateDetection::Optimistic,
            Detection::Off => DuplicateDetection::Off,
        }
    }
}

/// What the main thread hears of.
enum News {
    Event(LinkEvent),
    Command(String),
    Stop,
}

pub fn run(args: &LinkArgs) -> Result<ExitCode, CliError> {
    let (to_main, news) = channel();
    let on_signal = to_main.clone();
    ctrlc::set_handler(move || drop(on_signal.send(News::Stop))).map_err(|e| CliError::Other(chain(&e)))?;
    let nic = Nic::open_with(&args.nic, args.duplicate_detection.into())?;
    nic.with(|nic| serve(args, nic, to_main, &news))?;
    Ok(ExitCode::SUCCESS)
}

fn serve(args: &LinkArgs, nic: &Nic, to_main: Sender<News>, news: &Receiver<News>) -> Result<(), CliError> {
    let agent = nic.agent()?;
    let out = Out { json: args.json };
    let events = to_main.clone();
    let _guard = agent.on_event(move |event| drop(events.send(News::Event(*event))));
    out.tell(
        "up",
        &format!("{} is up", agent.mac()),
        json!({ "mac": agent.mac().to_string() }),
    );
    out.addresses(agent);
    read_commands(to_main).map_err(|e| CliError::System("can't start a thread", e))?;
    let end = args
        .seconds
        .and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let mut watches = Vec::new();
    loop {
        let next = match end {
            None => news.recv().ok(),
            Some(end) => news
                .recv_timeout(end.saturating_duration_since(Instant::now()))
                .ok(),
        };
        match next {
            None | Some(News::Stop) => return Ok(()),
            Some(News::Event(event)) => out.event(&event),
            Some(News::Command(line)) => match obey(&out, nic, agent, &mut watches, &line) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => out.tell("error", &error, json!({ "command": line, "error": error })),
            },
        }
    }
}

/// Hands the lines of standard input on, until it ends.
fn read_commands(to_main: Sender<News>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("stdin".into());
    let read = move || {
        for line in std::io::stdin().lock().split(b'\n') {
            let Ok(line) = line else { return };
            // What is no text is no command either, and said to be none.
            let line = String::from_utf8_lossy(&line).into_owned();
            if to_main.send(News::Command(line)).is_err() {
                return;
            }
        }
    };
    thread.spawn(read).map(drop)
}

/// Does what a line says; false to stop.
fn obey(
    out: &Out,
    nic: &Nic,
    agent: &Agent,
    watches: &mut Vec<ferroce::link::Watch>,
    line: &str,
) -> Result<bool, String> {
    let mut words = line.split_whitespace();
    let (Some(verb), object) = (words.next(), words.next()) else {
        return Ok(true);
    };
    let object = object.unwrap_or_default();
    match verb {
        "add" => {
            let address: InterfaceAddress = object.parse().map_err(text)?;
            agent.add_address(address).map_err(text)?;
            out.addresses(agent);
        }
        "remove" => {
            let NeighbourKey { ip, vlan } = place(object)?;
            agent.remove_address(ip, vlan).map_err(text)?;
            out.addresses(agent);
        }
        "resolve" => {
            let NeighbourKey { ip, vlan } = place(object)?;
            let mac = agent
                .resolve(ip, vlan, Instant::now() + Duration::from_secs(5))
                .map_err(text)?;
            out.tell(
                "resolved",
                &format!("{ip} is at {mac}"),
                json!({ "ip": ip, "mac": mac.to_string() }),
            );
        }
        "watch" => watches.push(agent.watch(place(object)?).map_err(text)?),
        "addresses" => out.addresses(agent),
        "neighbours" => out.neighbours(agent),
        "counters" => out.counters(agent, &nic.counted()),
        "quit" => return Ok(false),
        _ => {
            return Err(format!(
                "{verb:?} is none of add, remove, resolve, watch, addresses, neighbours, counters, quit"
            ));
        }
    }
    Ok(true)
}

fn text(error: impl std::error::Error) -> String {
    chain(&error)
}

/// `IP`, which is on the untagged network, or `IP@VLAN`.
fn place(text: &str) -> Result<NeighbourKey, String> {
    let Place { ip, vlan } = text.parse().map_err(|error: AddressError| error.to_string())?;
    let vlan = vlan.flatten();
    Ok(NeighbourKey { vlan, ip })
}

/// Where news go.
struct Out {
    json: bool,
}

impl Out {
    fn tell(&self, what: &str, line: &str, mut facts: Value) {
        if !self.json {
            say!("{line}");
            return;
        }
        if let Some(facts) = facts.as_object_mut() {
            facts.insert("event".into(), what.into());
        }
        say!("{facts}");
    }

    fn addresses(&self, agent: &Agent) {
        let addresses = agent.addresses();
        let all: Vec<_> = addresses
            .iter()
            .map(|(address, state)| format!("{address} ({state:?})"))
            .collect();
        let facts: Vec<_> = addresses
            .iter()
            .map(|(address, state)| json!({ "address": address.to_string(), "state": format!("{state:?}") }))
            .collect();
        self.tell(
            "addresses",
            &format!("addresses: {}", all.join(", ")),
            json!({ "addresses": facts }),
        );
    }

    fn neighbours(&self, agent: &Agent) {
        let neighbours = agent.neighbours();
        let mac = |mac: Option<_>| {
            mac.map_or_else(
                || "-".to_owned(),
                |mac: ferroce::port::MacAddress| mac.to_string(),
            )
        };
        let all: Vec<_> = neighbours
            .iter()
            .map(|n| format!("{} at {} ({:?})", key(&n.key), mac(n.mac), n.state))
            .collect();
        let facts: Vec<_> = neighbours
            .iter()
            .map(
                |n| json!({ "neighbour": key(&n.key), "mac": n.mac.map(|mac| mac.to_string()), "state": format!("{:?}", n.state) }),
            )
            .collect();
        self.tell(
            "neighbours",
            &format!("neighbours: {}", all.join(", ")),
            json!({ "neighbours": facts }),
        );
    }

    fn counters(&self, agent: &Agent, nic: &Value) {
        let counters = agent.counters();
        let (link, ethernet) = (counters.link, counters.ethernet);
        let facts = json!({
            "frames_in": link.frames_in,
            "malformed": link.malformed,
            "ignored": link.ignored,
            "frames_out": link.frames_out,
            "echo_replies": link.echo_replies,
            "echo_limited": link.echo_limited,
            "resolutions_answered": link.resolutions_answered,
            "conflicts": link.conflicts,
            "queue_errors": ethernet.errors,
            "wakes": counters.wakes,
            "port": nic["port"],
            "congestion": nic["congestion"],
        });
        self.tell("counters", &format!("counters: {facts}"), facts.clone());
    }

    fn event(&self, event: &LinkEvent) {
        let (what, line, facts) = match event {
            LinkEvent::AddressUsable { address } => {
                let address = address.to_string();
                (
                    "usable",
                    format!("{address} is used"),
                    json!({ "address": address }),
                )
            }
            LinkEvent::AddressDuplicate { address, mac } => {
                let facts = json!({ "address": address.to_string(), "mac": mac.to_string() });
                ("duplicate", format!("{address} is not used: {mac} has it"), facts)
            }
            LinkEvent::AddressConflict { address, mac } => {
                let facts = json!({ "address": address.to_string(), "mac": mac.to_string() });
                (
                    "conflict",
                    format!("{mac} claims {address}, which is ours"),
                    facts,
                )
            }
            LinkEvent::NeighbourChanged { neighbour, old, new } => {
                let facts =
                    json!({ "neighbour": key(neighbour), "old": old.to_string(), "mac": new.to_string() });
                (
                    "moved",
                    format!("{} went from {old} to {new}", key(neighbour)),
                    facts,
                )
            }
            LinkEvent::NeighbourReachable { neighbour, mac } => {
                let facts = json!({ "neighbour": key(neighbour), "mac": mac.to_string() });
                ("reachable", format!("{} is at {mac}", key(neighbour)), facts)
            }
            LinkEvent::NeighbourUnreachable { neighbour } => {
                let line = format!("{} does not answer", key(neighbour));
                ("unreachable", line, json!({ "neighbour": key(neighbour) }))
            }
            other => (
                "other",
                format!("{other:?}"),
                json!({ "text": format!("{other:?}") }),
            ),
        };
        self.tell(what, &line, facts);
    }
}

fn key(neighbour: &NeighbourKey) -> String {
    match neighbour.vlan {
        None => neighbour.ip.to_string(),
        Some(vlan) => format!("{}@{vlan}", neighbour.ip),
    }
}
