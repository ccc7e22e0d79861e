//! `ferroce ucmatose`, `udaddy` and `cmtime` between two processes, each with a NIC model of its own.

mod common;

#[path = "common/pair.rs"]
mod pair;

use std::time::Duration;

use common::{Said, run};
use pair::Pair;
use serde_json::Value;

/// A server of a tool, and a client that connects to `address`. `options` are for both.
fn both(tool: &str, options: &[&str], address: &str) -> (Said, Said) {
    each(tool, [options, options], address)
}

/// As [`both`], with options for the server and others for the client.
fn each(tool: &str, options: [&[&str]; 2], address: &str) -> (Said, Said) {
    each_after(tool, options, address, Duration::ZERO)
}

/// As [`each`], with a client that comes so much later than its server.
fn each_after(tool: &str, [server, client]: [&[&str]; 2], address: &str, later: Duration) -> (Said, Said) {
    let pair = Pair::new();
    let (process, out, text) = pair.serve(&[tool], server);
    assert!(text.starts_with("listening at 0.0.0.0:"), "{text}");
    std::thread::sleep(later);
    let args = [tool, "-s", address, "--json"].map(str::to_string).into_iter();
    let client = run(args
        .chain(pair.nic(1))
        .chain(client.iter().map(|option| option.to_string())));
    (Pair::end(process, out, text, &client), client)
}

#[track_caller]
fn well((server, client): &(Said, Said)) -> Value {
    assert_eq!(client.code, Some(0), "{client:?}\n{server:?}");
    assert_eq!(server.code, Some(0), "{server:?}");
    assert_eq!((client.err.as_str(), server.err.as_str()), ("", ""));
    serde_json::from_str(client.out.trim()).expect("one object")
}

#[test]
fn messages_go_over_each_connection_both_ways() {
    for (options, address) in [
        (&["-c", "1"][..], "10.9.0.2"),
        (&["-c", "5", "-C", "20", "-S", "5000"], "fd00:9::2"),
        (&["-p", "9"], "fe80::fe:44ff:fe0c:e002"),
    ] {
        let result = well(&both("ucmatose", options, address));
        assert_eq!((&result["ok"], &result["role"]), (&true.into(), &"client".into()));
        assert_eq!(result["sent"], result["received"]);
    }
}

#[test]
fn datagrams_go_to_a_service_and_back() {
    for (options, address) in [
        (&["-c", "1"][..], "10.9.0.2"),
        (&["-c", "3", "-S", "2000"], "fd00:9::2"),
    ] {
        let result = well(&both("udaddy", options, address));
        let connections = options[1].parse::<u64>().expect("a number");
        assert_eq!(result["received"], 10 * connections, "{result}");
    }
}

#[test]
fn many_connections_are_made_at_once_and_ended() {
    let result = well(&both("cmtime", &["-c", "64"], "10.9.0.2"));
    assert_eq!(result["connections"], 64);
}

#[test]
fn servers_wait_for_their_first_client_without_end() {
    std::thread::scope(|scope| {
        for tool in ["ucmatose", "udaddy", "cmtime"] {
            // By then one that waits for its --timeout has gone.
            let (options, later) = ([&["-c", "2", "--timeout", "4"][..], &["-c", "2"]], 5);
            scope.spawn(move || well(&each_after(tool, options, "10.9.0.2", Duration::from_secs(later))));
        }
    });
}

#[test]
fn cmtime_has_no_messages() {
    for option in ["-C", "-S"] {
        let said = run(["cmtime", "-d", "model:none", option, "5"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(option), "{said:?}");
    }
}

#[test]
fn step_is_kept_by_tcp_as_linux_does_it() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let sync = free.local_addr().expect("bound").to_string();
    drop(free);
    let said = both("cmtime", &["-c", "8", "--sync", &sync], "fd00:9::2");
    assert_eq!(well(&said)["connections"], 8);
    let rounds: Vec<_> = said
        .0
        .out
        .lines()
        .filter(|line| line.contains(" connections in "))
        .collect();
    let counts: Vec<_> = rounds.iter().filter_map(|line| line.split(' ').next()).collect();
    // The last line is the report.
    assert_eq!(counts, ["1", "8", "8", "8"], "{said:?}");
}

#[test]
fn nobody_there_and_other_numbers_of_messages_are_told() {
    let pair = Pair::new();
    // Longer than an address is asked for, which is three times a second apart.
    let alone = ["cmtime", "-s", "10.9.0.2", "--timeout", "20"].map(str::to_string);
    let said = run(alone.into_iter().chain(pair.nic(1)));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("nobody answered for 10.9.0.2"), "{said:?}");
    let counts = [&["-C", "4"][..], &["-C", "2", "--timeout", "2"]];
    let (_, client) = each("udaddy", counts, "10.9.0.2");
    assert_eq!(client.code, Some(1), "{client:?}");
    assert!(
        client.err.contains("2 to be received; give both sides the same"),
        "{client:?}"
    );
}
