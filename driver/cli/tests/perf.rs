//! `ferroce perf` between two processes, each with a NIC model of its own.

mod common;

#[path = "common/pair.rs"]
mod pair;

use common::run;
use pair::Pair;
use serde_json::Value;

#[track_caller]
fn measure(pair: &Pair, test: &str, options: &[&str]) -> Value {
    let tool = [&["perf", test][..], options].concat();
    let (server, client) = pair.run(&tool, &[], &["--json"]);
    assert_eq!(client.code, Some(0), "{client:?}\n{server:?}");
    assert_eq!(server.code, Some(0), "{server:?}");
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
