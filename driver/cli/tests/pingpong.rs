//! `ferroce pingpong` between two processes, each with a NIC model of its own.

mod common;

#[path = "common/pair.rs"]
mod pair;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use common::{Said, ferroce, run};
use pair::{MACS, Pair};
use serde_json::Value;

#[track_caller]
fn both_well((server, client): &(Said, Said)) {
    assert_eq!(client.code, Some(0), "{client:?}\n{server:?}");
    assert_eq!(server.code, Some(0), "{server:?}");
    assert_eq!((client.err.as_str(), server.err.as_str()), ("", ""));
}

/// The JSON object at the end.
fn json(said: &Said) -> Value {
    let line = said.out.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

#[test]
fn rc_says_what_rdma_core_says() {
    let said = Pair::new().run(&["pingpong", "rc", "-n", "50", "-c"], &[], &[]);
    both_well(&said);
    let lines: Vec<_> = said.1.out.lines().collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(
        lines[0].starts_with("  local address:  LID 0x0000, QPN 0x"),
        "{lines:?}"
    );
    assert!(lines[0].ends_with(", GID ::ffff:10.9.0.1"), "{lines:?}");
    assert!(
        lines[1].starts_with("  remote address: LID 0x0000, QPN 0x"),
        "{lines:?}"
    );
    assert!(lines[1].ends_with(", GID ::ffff:10.9.0.2"), "{lines:?}");
    assert!(lines[2].starts_with("409600 bytes in "), "{lines:?}");
    assert!(lines[3].starts_with("50 iters in "), "{lines:?}");
}

#[test]
fn two_tools_on_a_wire_find_each_other_without_being_told_macs() {
    let said = Pair::with_own_macs().run(&["pingpong", "rc", "-n", "5", "-c"], &[], &[]);
    both_well(&said);
}

#[test]
fn datagrams_that_do_not_fit_are_refused_before_the_peer_is_told() {
    let options = ["pingpong", "ud", "-s", "4097", "-p", "0"].map(str::to_string);
    let said = run(options.into_iter().chain(Pair::new().nic(0)));
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(
        said.err.contains("--size 4097") && said.err.contains("4096 bytes"),
        "{said:?}"
    );
}

#[test]
fn sides_with_different_numbers_of_queue_pairs_are_told_so() {
    let (server, client) = Pair::new().run(
        &["pingpong", "srq", "-n", "5", "--timeout", "10"],
        &["-q", "2"],
        &["-q", "3"],
    );
    assert_eq!(client.code, Some(1), "{client:?}\n{server:?}");
    assert!(
        client.err.contains("2 queue pairs and this side 3") && client.err.contains("--num-qp"),
        "{client:?}"
    );
}

#[test]
fn the_server_answers_from_a_gid_of_the_clients_kind() {
    let pair = Pair::new();
    for (gid, server, client) in [
        ("roce-v2-ipv6", "fd00:9::2", "fd00:9::1"),
        (
            "roce-v2-link-local",
            "fe80::fe:44ff:fe0c:e002",
            "fe80::fe:44ff:fe0c:e001",
        ),
    ] {
        let options = ["--gid", gid, "--json"];
        let said = pair.run(
            &["pingpong", "rc", "-n", "20", "-e", "-s", "9000", "-m", "4096"],
            &[],
            &options,
        );
        both_well(&said);
        let result = json(&said.1);
        assert_eq!(result["ok"], true, "{result}");
        assert_eq!(result["local"][0]["gid"], client, "{result}");
        assert_eq!(result["remote"][0]["gid"], server, "{result}");
        assert_eq!(result["bytes"], 20 * 2 * 9000, "{result}");
    }
}

#[test]
fn unreliable_services_play_too() {
    let pair = Pair::new();
    for kind in ["uc", "ud"] {
        for gid in ["roce-v2-ipv4", "roce-v2-link-local"] {
            let said = pair.run(
                &["pingpong", kind, "-n", "20", "-c", "-e"],
                &[],
                &["-g", gid, "--json"],
            );
            both_well(&said);
            let result = json(&said.1);
            assert_eq!(
                (&result["ok"], &result["checked"]),
                (&true.into(), &true.into()),
                "{kind}: {result}"
            );
        }
    }
}

#[test]
fn many_queue_pairs_play_on_one_shared_receive_queue() {
    let said = Pair::new().run(
        &["pingpong", "srq", "-n", "100", "-q", "7", "-r", "20"],
        &["-c"],
        &["-c", "-e", "--json"],
    );
    both_well(&said);
    let result = json(&said.1);
    assert_eq!(result["local"].as_array().map(Vec::len), Some(7), "{result}");
    assert_eq!(result["checked"], true, "{result}");
    for (options, part) in [
        (&["srq", "-q", "9", "-r", "8"][..], "9 queue pairs"),
        (&["rc", "-q", "2"], "--num-qp is for srq"),
        (&["ud", "-m", "1024"], "--mtu is for connections"),
    ] {
        let said = run(["pingpong", "-d", "model:none"].iter().chain(options));
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(part), "{said:?}");
    }
}

