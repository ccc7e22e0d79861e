//! Priority and traffic class that tools of the connection manager's are told: frames have them.

mod common;

#[path = "common/pair.rs"]
mod pair;

#[path = "common/wire.rs"]
mod wire;

use common::run;
use pair::Pair;
use wire::{RoceFrame, roce_frames};

/// DSCP 26, ECT(0).
const CLASS: [&str; 4] = ["--priority", "3", "--traffic-class", "106"];

/// Frames of the wire between a server and a client in a VLAN, without the connection manager's.
fn data_frames(server: &[&str], client: &[&str]) -> Vec<RoceFrame> {
    let pair = Pair::new();
    let folder = tempfile::tempdir().expect("a folder");
    let pcap = folder.path().join("wire.pcap");
    let (process, out, line) = pair.serve(server, &["--vlan", "7"]);
    let port = line.trim().rsplit([' ', ':']).next().unwrap_or_default();
    let options = ["--vlan", "7", "-p", port, "--pcap", &pcap.display().to_string()].map(str::to_string);
    let told = run(client
        .iter()
        .chain(&CLASS)
        .map(|option| option.to_string())
        .chain(pair.nic(1))
        .chain(options));
    let server = Pair::end(process, out, line, &told);
    assert_eq!(
        (told.code, server.code),
        (Some(0), Some(0)),
        "{told:?}\n{server:?}"
    );
    let mut frames = roce_frames(&pcap);
    frames.retain(|frame| frame.dest_qp != 1);
    frames
}

#[test]
fn frames_have_the_class_that_the_client_asks_for() {
    let datagrams = [&["udaddy"][..], &CLASS].concat();
    for (server, client) in [
        (
            &["rping", "-s"][..],
            &["rping", "-c", "-C", "3", "-a", "10.9.0.2"][..],
        ),
        (&["ucmatose"], &["ucmatose", "-s", "10.9.0.2"]),
        // Datagrams have what their sender wants.
        (&datagrams, &["udaddy", "-s", "10.9.0.2"]),
        (
            &["perf", "send-lat", "-R", "-n", "5", "-p", "0"],
            &["perf", "send-lat", "-R", "-n", "5", "10.9.0.2"],
        ),
    ] {
        let frames = data_frames(server, client);
        // There and back.
        assert!(frames.len() > 4, "{client:?}: {frames:?}");
        for frame in frames {
            let class = (frame.priority, frame.traffic_class);
            assert_eq!(class, (Some(3), 106), "{client:?}: {frame:?}");
        }
    }
}

#[test]
fn options_without_a_meaning_are_refused() {
    for tool in [
        &["rping", "-s"][..],
        &["rping", "-c", "-a", "10.9.0.2"],
        &["ucmatose"],
        &["udaddy", "-s", "10.9.0.2"],
        &["cmtime", "-s", "10.9.0.2"],
        &["perf", "read-bw", "-R"],
    ] {
        let is_client = tool.contains(&"10.9.0.2");
        for (option, value, at_clients) in [
            ("--gid", "roce-v1", true),
            ("--peer-mac", "02:00:00:00:00:01", true),
            ("--priority", "3", false),
            ("--traffic-class", "106", false),
        ] {
            if is_client && !at_clients {
                continue;
            }
            let said = run([tool, &["-d", "model:none", option, value]].concat());
            assert_eq!(said.code, Some(1), "{tool:?}: {said:?}");
            let text = format!("{option} has no meaning here");
            assert!(said.err.contains(&text), "{tool:?}: {said:?}");
        }
    }
}
