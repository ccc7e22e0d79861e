//! `ferroce perf` between two processes, each with a NIC model of its own.

mod common;

#[path = "common/pair.rs"]
mod pair;

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::process::Stdio;

use common::{Said, code, ferroce, run, wait};
use pair::Pair;
use serde_json::Value;

#[track_caller]
fn measure(pair: &Pair, test: &str, options: &[&str]) -> Value {
    let tool = [&["perf", test][..], options].concat();
    let (server, client) = pair.run(&tool, &[], &["--json"]);
    assert_eq!(client.code, Some(0), "{tool:?}: {client:?}\n{server:?}");
    assert_eq!(server.code, Some(0), "{tool:?}: {server:?}");
    let result: Value = serde_json::from_str(client.out.trim()).expect("one object");
    assert_eq!(result["ok"], true, "{result}");
    let warnings = result["warnings"].to_string();
    assert!(warnings.contains("software model"), "{warnings}");
    result
}

#[test]
fn latencies_have_percentiles_and_a_histogram() {
    let pair = Pair::new();
    for (test, bytes, options) in [
        ("write-lat", 2, &["-I", "64"][..]),
        ("read-lat", 4096, &["-s", "4096", "-e"]),
        ("send-lat", 100, &["-s", "100", "-e"]),
        ("atomic-lat", 8, &[]),
    ] {
        let result = measure(&pair, test, &[&["-n", "50"], options].concat());
        let row = &result["rows"][0];
        assert_eq!(
            (&row["bytes"], &row["iterations"]),
            (&bytes.into(), &50.into()),
            "{test}: {result}"
        );
        let latency = &row["latency_us"];
        let value = |name: &str| latency[name].as_f64().expect("a number");
        let order = ["min", "p50", "p90", "p99", "p99_9", "p99_99"].map(value);
        assert!(order.is_sorted() && order[0] > 0.0, "{test}: {latency}");
        let steps = latency["histogram"].as_array().expect("a list");
        let count: u64 = steps.iter().filter_map(|step| step[1].as_u64()).sum();
        assert_eq!(count, 50, "{test}: {latency}");
    }
}

#[test]
fn bandwidth_is_of_all_queue_pairs() {
    let pair = Pair::new();
    for (test, options) in [
        ("write-bw", &["-q", "4", "-s", "9000"][..]),
        ("read-bw", &["-t", "3", "-s", "64K", "-e"]),
        (
            "send-bw",
            &["-q", "2", "-r", "7", "-t", "16", "-I", "32", "-s", "32"],
        ),
    ] {
        let result = measure(&pair, test, &[&["-n", "40"], options].concat());
        let row = &result["rows"][0];
        let qps = result["qps"].as_u64().expect("a number");
        assert_eq!(row["iterations"], 40 * qps, "{result}");
        let bandwidth = row["bandwidth"]["mib_per_second"].as_f64().expect("a number");
        assert!(bandwidth > 0.0, "{result}");
    }
}

#[test]
fn all_sizes_are_measured_in_turn() {
    let (_, client) = Pair::new().run(&["perf", "write-bw", "-a", "-n", "2"], &[], &[]);
    assert_eq!(client.code, Some(0), "{client:?}");
    let rows = client
        .out
        .lines()
        .filter(|line| line.trim().starts_with(|c: char| c.is_ascii_digit()));
    assert_eq!(rows.count(), 23, "{client:?}");
}

#[test]
fn sides_that_do_different_things_and_bad_options_are_named() {
    let (server, client) = Pair::new().run(
        &["perf", "read-lat"],
        &["-n", "5"],
        &["-n", "6", "--timeout", "5"],
    );
    assert_eq!(
        (server.code, client.code),
        (Some(1), Some(1)),
        "{server:?} {client:?}"
    );
    assert!(server.err.contains("iters 6, this side 5"), "{server:?}");
    let refused = |args: &[&str], part: &str| {
        let said = run([&["perf"][..], args, &["-d", "model:none"]].concat());
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(part), "{part:?} is not in {said:?}");
    };
    refused(&["atomic-lat", "-s", "16"], "atomics are of 8 bytes");
    refused(&["write-lat", "-e"], "no --events");
    refused(&["read-lat", "-q", "2"], "on one queue pair");
    refused(&["write-bw", "-s", "0"], "--size 0");
}

