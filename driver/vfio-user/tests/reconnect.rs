//! Clients that are killed, one after the other (case V08), and servers that are. In a process of their
//! own, since they count descriptors, under a lock, since both count or open some.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use common::{FakeDevice, Served, event, memfd, open_fds};
use ferroce_vfio_user::CloseReason;
use ferroce_vfio_user::client::{Client, ClientError, ClientOptions};
use ferroce_vfio_user::server::{Server, StopHandle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Tells a process that it is the client, or the server, and where the socket is.
const CLIENT_SOCKET: &str = "FERROCE_TEST_CLIENT_SOCKET";
const SERVER_SOCKET: &str = "FERROCE_TEST_SERVER_SOCKET";
const READY: &str = "the device is in use";

/// Starts this binary again as one of the processes below, and waits until it says that it is ready.
fn start(test: &str, variable: &str, path: &Path) -> Process {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut process = Process(child);
    let lines = BufReader::new(process.0.stderr.take().unwrap()).lines();
    assert!(
        lines.map_while(Result::ok).any(|line| line == READY),
        "{test} works"
    );
    process
}

/// A child that does not outlive its test.
struct Process(Child);

impl Process {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Held by each test: one counts descriptors, the other opens some.
static ALONE: Mutex<()> = Mutex::new(());

fn is_a_child() -> bool {
    std::env::var(CLIENT_SOCKET).is_ok() || std::env::var(SERVER_SOCKET).is_ok()
}

/// The client's process: uses the device until it is killed. Does nothing when run as a test.
#[test]
fn client_process() {
    let Ok(path) = std::env::var(CLIENT_SOCKET) else {
        return;
    };
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
fn v08_fifty_killed_clients_leave_nothing_behind() {
    if is_a_child() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = Served::new(8);
    let mut fds_after_first = None;
    for round in 1..=50 {
        let mut child = start("client_process", CLIENT_SOCKET, &served.path);
        served.device.wait("use", |s| s.bar0[0] == 0xaa);
        {
            let state = served.device.state.lock().unwrap();
            assert_eq!((state.maps.len(), state.attached), (64, round));
            assert!(state.msix.iter().all(Option::is_some) && state.request.is_some());
        }
        child.kill();
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

/// The server's process: serves until it is killed. Does nothing when run as a test.
#[test]
fn server_process() {
    let Ok(path) = std::env::var(SERVER_SOCKET) else {
        return;
    };
    let server = Server::bind(path).unwrap();
    writeln!(std::io::stderr(), "{READY}").unwrap();
    server
        .serve(FakeDevice::new(1), &StopHandle::new().unwrap())
        .unwrap();
}

#[test]
fn killed_server_is_noticed_and_replaced() {
    if is_a_child() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    for _ in 0..3 {
        // The file that the one before left is in the way only if somebody listens there.
        let mut server = start("server_process", SERVER_SOCKET, &path);
        let client = Client::connect(&path, ClientOptions::default()).unwrap();
        client.reset().unwrap();
        assert_eq!(client.gone(), None);
        server.kill();
        let gone = client.gone_fd();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut [PollFd::new(&gone, PollFlags::IN)], Some(&now)), Ok(1));
        assert_eq!(client.gone(), Some(CloseReason::PeerClosed));
        assert!(client.bar_read(0, 0, &mut [0; 4]).unwrap_err().is_gone());
        let e = Client::connect(&path, ClientOptions::default()).unwrap_err();
        assert!(matches!(e, ClientError::StaleSocket { .. }), "{e}");
    }
}
