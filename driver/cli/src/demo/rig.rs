//! The two NICs of the demo: models in this process or in one of their own, or NICs that are there already.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use clap::ValueEnum;
use ferroce::function::{self, FunctionAddress, InProcess, PciFunction};
use ferroce_nic_model::link::pcap::PcapFile;
use ferroce_nic_model::testbed::Testbed;

use crate::args::{DemoArgs, Transport};
use crate::error::CliError;
use crate::model;

/// The NICs, however they run.
pub enum Rig {
    Given([FunctionAddress; 2]),
    InProcess(Box<Testbed>, Option<(PcapFile, PathBuf)>),
    VfioUser(ModelProcess),
}

/// A `ferroce model` process with two NICs on a cable.
pub struct ModelProcess {
    child: Child,
    sockets: [PathBuf; 2],
    /// Holds the sockets; goes when both are connected, so that nothing stays if this program is killed.
    folder: Option<tempfile::TempDir>,
}

impl Rig {
    /// Starts the models, unless NICs are given.
    pub fn start(args: &DemoArgs) -> Result<Rig, CliError> {
        if !args.devices.is_empty() {
            let devices = args.devices.clone().try_into();
            return devices
                .map(Rig::Given)
                .map_err(|_| CliError::Other("--device has to be given twice, for two NICs".to_string()));
        }
        match args.transport {
            Transport::InProcess => {
                let (testbed, pcap) = model::testbed(args.profile, &args.faults, args.pcap.as_deref())?;
                Ok(Rig::InProcess(Box::new(testbed), pcap.zip(args.pcap.clone())))
            }
            Transport::VfioUser => ModelProcess::start(args).map(Rig::VfioUser),
        }
    }

    /// NIC 0 or 1 as a PCI function.
    pub fn function(&self, index: usize) -> Result<Arc<dyn PciFunction>, CliError> {
        match self {
            Rig::InProcess(testbed, _) => {
                let name = ["a", "b"][index];
                let device = testbed
                    .device(index)
                    .ok_or_else(|| CliError::Other("no such NIC".to_string()))?;
                let function = InProcess::new(name, device).map_err(|source| CliError::Function {
                    device: FunctionAddress::InProcess(name.to_string()),
                    source: Box::new(source),
                })?;
                Ok(Arc::new(function))
            }
            Rig::VfioUser(process) => open(FunctionAddress::VfioUser(process.sockets[index].clone())),
            Rig::Given(devices) => open(devices[index].clone()),
        }
    }

    /// Both functions are open.
    pub fn connected(&mut self) {
        if let Rig::VfioUser(process) = self {
            process.folder = None;
        }
    }

    /// Ends the models, so that a capture is whole.
    pub fn stop(self) -> Result<(), CliError> {
        match self {
            Rig::InProcess(mut testbed, pcap) => {
                testbed.stop();
                match pcap {
                    Some((pcap, path)) => pcap.flush().map_err(CliError::file("can't write", &path)),
                    None => Ok(()),
                }
            }
            Rig::VfioUser(process) => process.stop(),
            Rig::Given(_) => Ok(()),
        }
    }
}

fn open(device: FunctionAddress) -> Result<Arc<dyn PciFunction>, CliError> {
    function::open(&device).map_err(|source| CliError::Function {
        device,
        source: Box::new(source),
    })
}

impl ModelProcess {
    fn start(args: &DemoArgs) -> Result<ModelProcess, CliError> {
        let folder = tempfile::Builder::new()
            .prefix("ferroce-demo-")
            .tempdir()
            .map_err(|e| CliError::System("can't make a folder for the models' sockets", e))?;
        let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
        let program = std::env::current_exe()
            .map_err(|e| CliError::System("can't find this program to run the models with", e))?;
        let mut command = Command::new(program);
        command.arg("model").arg("--once");
        for socket in &sockets {
            command.arg("--socket").arg(socket);
        }
        if let Some(profile) = args.profile.to_possible_value() {
            command.args(["--profile", profile.get_name()]);
        }
        command.args(args.faults.arguments());
        if let Some(pcap) = &args.pcap {
            command.arg("--pcap").arg(pcap);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| CliError::System("can't start the models", e))?;
        // It says a line for each socket that it listens at.
        let mut lines = child.stdout.take().map(BufReader::new);
        for _ in &sockets {
            let mut line = String::new();
            let read = lines.as_mut().map_or(Ok(0), |l| l.read_line(&mut line));
            if !matches!(read, Ok(n) if n > 0) {
                let _ = child.kill();
                let _ = child.wait();
                return Err(CliError::Other(
                    "the models did not start; see the messages above".to_string(),
                ));
            }
        }
        Ok(ModelProcess {
            child,
            sockets,
            folder: Some(folder),
        })
    }

    fn stop(mut self) -> Result<(), CliError> {
        let status = self
            .child
            .wait()
            .map_err(|e| CliError::System("can't wait for the models to end", e))?;
        if status.success() {
            return Ok(());
        }
        Err(CliError::Other(format!("the models ended with {status}")))
    }
}

impl Drop for ModelProcess {
    fn drop(&mut self) {
        // Only where something failed before `stop`.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
