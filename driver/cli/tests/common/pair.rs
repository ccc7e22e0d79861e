//! A server and a client of a tool, each a process with a NIC model of its own, on one wire.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use super::common::{Said, code, ferroce, wait};

/// MAC addresses of server and client.
pub const MACS: [&str; 2] = ["02:fe:44:0c:e0:02", "02:fe:44:0c:e0:01"];

/// A wire, and which tool with which options of both sides.
pub struct Pair {
    folder: tempfile::TempDir,
    /// Whether the models are told their MAC addresses.
    told: bool,
}

impl Pair {
    pub fn new() -> Pair {
        Pair {
            folder: tempfile::tempdir().expect("a folder"),
            told: true,
        }
    }

    /// With the MAC addresses that models have by themselves.
    pub fn with_own_macs() -> Pair {
        Pair {
            told: false,
            ..Pair::new()
        }
    }

    /// Options that give a side its NIC: the server's (0) or the client's (1).
    pub fn nic(&self, side: usize) -> Vec<String> {
        let end = |side: usize| self.folder.path().join(["s", "c"][side]).display().to_string();
        let device = format!("model:dgram:{},{}", end(side), end(1 - side));
        let own = 2 - side;
        let mac: &[&str] = if self.told { &["--mac", MACS[side]] } else { &[] };
        let rest = [
            "--device",
            &device,
            "--address",
            &format!("10.9.0.{own}/24"),
            "--address",
            &format!("fd00:9::{own}/64"),
            "--profile",
            "connectx5",
        ];
        rest.iter().chain(mac).map(|option| option.to_string()).collect()
    }

    /// Starts the server's side, and reads the first line that it says, which tells where it listens.
    pub fn serve(&self, tool: &[&str], options: &[&str]) -> (Child, BufReader<ChildStdout>, String) {
        let mut process = ferroce(tool)
            .args(self.nic(0))
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut out = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("UTF-8");
        (process, out, line)
    }

    /// Runs both sides to their ends: what the server said and what the client said. `tool` is with the options that both
    /// have; the server gets `server`, the client `client`, too.
    pub fn run(&self, tool: &[&str], server: &[&str], client: &[&str]) -> (Said, Said) {
        self.run_at("localhost", tool, server, client)
    }

    /// As [`Pair::run`], with a name of the server's.
    pub fn run_at(&self, host: &str, tool: &[&str], server: &[&str], client: &[&str]) -> (Said, Said) {
        let options = [&["--port", "0"], server].concat();
        let (process, out, line) = self.serve(tool, &options);
        let port = line.trim().rsplit(' ').next().unwrap_or_default().to_string();
        if port.parse::<u16>().is_err() {
            return (Pair::said(process, out, line), Said::default());
        }
        let output = ferroce(tool)
            .args(self.nic(1))
            .args(["--port", &port])
            .args(client)
            .arg(host)
            .output()
            .expect("the program starts");
        let client = Said {
            code: code(output.status),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        };
        (Pair::end(process, out, line, &client), client)
    }

    /// What a server said in the end, whose client has ended.
    pub fn end(mut process: Child, out: impl BufRead, first: String, client: &Said) -> Said {
        // One that has told the client why, or has left it, ends by itself and says why here, too; another might wait for ever.
        let told = ["the peer says", "the peer has ended"]
            .iter()
            .any(|text| client.err.contains(text));
        if client.code != Some(0) && !(told && wait(&mut process).is_some()) {
            let _ = process.kill();
        }
        Pair::said(process, out, first)
    }

    fn said(process: Child, mut out: impl BufRead, first: String) -> Said {
        let mut text = first;
        out.read_to_string(&mut text).expect("UTF-8");
        let output = process.wait_with_output().expect("a child");
        Said {
            code: code(output.status),
            out: text,
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}
