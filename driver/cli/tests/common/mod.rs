//! The `ferroce` program, run by tests.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::function::{self, FunctionAddress, PciFunction};
use ferroce_suites::pair::address;

/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program with these arguments.
pub fn ferroce<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
    command.args(args).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// Where a model logs.
const LOG: &str = "log";

/// What a run said, and its exit status, or the negative number of the signal that ended it.
#[derive(Debug, Default)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// The status as [`Said`] has it.
pub fn code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| -signal))
}

/// Runs the program to its end.
pub fn run<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Said {
    let output: Output = ferroce(args).output().expect("the program starts");
    Said {
        code: code(output.status),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// A `ferroce model` process with two NICs on a cable.
pub struct Model {
    pub child: Child,
    pub sockets: [PathBuf; 2],
    folder: tempfile::TempDir,
}

impl Model {
    /// Starts it, and waits until it listens.
    pub fn start(args: &[&str]) -> Model {
        let folder = tempfile::tempdir().expect("a folder");
        let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
        let mut command = ferroce(["model", "--mac", "02:fe:0c:e0:00:01"]);
        for socket in &sockets {
            command.arg("--socket").arg(socket);
        }
        let log = std::fs::File::create(folder.path().join(LOG)).expect("a file");
        command.args(args).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        for socket in &sockets {
            let line = lines.next().expect("a line").expect("UTF-8");
            assert!(line.ends_with(&socket.display().to_string()), "{line}");
        }
        Model {
            child,
            sockets,
            folder,
        }
    }

    /// What it has logged: the rules that drivers broke, among other things, with `-v`.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(LOG)).expect("UTF-8")
    }

    /// Descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).expect("a process").count()
    }

    /// Memory that it has, in KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        kib.expect("a number of KiB")
    }

    /// One of its NICs.
    pub fn function(&self, index: usize) -> Arc<dyn PciFunction> {
        function::open(&FunctionAddress::VfioUser(self.sockets[index].clone())).expect("a function")
    }

    /// One of its NICs, up.
    pub fn open(&self, index: usize) -> Arc<Context> {
        open(&self.sockets[index], index)
    }
}

/// The NIC at a socket, up.
pub fn open(socket: &Path, index: usize) -> Arc<Context> {
    let function = function::open(&FunctionAddress::VfioUser(socket.to_path_buf())).expect("a function");
    Context::open(function, OpenConfig::new().address(address(index))).expect("the NIC comes up")
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process to end; `None` if it doesn't.
pub fn wait(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        std::thread::yield_now();
    }
    None
}

/// Reads all that a child writes to its standard output.
pub fn output(child: &mut Child) -> String {
    let mut text = String::new();
    let mut out = child.stdout.take().expect("a pipe");
    out.read_to_string(&mut text).expect("UTF-8");
    text
}