#[test]
fn all_tests_can_be_played_by_perftests_rules() {
    let pair = Pair::new();
    for (test, options, rows, iterations) in [
        ("write-lat", &["-n", "300", "-I", "64"][..], 1, 300),
        ("write-lat", &["-n", "3", "-a"], 23, 3),
        ("read-lat", &["-n", "20", "-s", "4096", "-e"], 1, 20),
        ("send-lat", &["-n", "3", "-a", "-e"], 23, 3),
        ("atomic-lat", &["-n", "20"], 1, 20),
        ("write-bw", &["-n", "20", "-q", "4", "-s", "9000"], 1, 80),
        (
            "read-bw",
            &["-n", "20", "-s", "64K", "-m", "1024", "-g", "roce-v2-ipv6"],
            1,
            20,
        ),
        (
            "send-bw",
            &["-n", "20", "-q", "3", "-r", "7", "-t", "16", "-s", "32"],
            1,
            60,
        ),
        ("send-bw", &["-n", "3", "-a", "-q", "2"], 23, 6),
    ] {
        let result = measure(&pair, test, &[options, &["--with-perftest"]].concat());
        assert_eq!(result["connection"], "perftest", "{result}");
        let found = result["rows"].as_array().expect("a list");
        assert_eq!(found.len(), rows, "{test} {options:?}: {result}");
        assert_eq!(
            found[rows - 1]["iterations"],
            iterations,
            "{test} {options:?}: {result}"
        );
    }
}

#[test]
fn a_peer_that_is_not_perftest_is_told() {
    let (_, client) = Pair::new().run(
        &["perf", "read-lat", "-n", "5"],
        &["--timeout", "1"],
        &["--with-perftest"],
    );
    assert_eq!(client.code, Some(1), "{client:?}");
    let told = "the peer does not go on with perftest's exchange";
    assert!(client.err.contains(told), "{client:?}");
    let said = run([
        "perf",
        "read-lat",
        "--with-perftest",
        "-R",
        "-d",
        "model:dgram:a,b",
    ]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("cannot be used with"), "{said:?}");
}

/// As `measure`, connected by the connection manager.
#[track_caller]
fn measure_by_cm(host: &str, test: &str, options: &[&str]) -> Value {
    // 0.3 s, for machines that are busy with other tests.
    let tool = [&["perf", test, "-R", "-u", "16"][..], options].concat();
    let (server, client) = Pair::new().run_at(host, &tool, &[], &["--json"]);
    assert_eq!(client.code, Some(0), "{test}: {client:?}\n{server:?}");
    assert_eq!(server.code, Some(0), "{test}: {server:?}");
    let result: Value = serde_json::from_str(client.out.trim()).expect("one object");
    assert_eq!(
        (&result["ok"], &result["connection"]),
        (&true.into(), &"rdma-cm".into()),
        "{result}"
    );
    result
}

#[test]
fn all_tests_can_be_connected_by_the_connection_manager() {
    for (host, test, options, count) in [
        ("10.9.0.2", "write-lat", &["-I", "64"][..], 20),
        ("fd00:9::2", "read-lat", &["-s", "4096", "-e"], 20),
        ("10.9.0.2", "send-lat", &["-s", "100", "-e"], 20),
        ("fd00:9::2", "atomic-lat", &[], 20),
        ("10.9.0.2", "write-bw", &["-q", "4", "-s", "9000"], 80),
        (
            "10.9.0.2",
            "read-bw",
            &["-q", "9", "-t", "3", "-m", "1024", "-e"],
            180,
        ),
        (
            "fd00:9::2",
            "send-bw",
            &["-q", "2", "-r", "7", "-t", "16", "-s", "32"],
            40,
        ),
    ] {
        let result = measure_by_cm(host, test, &[&["-n", "20"], options].concat());
        assert_eq!(result["rows"][0]["iterations"], count, "{test}: {result}");
    }
}

#[test]
fn all_sizes_are_measured_over_a_bad_wire_by_the_connection_manager() {
    let faults = ["--loss", "0.02", "--duplicate", "0.02"];
    let options = [&["-a", "-n", "1", "-t", "2"][..], &faults].concat();
    let result = measure_by_cm("10.9.0.2", "write-bw", &options);
    assert_eq!(result["rows"].as_array().map(Vec::len), Some(23), "{result}");
}

/// A server with `-R`, and then a client with these arguments.
fn by_cm(port: &str, server: &[&str], client: &[&str]) -> (Said, Said) {
    let pair = Pair::new();
    let mut process = ferroce(["perf", "-R", "-p", port])
        .args(pair.nic(0))
        .args(server)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut args: Vec<String> = client.iter().map(|arg| arg.to_string()).collect();
    args.extend(pair.nic(1));
    let mut line = String::new();
    if port == "0" {
        let out = process.stdout.as_mut().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("UTF-8");
        let port = line.trim().rsplit(' ').next().unwrap_or_default();
        args.extend(["-p".to_string(), port.to_string()]);
    }
    let client = run(args);
    // It would wait for ever where no client has come to it.
    let met = !client.err.contains("is the server started");
    if !met || wait(&mut process).is_none() {
        let _ = process.kill();
    }
    let output = process.wait_with_output().expect("a child");
    let server = Said {
        code: code(output.status),
        out: line,
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    };
    (server, client)
}

