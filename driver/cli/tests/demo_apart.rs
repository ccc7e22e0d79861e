//! The demo with its sides in two programs, each with a NIC of its own.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use common::{Model, ferroce, run, wait};

fn device(model: &Model, index: usize) -> String {
    format!("vfio-user:{}", model.sockets[index].display())
}

#[test]
fn a_file_goes_from_one_program_to_another_and_back() {
    let model = Model::start(&["--profile", "connectx5"]);
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("file"), folder.path().join("copy"));
    let content: Vec<u8> = (0..3_000_001u32).map(|i| ((i * 7) >> 3) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    let mut listening = ferroce(["demo", "--listen", "0", "--device", &device(&model, 1), "--out"])
        .arg(&copy)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(listening.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let port = line.trim().rsplit(' ').next().unwrap();
    let peer = format!("localhost:{port}");
    let device = device(&model, 0);
    let args = [
        "demo",
        "--json",
        "--connect",
        &peer,
        "--device",
        &device,
        "--file",
    ];
    let sent = run(args.into_iter().chain([file.to_str().unwrap()]));
    assert_eq!(sent.code, Some(0), "{sent:?}");
    let report: serde_json::Value = serde_json::from_str(&sent.out).unwrap();
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["checks"]["file at the peer"]["looked"], 1, "{report}");
    assert_eq!(report["checks"]["compare-and-swap swaps"]["wrong"], 0, "{report}");
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(wait(&mut listening).unwrap().success(), "{rest}");
    assert!(
        rest.contains("all right") && rest.contains("immediate data in order (3 of 3)"),
        "{rest}"
    );
    assert_eq!(std::fs::read(copy).unwrap(), content);
}

#[test]
fn what_does_not_go_together_is_told() {
    let refused = |args: &[&str], why: &str| {
        let said = run(args);
        assert!(said.code != Some(0) && said.err.contains(why), "{said:?}");
    };
    refused(&["demo", "--listen", "0"], "--device");
    let nic = "vfio-user:/nowhere";
    refused(&["demo", "--connect", "nowhere", "--device", nic], "HOST:PORT");
    refused(
        &["demo", "--listen", "0", "--device", nic, "--device", nic],
        "once",
    );
    refused(
        &["demo", "--listen", "0", "--connect", "a:1", "--device", nic],
        "--connect",
    );
    // The other side chooses.
    for option in ["--mtu", "--seed"] {
        refused(
            &["demo", "--listen", "0", "--device", nic, option, "1024"],
            option,
        );
    }
    refused(
        &["demo", "--connect", "a:1", "--device", nic, "--out", "copy"],
        "--out",
    );
}
