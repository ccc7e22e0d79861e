//! Clients that are killed, one after the other (case V08). Alone in its process, since it counts descriptors.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use common::{Served, event, memfd, open_fds};
use ferroce_vfio_user::client::{Client, ClientOptions};

const SOCKET: &str = "FERROCE_TEST_SOCKET";
const READY: &str = "the device is in use";

/// The client's process: uses the device until it is killed. Does nothing when run as a test.
#[test]
fn client_process() {
    let Ok(path) = std::env::var(SOCKET) else { return };
    let client = Client::connect(path, ClientOptions::default()).unwrap();
    let events: Vec<_> = (0..8).map(|_| event()).collect();
    client
        .set_msix(0, &events.iter().map(|e| Some(e.as_fd())).collect::<Vec<_>>())
        .unwrap();
    let notifier = event();
    client.set_request_notifier(Some(notifier.as_fd())).unwrap();
    let memory = memfd(0x10_0000, true);
    for page in 0..64 {
        client
            .dma_map(page << 12, 0x1000, true, true, Some((memory.as_fd(), page << 12)))
            .unwrap();
    }
    // Not through the test harness, which keeps output to itself.
    writeln!(std::io::stderr(), "{READY}").unwrap();
    loop {
        client.bar_write(0, 0, &[0xaa; 0x100]).unwrap();
        client.bar_read(0, 0, &mut [0; 8]).unwrap();
    }
}

#[test]
fn fifty_killed_clients_leave_nothing_behind() {
    if std::env::var(SOCKET).is_ok() {
        return;
    }
    let served = Served::new(8);
    let mut fds_after_first = None;
    for round in 1..=50 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client_process", "--nocapture"])
            .env(SOCKET, &served.path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(
            lines.map_while(Result::ok).any(|line| line == READY),
            "the client works in round {round}"
        );
        served.device.wait("use", |s| s.bar0[0] == 0xaa);
        {
            let state = served.device.state.lock().unwrap();
            assert_eq!((state.maps.len(), state.attached), (64, round));
            assert!(state.msix.iter().all(Option::is_some) && state.request.is_some());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        served.device.wait("detach", |s| s.detached == round);
        let state = served.device.state.lock().unwrap();
        assert!(
            state.maps.is_empty() && state.msix.iter().all(Option::is_none),
            "fresh state"
        );
        assert!(state.bar0.iter().all(|&b| b == 0), "fresh state");
        drop(state);
        assert_eq!(
            open_fds(),
            *fds_after_first.get_or_insert(open_fds()),
            "descriptors in round {round}"
        );
    }
}
