//! `ferroce route` and `ferroce link`: two processes, each with a NIC of a model's, that find each other.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};

use common::{Model, PATIENCE, Said, ferroce, run, wait};
use serde_json::Value;

/// A running `ferroce link --json`.
struct Link {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl Link {
    fn start(device: &str, args: &[&str]) -> Link {
        let mut command = ferroce(["link", "--json", "-d", device]);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let commands = child.stdin.take();
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (to_test, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).expect("JSON");
                if to_test.send(value).is_err() {
                    return;
                }
            }
        });
        let mut link = Link {
            child,
            commands,
            lines,
        };
        link.hear("up");
        link
    }

    /// The next event of a kind.
    fn hear(&mut self, event: &str) -> Value {
        loop {
            let value = self.lines.recv_timeout(PATIENCE).expect("an event");
            if value["event"] == event {
                return value;
            }
        }
    }

    fn tell(&mut self, line: &str) {
        self.tell_bytes(line.as_bytes());
    }

    fn tell_bytes(&mut self, line: &[u8]) {
        let commands = self.commands.as_mut().expect("not closed");
        commands.write_all(&[line, b"\n"].concat()).expect("it reads");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn device(model: &Model, index: usize) -> String {
    format!("vfio-user:{}", model.sockets[index].display())
}

fn route(model: &Model, args: &[&str]) -> Said {
    let device = device(model, 0);
    run([
        "route",
        "-d",
        &device,
        "--address",
        "10.9.0.1/24",
        "--address",
        "fd00:9::1/64",
    ]
    .into_iter()
    .chain(args.iter().copied()))
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

#[test]
fn g01_route_says_which_gid_is_used_and_why() {
    let model = Model::start(&[]);
    let mut peer = Link::start(
        &device(&model, 1),
        &[
            "--address",
            "10.9.0.2/24",
            "--address",
            "fd00:9::2/64",
            "--duplicate-detection",
            "off",
        ],
    );
    for (destination, index) in [("10.9.0.2", 3), ("fd00:9::2", 5), ("fe80::fe:cff:fee0:2", 1)] {
        let said = route(&model, &["--json", destination]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let report = json(&said);
        assert_eq!(
            (&report["ok"], &report["gid_index"]),
            (&true.into(), &index.into()),
            "{report}"
        );
        assert_eq!(report["next_hop_mac"], "02:fe:0c:e0:00:02");
        assert_eq!(report["gids"].as_array().map(Vec::len), Some(6));
        let used = |row: &&Value| row["used"] == true;
        assert_eq!(
            report["gids"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(used)
                .count(),
            1
        );
    }
    let said = route(&model, &["10.9.0.2"]);
    let text: Vec<&str> = said.out.lines().collect();
    assert_eq!(
        text[0],
        "10.9.0.2 from GID 3 (10.9.0.1, RoCE v2), on the link (10.9.0.0/24)"
    );
    assert_eq!(text[1], "next hop 10.9.0.2 at 02:fe:0c:e0:00:02");
    assert!(text.contains(&"* GID 3: 10.9.0.1, RoCE v2: used"), "{text:?}");
    assert!(
        text.contains(&"  GID 2: 10.9.0.1, RoCE v1: would do, but RoCE v2 is preferred"),
        "{text:?}"
    );
    // A wrong explicit choice is refused in words, and a worse one is warned of.
    let said = route(&model, &["--gid", "1", "10.9.0.2"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err
            .contains("GID 1 (fe80::fe:cff:fee0:1, RoCE v2) can't be used to reach 10.9.0.2"),
        "{said:?}"
    );
    assert!(said.err.contains("GID 3 would do"), "{said:?}");
    let said = route(&model, &["--gid", "2", "10.9.0.2"]);
    assert!(
        said.code == Some(0) && said.out.contains("warning: GID 3 would be better"),
        "{said:?}"
    );
    peer.tell("quit");
    assert!(wait(&mut peer.child).expect("an end").success());
}

#[test]
fn route_names_what_is_missing() {
    let model = Model::start(&[]);
    let said = route(&model, &["10.1.0.2"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    assert!(
        said.err
            .contains("no address of this NIC has a prefix that covers it (10.9.0.1/24)"),
        "{said:?}"
    );
    let said = route(
        &model,
        &["--gateway", "10.9.0.254", "--no-resolve", "--json", "10.1.0.2"],
    );
    assert_eq!(
        (&json(&said)["next_hop"], said.code),
        (&"10.9.0.254".into(), Some(0))
    );
    // Nobody is there.
    let said = route(&model, &["--timeout", "0.2", "--json", "10.9.0.2"]);
    let report = json(&said);
    assert_eq!(
        (said.code, &report["ok"], &report["gid_index"]),
        (Some(1), &false.into(), &3.into())
    );
    assert!(
        report["error"]
            .as_str()
            .is_some_and(|error| error.contains("has not told its MAC")),
        "{report}"
    );
    for bad in ["10.9.0.2@4095", "peer"] {
        assert_eq!(route(&model, &[bad]).code, Some(2), "{bad}");
    }
}

#[test]
fn link_tells_what_happens_and_does_what_it_is_told() {
    let model = Model::start(&[]);
    let quick = ["--duplicate-detection", "off"];
    let mut a = Link::start(
        &device(&model, 0),
        &[&["--address", "10.9.0.1/24"], &quick[..]].concat(),
    );
    let mut b = Link::start(
        &device(&model, 1),
        &[&["--address", "10.9.0.2/24"], &quick[..]].concat(),
    );
    a.tell("resolve 10.9.0.2");
    assert_eq!(a.hear("resolved")["mac"], "02:fe:0c:e0:00:02");
    b.tell("add 10.9.0.22/24");
    b.hear("usable");
    a.tell("resolve 10.9.0.22");
    assert_eq!(a.hear("resolved")["mac"], "02:fe:0c:e0:00:02");
    a.tell("neighbours");
    assert_eq!(
        a.hear("neighbours")["neighbours"].as_array().map(Vec::len),
        Some(2)
    );
    // The same address at both ends: each hears of the other.
    b.tell("add 10.9.0.1/24");
    assert_eq!(a.hear("conflict")["mac"], "02:fe:0c:e0:00:02");
    assert_eq!(b.hear("conflict")["mac"], "02:fe:0c:e0:00:01");
    b.tell("remove 10.9.0.22");
    b.hear("addresses");
    b.tell("remove 10.9.0.22");
    assert_eq!(
        b.hear("error")["error"],
        "10.9.0.22 is no address of this interface"
    );
    // The untagged network by its name.
    a.tell("resolve 10.9.0.2@0");
    assert_eq!(a.hear("resolved")["mac"], "02:fe:0c:e0:00:02");
    for line in [
        "add 10.9.0.1",
        "resolve x",
        "dance",
        "resolve 10.9.0.9@7",
        "resolve 10.9.0.2@4095",
    ] {
        a.tell(line);
        a.hear("error");
    }
    a.tell_bytes(b"\xff\xfe");
    a.hear("error");
    a.tell("resolve 10.9.0.99");
    a.tell("neighbours");
    let neighbours = a.hear("neighbours");
    let silent = neighbours["neighbours"]
        .as_array()
        .and_then(|all| all.iter().find(|n| n["neighbour"] == "10.9.0.99"));
    assert_eq!(silent.map(|n| &n["mac"]), Some(&Value::Null), "{neighbours}");
    a.tell("counters");
    assert_eq!(a.hear("counters")["malformed"], 0);
    a.tell("quit");
    assert!(wait(&mut a.child).expect("an end").success());
}
