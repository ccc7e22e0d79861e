//! `ferroce model`: NIC models that other processes reach over vfio-user.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferroce::port::MacAddress;
use ferroce_nic_model::clock::RealClock;
use ferroce_nic_model::link::cable::cable;
use ferroce_nic_model::link::dgram::DgramPort;
use ferroce_nic_model::link::fault::{FaultPort, Faults};
use ferroce_nic_model::link::pcap::{PcapFile, PcapPort};
use ferroce_nic_model::link::{LinkError, Port};
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile as NicProfile;
use ferroce_nic_model::record::Recorder;
use ferroce_nic_model::runner::{Drive, Runner};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_vfio_user::device::PciDevice;
use ferroce_vfio_user::server::{Server, ServerOptions, StopHandle};

use crate::args::{FaultArgs, FaultsOn, ModelArgs, Profile, Wire};
use crate::control::Control;
use crate::error::{CliError, chain};
use crate::output::print;

pub fn run(args: &ModelArgs) -> Result<ExitCode, CliError> {
    if args.socket.len() > 2 {
        return Err(CliError::Other("--socket can be given once or twice".to_string()));
    }
    if args.wire.len() > usize::from(args.ports) {
        return Err(CliError::Other(format!(
            "--wire is given {} times, and the NIC has {} port(s); see --ports",
            args.wire.len(),
            args.ports
        )));
    }
    if args.socket.len() == 2 && args.wire.iter().any(|wire| *wire != Wire::None) {
        return Err(CliError::Other(
            "--wire is for one NIC; two are joined by a cable".to_string(),
        ));
    }
    if let [first, second] = args.socket.as_slice()
        && first == second
    {
        return Err(CliError::Other(format!(
            "--socket {} is given twice; each NIC needs one of its own",
            first.display()
        )));
    }
    let pcap = args.pcap.as_deref().map(create_pcap).transpose()?;
    let mac = args
        .mac
        .unwrap_or_else(|| args.wire.first().unwrap_or(&Wire::None).default_mac());
    let models = match args.socket.len() {
        2 => Models::Pair(Box::new(testbed_with(
            [args.profile, args.profile].map(|p| profile(p, args.no_reset).with_ports(args.ports)),
            mac,
            &args.faults,
            pcap.clone(),
        )?)),
        _ => Models::One(single(&SingleNic {
            profile: args.profile,
            no_reset: args.no_reset,
            mac,
            wires: &args.wire,
            ports: args.ports,
            faults: &args.faults,
            faults_on: args.faults_on,
            pcap: pcap.clone(),
        })?),
    };
    if let Some(path) = &args.trace {
        let file = File::create(path).map_err(CliError::file("can't create", path))?;
        models.trace(SharedFile::new(file));
    }
    if let Some(path) = &args.record {
        let file = File::create(path).map_err(CliError::file("can't create", path))?;
        models.record(&Recorder::new(Box::new(BufWriter::new(file))));
    }
    serve(args, &models)?;
    models.stop();
    if let (Some(pcap), Some(path)) = (pcap, &args.pcap) {
        pcap.flush().map_err(CliError::file("can't write", path))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Two models on a cable, in this process.
pub fn testbed(
    kind: Profile,
    faults: &FaultArgs,
    pcap: Option<&Path>,
) -> Result<(Testbed, Option<PcapFile>), CliError> {
    let pcap = pcap.map(create_pcap).transpose()?;
    let mac = Wire::None.default_mac();
    let profiles = [kind, kind].map(|kind| profile(kind, false));
    Ok((testbed_with(profiles, mac, faults, pcap.clone())?, pcap))
}

fn testbed_with(
    [first, second]: [NicProfile; 2],
    mac: MacAddress,
    faults: &FaultArgs,
    pcap: Option<PcapFile>,
) -> Result<Testbed, CliError> {
    let mut next = mac.0;
    next[5] = next[5].wrapping_add(1);
    let config = TestbedConfig {
        profiles: [first.with_mac(mac.0), second.with_mac(next)],
        faults: wire_faults(faults),
        pcap,
        ..TestbedConfig::default()
    };
    Testbed::new(config).map_err(|e| CliError::Other(chain(&e)))
}

/// One NIC and its wire.
pub struct SingleNic<'a> {
    pub profile: Profile,
    /// Without function reset.
    pub no_reset: bool,
    pub mac: MacAddress,
    /// Of its ports, from port 1 on; a port without is not plugged in.
    pub wires: &'a [Wire],
    pub ports: u8,
    pub faults: &'a FaultArgs,
    pub faults_on: FaultsOn,
    pub pcap: Option<PcapFile>,
}

/// Starts a model of one NIC.
pub fn single(args: &SingleNic<'_>) -> Result<Runner, CliError> {
    let ends = args.wires.iter().map(|wire| end(wire, args));
    let profile = profile(args.profile, args.no_reset).with_ports(args.ports);
    let nic = Nic::with_wires(profile.with_mac(args.mac.0), ends.collect::<Result<_, _>>()?);
    Runner::new(vec![nic], Arc::new(RealClock::new()), Drive::default())
        .map_err(|e| CliError::System("can't start the model's thread", e))
}

/// A NIC's end of a wire.
fn end(wire: &Wire, args: &SingleNic<'_>) -> Result<Box<dyn Port>, CliError> {
    let port: Box<dyn Port> = match wire {
        // A cable whose other end is not plugged in.
        Wire::None => Box::new(cable(1).0),
        Wire::Dgram { local, remote } => Box::new(DgramPort::bind(local, remote).map_err(link)?),
    };
    let port: Box<dyn Port> = match &args.pcap {
        Some(pcap) => Box::new(PcapPort::new(port, pcap.clone())),
        None => port,
    };
    with_faults(port, wire_faults(args.faults), args.faults_on)
}

/// Makes a wire bad, if it is to be.
fn with_faults(port: Box<dyn Port>, faults: Faults, on: FaultsOn) -> Result<Box<dyn Port>, CliError> {
    if faults.is_none() {
        return Ok(port);
    }
    let sent = if on == FaultsOn::Received {
        Faults::default()
    } else {
        faults
    };
    let mut port = FaultPort::new(port, sent).map_err(link)?;
    if on != FaultsOn::Sent {
        let seed = faults.seed.wrapping_add(1);
        port = port.with_received(Faults { seed, ..faults }).map_err(link)?;
    }
    Ok(Box::new(port))
}

fn link(error: LinkError) -> CliError {
    CliError::Other(chain(&error))
}

fn wire_faults(args: &FaultArgs) -> Faults {
    Faults {
        seed: args.seed(),
        loss: args.loss,
        duplicate: args.duplicate,
        reorder: args.reorder,
        corrupt: args.corrupt,
        mark: args.mark,
        ..Faults::default()
    }
}

fn profile(kind: Profile, no_reset: bool) -> NicProfile {
    let profile = match kind {
        Profile::Connectx4 => NicProfile::connectx4(),
        Profile::Minimal => NicProfile::minimal(),
        Profile::Connectx5 => NicProfile::connectx5(),
        Profile::Connectx6dx => NicProfile::connectx6dx(),
        Profile::Vf => NicProfile::vf(),
        Profile::MinimalVf => NicProfile::minimal_vf(),
    };
    if no_reset {
        profile.without_reset()
    } else {
        profile
    }
}

pub fn create_pcap(path: &Path) -> Result<PcapFile, CliError> {
    // The model's clock starts with the model.
    let epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    PcapFile::create(path, epoch).map_err(link)
}

/// The models that are served.
enum Models {
    One(Runner),
    Pair(Box<Testbed>),
}

impl Models {
    fn runner(&self) -> &Runner {
        match self {
            Models::One(runner) => runner,
            Models::Pair(testbed) => testbed.runner(),
        }
    }

    fn trace(&self, file: SharedFile) {
        for index in 0..2 {
            self.runner().with_nic(index, |nic| {
                nic.firmware().set_trace(Some(Box::new(file.clone())))
            });
        }
    }

    fn record(&self, recorder: &Recorder) {
        for index in 0..2 {
            self.runner()
                .with_nic(index, |nic| nic.set_recorder(Some(recorder.clone())));
        }
    }

    fn stop(self) {
        match self {
            Models::One(mut runner) => runner.stop(),
            Models::Pair(mut testbed) => testbed.stop(),
        }
    }
}

/// Serves each NIC at its socket until a signal comes or, with `--once`, its client has gone.
fn serve(args: &ModelArgs, models: &Models) -> Result<(), CliError> {
    let stop = StopHandle::new().map_err(|e| CliError::Other(chain(&e)))?;
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.stop()).map_err(|e| CliError::Other(chain(&e)))?;
    let mut servers = Vec::new();
    for (index, path) in args.socket.iter().enumerate() {
        let mut options = ServerOptions::default();
        options.single_client = args.once;
        let server = Server::bind_with(path, options).map_err(|e| CliError::Other(chain(&e)))?;
        let device: Arc<dyn PciDevice> = models
            .runner()
            .device(index)
            .ok_or_else(|| CliError::Other("no model for this socket".to_string()))?;
        servers.push((server, device));
    }
    for (server, _) in &servers {
        // Whoever started this process may wait for these lines.
        print(&format!("serving at {}\n", server.path().display()))?;
    }
    let control = args.control.as_deref().map(Control::bind).transpose()?;
    thread::scope(|scope| {
        if let Some(control) = &control {
            scope.spawn(|| control.serve(models.runner()));
        }
        let threads: Vec<_> = servers
            .into_iter()
            .map(|(server, device)| {
                let stop = &stop;
                scope.spawn(move || server.serve(device, stop).map_err(|e| CliError::Other(chain(&e))))
            })
            .collect();
        // All are waited for, whatever the first says.
        let results: Vec<Result<(), CliError>> = threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err(CliError::Other("a server's thread panicked".to_string())))
            })
            .collect();
        if let Some(control) = &control {
            control.end();
        }
        results.into_iter().collect()
    })
}

/// A file that the traces of both NICs go to.
#[derive(Clone)]
struct SharedFile(Arc<std::sync::Mutex<BufWriter<File>>>);

impl SharedFile {
    fn new(file: File) -> SharedFile {
        SharedFile(Arc::new(std::sync::Mutex::new(BufWriter::new(file))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BufWriter<File>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Write for SharedFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.lock().flush()
    }
}