#[test]
fn a_lost_datagram_ends_the_game_with_a_reason() {
    // What the server sends gets lost, its answers to who asks for its address too.
    let server = ["--loss", "1", "--peer-mac", MACS[1]];
    let client = ["--timeout", "1", "--peer-mac", MACS[0]];
    let (_, client) = Pair::new().run(&["pingpong", "ud", "-n", "5"], &server, &client);
    assert_eq!(client.code, Some(1), "{client:?}");
    assert!(client.err.contains("nothing came from the peer"), "{client:?}");
}

#[test]
fn losses_are_put_right_and_counted() {
    let bad_wire = ["--loss", "0.05", "--seed", "3"];
    let said = Pair::new().run(
        &["pingpong", "rc", "-n", "100", "-c"],
        &bad_wire,
        &[&bad_wire[..], &["--json"]].concat(),
    );
    both_well(&said);
    let result = json(&said.1);
    assert_ne!(result["losses"]["retransmissions"], 0, "{result}");
}

#[test]
fn different_sizes_are_named() {
    let (server, client) = Pair::new().run(
        &["pingpong", "rc", "-n", "5"],
        &["-s", "100"],
        &["-s", "50", "--timeout", "1"],
    );
    assert_eq!(server.code, Some(1), "{server:?}");
    assert!(
        server.err.contains("50 bytes") && server.err.contains("--size"),
        "{server:?}"
    );
    assert_eq!(client.code, Some(1), "{client:?}");
    assert!(client.err.contains("--size"), "{client:?}");
}

#[test]
fn a_peer_that_nobody_answers_for_is_named() {
    let pair = Pair::new();
    let listener = listener();
    let port = listener.local_addr().unwrap().port().to_string();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"0000:000011:abc123:00000000000000000000ffff0a090002\0")
            .unwrap();
        // Until the other side is done with it.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let options = [
        "pingpong",
        "rc",
        "127.0.0.1",
        "--json",
        "--timeout",
        "1",
        "-p",
        &port,
    ];
    let said = run(options.map(str::to_string).into_iter().chain(pair.nic(1)));
    peer.join().unwrap();
    assert_eq!(said.code, Some(1), "{said:?}");
    let result: Value = serde_json::from_str(said.out.trim()).expect("one object");
    let error = result["error"].as_str().unwrap_or_default();
    assert!(
        error.contains("the way to the peer") && error.contains("10.9.0.2"),
        "{error}"
    );
}

fn listener() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn a_choice_that_is_not_the_best_gets_a_warning() {
    let options = ["--address", "10.9.0.9/24", "--gid", "7"];
    let (server, client) = Pair::new().run(&["pingpong", "rc", "-n", "5"], &[], &options);
    assert_eq!(
        (client.code, server.code),
        (Some(0), Some(0)),
        "{client:?} {server:?}"
    );
    assert!(client.out.contains("GID ::ffff:10.9.0.9"), "{client:?}");
    assert!(
        client.err.contains("WARN") && client.err.contains("GID 3: 10.9.0.1"),
        "{client:?}"
    );
}