#[test]
fn the_connection_manager_needs_no_tcp() {
    let taken = TcpListener::bind("[::]:0").expect("a port");
    taken.set_nonblocking(true).expect("a socket");
    let port = taken.local_addr().expect("an address").port().to_string();
    // The client may be the first, and waits for the server.
    let (server, client) = by_cm(
        &port,
        &["send-lat", "-n", "5"],
        &["perf", "send-lat", "-R", "-n", "5", "-p", &port, "10.9.0.2"],
    );
    assert_eq!(
        (server.code, client.code),
        (Some(0), Some(0)),
        "{server:?} {client:?}"
    );
    let came = taken.accept().map_err(|error| error.kind());
    assert_eq!(came.err(), Some(ErrorKind::WouldBlock));
}

#[test]
fn sides_that_differ_are_told_so_by_the_connection_manager_too() {
    let refused = |server: &[&str], client: &[&str], part: &str| {
        let client = [&["perf", "-R"][..], client, &["10.9.0.2"]].concat();
        let (server, client) = by_cm("0", server, &client);
        assert_eq!(
            (server.code, client.code),
            (Some(1), Some(1)),
            "{server:?} {client:?}"
        );
        assert!(server.err.contains(part), "{part:?} is not in {server:?}");
        let told = format!("the peer says: {part}");
        assert!(client.err.contains(&told), "{told:?} is not in {client:?}");
    };
    refused(
        &["read-lat", "-n", "5"],
        &["read-lat", "-n", "6"],
        "the peer has iters 6, this side 5",
    );
    refused(
        &["send-bw", "-s", "4"],
        &["send-bw", "-a"],
        "the peer has sizes 2 to 8388608, this side 4",
    );
    refused(
        &["send-bw", "-q", "2"],
        &["write-bw", "-q", "2"],
        "the peer has test \"write-bw\", this side \"send-bw\"",
    );
}

#[test]
fn a_server_that_gives_up_is_noticed_through_the_connection_manager() {
    let (server, client) = by_cm(
        "0",
        &["read-lat", "-n", "100000000", "--timeout", "3"],
        &["perf", "read-lat", "-R", "-n", "100000000", "10.9.0.2"],
    );
    assert_eq!(
        (server.code, client.code),
        (Some(1), Some(1)),
        "{server:?} {client:?}"
    );
    assert!(server.err.contains("for 3 s (--timeout)"), "{server:?}");
    assert!(
        client.err.contains("the peer has ended the connection"),
        "{client:?}"
    );
}

#[test]
fn peers_of_another_kind_are_told_apart_by_the_connection_manager() {
    let (server, client) = by_cm("0", &["write-bw"], &["rping", "-c", "-C", "1", "-a", "10.9.0.2"]);
    assert_eq!(client.code, Some(1), "{client:?}");
    assert!(client.err.contains("rejected by the program"), "{client:?}");
    assert_eq!(server.code, Some(1), "{server:?}");
    assert!(server.err.contains("not `ferroce perf -R`"), "{server:?}");
}

#[test]
fn servers_that_say_nothing_or_hang_up_are_told_apart() {
    for (silent, part) in [
        (true, "nothing came in time (--timeout)"),
        (false, "it has ended"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            if silent {
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
            // Otherwise what has come is not read, and the connection is reset.
            else {
                let _ = stream.peek(&mut [0]);
            }
        });
        let options = ["perf", "write-lat", "-p", &port, "--timeout", "1", "127.0.0.1"].map(str::to_string);
        let said = run(options.into_iter().chain(Pair::new().nic(1)));
        server.join().expect("no panic");
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(part), "{part:?} is not in {said:?}");
    }
}

#[test]
fn bad_options_of_the_connection_manager_are_named() {
    let refused = |args: &[&str], part: &str| {
        let said = run([&["perf", "write-bw", "-R", "-d", "model:dgram:a,b"][..], args].concat());
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(part), "{part:?} is not in {said:?}");
    };
    refused(&["localhost"], "\"localhost\" is no IP address");
    refused(&["-g", "roce-v1"], "--gid has no meaning here");
    refused(
        &["--peer-mac", "02:00:00:00:00:01"],
        "--peer-mac has no meaning here",
    );
    let (_, client) = by_cm(
        "7201",
        &["write-bw"],
        &[
            "perf",
            "write-bw",
            "-R",
            "-p",
            "7202",
            "--timeout",
            "1",
            "10.9.0.2",
        ],
    );
    assert_eq!(client.code, Some(1), "{client:?}");
    assert!(
        client.err.contains("is the server started, with -R?"),
        "{client:?}"
    );
}
