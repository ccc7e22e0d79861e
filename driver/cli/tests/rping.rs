//! `ferroce rping` between two processes, each with a NIC model of its own.

mod common;

#[path = "common/pair.rs"]
mod pair;

use common::{Said, run};
use pair::Pair;
use serde_json::Value;

/// A server, and a client that connects to `address`.
fn both(server: &[&str], client: &[&str], address: &str) -> (Said, Said) {
    let pair = Pair::new();
    let (process, out, line) = pair.serve(&["rping", "-s"], server);
    assert!(line.starts_with("listening at "), "{line}");
    let args = ["rping", "-c", "-a", address, "--timeout", "20"].map(str::to_string);
    let client = run(args
        .into_iter()
        .chain(pair.nic(1))
        .chain(client.iter().map(|a| a.to_string())));
    (Pair::end(process, out, line, &client), client)
}

#[test]
fn pings_go_there_and_back_over_both_kinds_of_ip() {
    for (address, listen) in [("10.9.0.2", "0.0.0.0"), ("fd00:9::2", "::")] {
        let (server, client) = both(
            &["-a", listen, "-S", "5000"],
            &["-C", "20", "-V", "-S", "5000", "--json"],
            address,
        );
        assert_eq!(client.code, Some(0), "{client:?}\n{server:?}");
        assert_eq!(server.code, Some(0), "{server:?}");
        let result: Value = serde_json::from_str(client.out.trim()).expect("one object");
        assert_eq!(
            (&result["ok"], &result["pings"]),
            (&true.into(), &20.into()),
            "{result}"
        );
    }
}

#[test]
fn shown_pings_are_those_of_librdmacm() {
    let (server, client) = both(&["-v"], &["-C", "2", "-v", "-S", "32"], "10.9.0.2");
    assert_eq!(client.code, Some(0), "{client:?}\n{server:?}");
    assert_eq!(
        client.out,
        "ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQR\nping data: rdma-ping-1: BCDEFGHIJKLMNOPQRS\n"
    );
    assert!(
        server.out.contains("server ping data: rdma-ping-1: B"),
        "{server:?}"
    );
}

#[test]
fn pings_that_are_too_long_and_servers_that_are_not_there_are_named() {
    let (server, client) = both(&["-S", "64"], &["-C", "2", "-S", "65"], "10.9.0.2");
    assert_eq!(
        (server.code, client.code),
        (Some(1), Some(1)),
        "{server:?} {client:?}"
    );
    assert!(server.err.contains("-S 65"), "{server:?}");
    let (_, client) = both(&["-p", "7200"], &["-C", "2"], "10.9.0.2");
    assert_eq!(client.code, Some(1), "{client:?}");
    assert!(client.err.contains("the connection: "), "{client:?}");
}

#[test]
fn a_role_is_needed_and_a_server_listens_at_addresses_of_its_nic_only() {
    let pair = Pair::new();
    let said = run(["rping".to_string()].into_iter().chain(pair.nic(0)));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("--server|--client"), "{said:?}");
    let strange = ["rping", "-s", "-a", "10.9.0.77"].map(str::to_string);
    let said = run(strange.into_iter().chain(pair.nic(0)));
    assert_eq!(said.code, Some(1), "{said:?}");
    for part in ["10.9.0.77", "10.9.0.2", "--address"] {
        assert!(said.err.contains(part), "{part:?} is not in {said:?}");
    }
}