#[test]
fn a_server_takes_the_gid_that_route_says() {
    let folder = tempfile::tempdir().unwrap();
    let end = |name: &str| folder.path().join(name).display().to_string();
    let device = format!("model:dgram:{},{}", end("a"), end("b"));
    let nic = [
        "-d",
        &device,
        "--address",
        "10.9.0.1/24",
        "--address",
        "10.9.7.1/24@7",
        "--gateway",
        "10.20.0.0/16 via 10.9.7.254@7",
    ];
    let route = run([&["route"][..], &nic, &["--no-resolve", "--json", "10.20.0.5"]].concat());
    let route: Value = serde_json::from_str(&route.out).expect("one object");
    assert_eq!(
        (&route["source"], &route["vlan"]),
        (&"10.9.7.1".into(), &7.into())
    );
    let mut server = ferroce([&["pingpong", "rc", "-p", "0", "--timeout", "1"][..], &nic].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut out = BufReader::new(server.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("UTF-8");
    let port: u16 = line.trim().rsplit(' ').next().unwrap().parse().expect("a port");
    let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    client
        .write_all(b"0000:000011:abc123:00000000000000000000ffff0a140005\0")
        .unwrap();
    let said = Pair::end(
        server,
        out,
        line,
        &Said {
            code: Some(0),
            ..Said::default()
        },
    );
    assert!(said.out.contains("GID ::ffff:10.9.7.1"), "{said:?}");
    // The right way, where nobody is.
    assert!(said.err.contains("10.9.7.254"), "{said:?}");
}

#[test]
fn options_that_do_not_go_together_are_named() {
    let refused = |args: &[&str], code: i32, part: &str| {
        let said = run(args);
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.err.contains(part), "{part:?} is not in {said:?}");
    };
    refused(&["pingpong", "rc", "-d", "eth0"], 2, "model:dgram:LOCAL,REMOTE");
    refused(
        &["pingpong", "rc", "-d", "model:none", "--address", "10.9.0.1"],
        2,
        "10.9.0.1/24",
    );
    refused(
        &["pingpong", "rc", "-d", "model:none", "--vlan", "4095"],
        2,
        "1..=4094",
    );
    refused(
        &["pingpong", "rc", "-d", "model:none", "-p", "0", "host"],
        1,
        "for a server",
    );
    refused(&["pingpong", "rc", "-d", "model:dgram:a,a"], 2, "turned round");
    let wired = [
        "pingpong",
        "rc",
        "-d",
        "model:dgram:a,b",
        "--address",
        "10.9.0.1/24",
    ];
    for (options, part) in [
        (
            &["--gateway", "10.8.0.254"][..],
            "no --address has a network that 10.8.0.254 is in",
        ),
        (
            &["--gateway", "10.9.0.254@7"],
            "no --address has a network that 10.9.0.254 is in",
        ),
        (&["--address", "10.9.0.1/16"], "different prefixes"),
    ] {
        refused(
            &[&wired, options, &["127.0.0.1", "-p", "1", "--timeout", "1"]].concat(),
            1,
            part,
        );
    }
    // A time that no clock has is no reason to panic.
    let ages = u64::MAX.to_string();
    for tool in [
        &["pingpong", "rc"][..],
        &["perf", "read-lat"],
        &["rping", "-s"],
        &["cmtime"],
    ] {
        let asked = [tool, &["-d", "model:none", "--timeout", ages.as_str()]].concat();
        refused(&asked, 2, "1..=86400");
    }
    refused(
        &["pingpong", "rc", "-d", "model:none", "-s", "2G"],
        1,
        "1073741824",
    );
    let wired = [
        "pingpong",
        "rc",
        "-d",
        "vfio-user:/nowhere",
        "-p",
        "0",
        "--loss",
        "0.1",
    ];
    refused(&wired, 1, "--loss is for a NIC model");
    let both = [
        "pingpong",
        "rc",
        "-d",
        "vfio-user:/nowhere",
        "-p",
        "0",
        "--faults-on",
        "both",
    ];
    refused(&both, 1, "--faults-on is for a NIC model");
    for (option, value) in [("--profile", "connectx5"), ("--seed", "1")] {
        let given = [
            "pingpong",
            "rc",
            "-d",
            "vfio-user:/nowhere",
            "-p",
            "0",
            option,
            value,
        ];
        refused(&given, 1, &format!("{option} is for a NIC model"));
    }
    let other = ["pingpong", "rc", "-d", "model:none", "--cnp-dscp", "64"];
    refused(&other, 2, "0..=63");
    // Two models on a cable have faults both ways anyway.
    let cable = ["model", "--socket", "/nowhere", "--faults-on", "both"];
    refused(&cable, 2, "--wire");
    refused(
        &["cmtime", "-d", "model:none", "--sync", "host"],
        2,
        "[HOST:]PORT",
    );
}
