//! The command line: bad input is told in words that name the object, the value and the limit; machines get JSON.

mod common;

#[path = "common/wire.rs"]
mod wire;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::{Model, Said, run};
use ferroce_vfio_user::client::{Client, ClientOptions};
use ferroce_vfio_user::device::{DeviceError, DmaMap, DmaMessages, PciDevice};
use ferroce_vfio_user::server::{Server, StopHandle};

/// It failed with `code`, said `parts` in one line, and nothing on standard output.
#[track_caller]
fn assert_refused(said: &Said, code: i32, parts: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    for part in parts {
        assert!(said.err.contains(part), "{part:?} is not in {:?}", said.err);
    }
    assert!(!said.err.contains("panicked"), "{}", said.err);
    assert_eq!(said.out, "");
    if code == 1 {
        assert!(said.err.starts_with("ferroce: "), "{}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
}

fn info(path: &Path) -> Said {
    run(["info".to_string(), format!("vfio-user:{}", path.display())])
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_socket_that_is_not_there_or_not_served_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    assert_refused(
        &info(&path),
        1,
        &[&name(&path), "does not exist", "start the device process"],
    );
    drop(UnixListener::bind(&path).unwrap());
    assert_refused(
        &info(&path),
        1,
        &[&name(&path), "nobody listens", "start it again"],
    );
    fs::remove_file(&path).unwrap();
    fs::write(&path, "text").unwrap();
    assert_refused(&info(&path), 1, &[&name(&path), "not a socket"]);
    let long = folder.path().join("x".repeat(200));
    assert_refused(&info(&long), 1, &[&name(&long), "107 bytes"]);
}

#[test]
fn servers_that_hang_or_speak_something_else_are_named() {
    let folder = tempfile::tempdir().unwrap();
    // It listens, and never says anything.
    let path = folder.path().join("hung.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    assert_refused(&info(&path), 1, &[&name(&path), "5000 ms"]);

    let path = folder.path().join("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The client may have had enough before all is written.
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let (stream, _) = listener.accept().unwrap();
        drop(stream);
    });
    assert_refused(&info(&path), 1, &[&name(&path), "not a vfio-user server"]);
    assert_refused(&info(&path), 1, &[&name(&path)]);
    server.join().unwrap();
}

/// A PCI device of another kind.
#[derive(Debug)]
struct Other {
    config: Mutex<[u8; 64]>,
    bar: u64,
}

impl PciDevice for Other {
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError> {
        let config = self.config.lock().unwrap();
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = config.get(usize::from(offset) + i).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), DeviceError> {
        for (at, byte) in (usize::from(offset)..).zip(data) {
            if let Some(place) = self.config.lock().unwrap().get_mut(at) {
                *place = *byte;
            }
        }
        Ok(())
    }

    fn bar_size(&self, bar: u8) -> u64 {
        if bar == 0 { self.bar } else { 0 }
    }

    fn bar_read(&self, _: u8, _: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        data.fill(0);
        Ok(())
    }

    fn bar_write(&self, _: u8, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn msix_vectors(&self) -> u16 {
        1
    }

    fn set_msix(&self, _: u16, _: Vec<Option<std::os::fd::OwnedFd>>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn set_request_notifier(&self, _: Option<std::os::fd::OwnedFd>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn dma_map(&self, _: DmaMap) -> Result<(), DeviceError> {
        Ok(())
    }

    fn dma_unmap(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn attached(&self, _: Option<Arc<dyn DmaMessages>>) {}

    fn detached(&self) {}
}

#[test]
fn devices_of_another_kind_are_told_by_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    for (vendor, device, bar, parts) in [
        (0x8086, 0x1572, 1 << 20, ["8086", "1572"]),
        (0x15b3, 0x0001, 1 << 20, ["15b3", "0001"]),
        (0x15b3, 0x1013, 0, ["BAR 0", ""]),
        (0x15b3, 0x1013, 4096, ["BAR 0", ""]),
    ] {
        let path = folder.path().join("nic.sock");
        let server = Server::bind(&path).unwrap();
        let stop = StopHandle::new().unwrap();
        let mut config = [0; 64];
        config[..2].copy_from_slice(&u16::to_le_bytes(vendor));
        config[2..4].copy_from_slice(&u16::to_le_bytes(device));
        let config = Mutex::new(config);
        let other = Arc::new(Other { config, bar });
        std::thread::scope(|scope| {
            scope.spawn(|| server.serve(other, &stop).unwrap());
            let said = info(&path);
            stop.stop();
            assert_refused(&said, 1, &[&name(&path), parts[0], parts[1]]);
        });
    }
}

#[test]
fn a_nic_that_is_taken_stays_with_its_user() {
    let model = Model::start(&[]);
    let user = Client::connect(&model.sockets[0], ClientOptions::default()).unwrap();
    assert_refused(&info(&model.sockets[0]), 1, &[&name(&model.sockets[0]), "in use"]);
    user.reset().expect("the first client still has it");
    let said = info(&model.sockets[1]);
    assert_eq!(
        (said.code, said.err.as_str()),
        (Some(0), ""),
        "the other NIC is free"
    );
    assert!(
        said.out.contains("ConnectX-4") && said.out.contains("02:fe:0c:e0:00:02"),
        "{}",
        said.out
    );
    drop(user);
}

#[test]
fn d05_info_shows_the_clock_or_why_there_is_none() {
    for (profile, shown) in [
        ("connectx5", "156250 kHz, now at "),
        (
            "connectx4",
            "none: the clock's frequency is not known: device_frequency_khz is 0 (device_frequency_mhz is 275",
        ),
    ] {
        let model = Model::start(&["--profile", profile]);
        let said = info(&model.sockets[0]);
        let line = said
            .out
            .lines()
            .find_map(|line| line.trim().strip_prefix("device_clock"));
        let line = line.unwrap_or_else(|| panic!("{} {}", said.out, said.err));
        assert!(line.trim().starts_with(shown), "{profile}: {line}");
    }
}

#[test]
fn pci_addresses_and_device_names_are_checked() {
    assert_refused(
        &run(["info", "ffff:ff:1f.7"]),
        1,
        &["ffff:ff:1f.7", "no PCI device"],
    );
    for (device, part) in [
        ("eth0", "no '.'"),
        ("vfio-user:", "path of the socket is missing"),
        ("0000:3b:20.0", "0000:3b:20.0"),
        ("0000:3b:00.8", "0000:3b:00.8"),
        ("g:0.0", "g:0.0"),
    ] {
        assert_refused(&run(["info", device]), 2, &[device, part]);
    }
    assert_refused(&run(["info"]), 2, &["DEV"]);
    assert_refused(&run(["nonsense"]), 2, &["nonsense"]);
}

#[test]
fn arguments_of_the_demo_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let missing = name(&folder.path().join("no/such/file"));
    for (option, value, part) in [
        ("--size", "5G", "4 GiB"),
        ("--size", "12 parsecs", "unknown unit"),
        ("--size", "-1", "--size"),
        ("--size", "99999999999999999999", "bytes"),
        ("--mtu", "1500", "4096"),
        ("--loss", "1.5", "0 to 1"),
        ("--corrupt", "-0.1", "--corrupt"),
        ("--reorder", "NaN", "0 to 1"),
        ("--duplicate", "many", "0 to 1"),
        ("--seed", "x", "seed"),
        ("--profile", "connectx9", "connectx5"),
        ("--gid", "roce-v3", "roce-v1"),
        ("--transport", "pigeon", "vfio-user"),
    ] {
        let said = run(["demo".to_string(), format!("{option}={value}")]);
        assert_refused(&said, 2, &[value, part]);
    }
    assert_refused(
        &run(["demo", "--size", "1", "--file", "x"]),
        2,
        &["--size", "--file"],
    );
    assert_refused(&run(["demo", "--file", &missing]), 1, &[&missing, "can't read"]);
    let directory = name(folder.path());
    assert_refused(
        &run(["demo", "--file", &directory]),
        1,
        &[&directory, "can't read", "directory"],
    );
    // Said before anything is transferred.
    let refused = run(["demo", "--size", "4G", "--out", &missing]);
    assert_refused(&refused, 1, &[&missing, "can't write"]);
    assert_refused(&run(["demo", "--size", "1", "--pcap", &missing]), 1, &[&missing]);
    let refused = run([
        "demo",
        "--size",
        "1",
        "--transport",
        "vfio-user",
        "--pcap",
        &missing,
    ]);
    assert!(
        refused.code == Some(1) && refused.err.contains(&missing),
        "{refused:?}"
    );
}

#[test]
fn each_port_of_a_model_is_told_of() {
    let model = Model::start(&["--ports", "2"]);
    let said = info(&model.sockets[0]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let ports: Vec<&str> = said
        .out
        .lines()
        .filter(|line| line.starts_with("    port "))
        .collect();
    assert_eq!(ports, ["    port 1", "    port 2"]);
    assert_eq!(said.out.matches("PORT_ACTIVE").count(), 2, "{}", said.out);
}

#[test]
fn arguments_of_the_model_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (socket, missing, text) = (path("s"), path("no/such"), path("text"));
    fs::write(&text, "text").unwrap();
    assert_refused(&run(["model"]), 2, &["--socket"]);
    let three = run(["model", "--socket", &socket, "--socket", "b", "--socket", "c"]);
    assert_refused(&three, 1, &["--socket", "once or twice"]);
    assert_refused(&run(["model", "--socket", &text]), 1, &[&text, "not a socket"]);
    assert_eq!(
        fs::read_to_string(&text).unwrap(),
        "text",
        "what is in the way is left alone"
    );
    assert_refused(
        &run(["model", "--socket", &missing]),
        1,
        &[&missing, "can't listen"],
    );
    let long = path(&"x".repeat(200));
    assert_refused(&run(["model", "--socket", &long]), 1, &[&long, "107 bytes"]);
    assert_refused(
        &run(["model", "--socket", &socket, "--socket", &socket]),
        1,
        &[&socket, "is given twice"],
    );
    for (option, value, code, part) in [
        ("--mac", "02:fe", 2, "02:fe"),
        ("--mac", "01:00:5e:00:00:01", 2, "multicast"),
        ("--mac", "00:00:00:00:00:00", 2, "zeros"),
        ("--wire", "dgram:x", 2, "dgram:LOCAL,REMOTE"),
        ("--wire", "carrier", 2, "dgram:LOCAL,REMOTE"),
        ("--trace", missing.as_str(), 1, missing.as_str()),
        ("--pcap", missing.as_str(), 1, missing.as_str()),
        ("--loss", "2", 2, "0 to 1"),
    ] {
        assert_refused(&run(["model", "--socket", &socket, option, value]), code, &[part]);
    }
    for (more, code, part) in [
        (["--ports", "3"], 2, "1..=2"),
        (["--ports", "0"], 2, "1..=2"),
        (["--wire", "none"], 1, "--wire is given 2 times"),
    ] {
        let first = ["model", "--socket", &socket, "--wire", "none"];
        assert_refused(&run([first.as_slice(), &more].concat()), code, &[part]);
    }
    let wire = format!("dgram:{text},{socket}-peer");
    assert_refused(
        &run(["model", "--socket", &socket, "--wire", &wire]),
        1,
        &[&text, "not a socket"],
    );
    let served = Model::start(&[]);
    let taken = served.sockets[0].display().to_string();
    assert_refused(
        &run(["model", "--socket", &taken]),
        1,
        &[&taken, "another process"],
    );
}

/// One JSON object on standard output, nothing on standard error, all that a person would be told.
fn demo_json(args: &[&str]) -> serde_json::Value {
    let said = run(["demo", "--json", "--size", "3MiB"].iter().chain(args));
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{args:?}");
    assert_eq!(said.out.lines().count(), 1);
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("one JSON object");
    assert_eq!(report["ok"], true);
    assert_eq!(report["bytes"], 3 << 20);
    assert_eq!(report["sha256"].as_str().expect("a hash").len(), 64);
    for nic in report["nics"].as_array().expect("NICs") {
        for key in ["device", "product", "fw_ver", "board_id", "mac"] {
            assert!(
                nic[key].as_str().is_some_and(|text| !text.is_empty()),
                "{key}: {nic}"
            );
        }
        assert!(!nic["gids"].as_array().expect("GIDs").is_empty());
        assert!(nic["capabilities"]["max_qp"].as_u64().is_some_and(|n| n > 0));
        assert!(nic["firmware_commands"].as_u64().is_some_and(|n| n > 10));
        assert_eq!(nic["firmware_pages_lost"], 0);
    }
    for (what, check) in report["checks"].as_object().expect("checks") {
        assert_eq!(check["wrong"], 0, "{what}");
        assert!(check["looked"].as_u64().is_some_and(|n| n > 0), "{what}");
    }
    for way in ["write", "read"] {
        assert!(
            report["bandwidth"][way]["mib_per_s"]
                .as_f64()
                .is_some_and(|n| n > 0.0)
        );
    }
    let latency = &report["latency_us"];
    let quantiles = ["p50", "p90", "p99", "p99_9", "max"].map(|q| latency[q].as_f64().expect("a time"));
    assert!(quantiles.is_sorted() && quantiles[0] > 0.0, "{latency}");
    // A WRITE and its receive for each MiB, a READ, 2 atomics, 4 of messages, the small WRITEs.
    let atomics = if report["nics"][0]["capabilities"]["atomic"] == true {
        2
    } else {
        0
    };
    assert_eq!(report["completions"], 3 * 3 + atomics + 4 + 2000);
    report
}

#[test]
fn the_demo_tells_machines_all_in_one_json_object() {
    let report = demo_json(&[]);
    assert_eq!(
        (&report["transport"], &report["seed"]),
        (&"in-process".into(), &1.into())
    );
    assert_eq!(report["counters"]["retransmissions"], 0);
    assert_eq!(report["gid"], "roce-v2-ipv4");
    for gid in ["roce-v2-link-local", "3"] {
        assert_eq!(demo_json(&["--gid", gid])["gid"], gid);
    }
    for profile in ["minimal", "connectx5", "connectx6dx", "vf", "minimal-vf"] {
        demo_json(&["--profile", profile]);
    }
}

#[test]
fn the_demo_is_right_on_a_bad_wire_and_over_vfio_user() {
    let bad = [
        "--loss",
        "0.02",
        "--reorder",
        "0.02",
        "--duplicate",
        "0.02",
        "--corrupt",
        "0.01",
        "--seed",
        "7",
    ];
    for (transport, gid) in [("in-process", "roce-v1"), ("vfio-user", "roce-v2-ipv6")] {
        let args: Vec<&str> = bad
            .iter()
            .copied()
            .chain(["--transport", transport, "--gid", gid])
            .collect();
        let report = demo_json(&args);
        assert_eq!(report["transport"], transport);
        assert!(
            report["counters"]["retransmissions"]
                .as_u64()
                .is_some_and(|n| n > 0)
        );
    }
}

#[test]
fn the_demos_wire_marks_frames_that_take_part_in_ecn() {
    let folder = tempfile::tempdir().unwrap();
    for transport in ["in-process", "vfio-user"] {
        let pcap = folder.path().join(transport);
        let path = name(&pcap);
        let marks = ["--mark", "0.5", "--transport", transport, "--pcap", &path];
        assert_refused(
            &run(["demo"].iter().chain(&marks)),
            1,
            &["--mark 0.5", "--traffic-class"],
        );
        demo_json(&[&marks[..], &["--traffic-class", "106"]].concat());
        let frames = wire::roce_frames(&pcap);
        let marked = frames.iter().filter(|frame| frame.traffic_class == 107).count();
        assert!(marked > frames.len() / 4, "{marked} of {}", frames.len());
        // But for the notifications.
        let others = frames
            .iter()
            .filter(|frame| frame.traffic_class & !1 != 106)
            .count();
        assert!(others < frames.len() / 2, "{others} of {}", frames.len());
    }
}

#[test]
fn the_demo_copies_files_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, copy) = (path("file"), path("copy"));
    for len in [0, 1, (1 << 20) + 1] {
        let bytes = ferroce_suites::pair::pattern(len, 5);
        fs::write(&file, &bytes).unwrap();
        fs::write(&copy, "something older and perhaps longer").unwrap();
        let said = run(["demo", "--file", &file, "--out", &copy]);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
        assert!(fs::read(&copy).unwrap() == bytes, "{len} bytes");
    }
}

#[test]
fn a_wire_that_loses_everything_ends_in_an_error() {
    let said = run(["demo", "--size", "1K", "--loss", "1"]);
    assert_refused(&said, 1, &["retry counter exceeded"]);
}

#[test]
fn a_failure_is_one_json_object_for_machines() {
    let folder = tempfile::tempdir().unwrap();
    let device = format!("vfio-user:{}", name(&folder.path().join("nic.sock")));
    let said = run(["info".to_string(), "--json".to_string(), device]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["ok"], false);
    assert!(
        json["error"].as_str().unwrap().contains("does not exist"),
        "{json}"
    );
}
