//! The NIC that a tool works with: one that is there, or a model in this process with a wire to its peer.

mod args;
mod gids;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::cm::Manager;
use ferroce::context::{Context, ModifyNotificationPoint, OpenConfig};
use ferroce::function::{self, FunctionAddress, InProcess, PciFunction};
use ferroce::gid::Gid;
use ferroce::link::{Agent, AgentConfig, DuplicateDetection, InterfaceAddress, LinkError, RouteQuery};
use ferroce::port::MacAddress;
use ferroce::verbs::Path;
use ferroce_nic_model::link::pcap::PcapFile;
use ferroce_nic_model::runner::Runner;
use serde_json::{Value, json};

pub use self::args::{Device, NicArgs};
pub use self::gids::{GidChoice, LocalGid, choose as choose_gid};
use crate::args::Profile;
use crate::error::{CliError, chain, failed, first_error};
use crate::model::{self, SingleNic};

/// An open NIC.
pub struct Nic {
    context: Arc<Context>,
    name: String,
    addresses: Vec<InterfaceAddress>,
    choice: Option<GidChoice>,
    peer_mac: Option<MacAddress>,
    priority: u8,
    traffic_class: u8,
    /// Answers for the NIC's addresses and finds others'; or why the NIC has no queues for it.
    agent: Result<Arc<Agent>, String>,
    /// Goes after the context.
    model: Option<Model>,
}

/// The model behind it, if it is one.
struct Model {
    runner: Runner,
    pcap: Option<(PcapFile, PathBuf)>,
}

impl Nic {
    /// Starts the model, if it is to be one, and brings the NIC up.
    ///
    /// # Errors
    /// Options that don't go together, and whatever keeps the NIC from coming up.
    pub fn open(args: &NicArgs) -> Result<Nic, CliError> {
        // A tool has no time to look for others with its addresses before it uses them.
        Nic::open_with(args, DuplicateDetection::Optimistic)
    }

    /// As [`Nic::open`], with a choice of how others with its addresses are looked for.
    ///
    /// # Errors
    /// As [`Nic::open`].
    pub fn open_with(args: &NicArgs, detection: DuplicateDetection) -> Result<Nic, CliError> {
        args.check()?;
        let (function, model) = function(args)?;
        let device = function.address().clone();
        let addresses: Vec<_> = args.interface_addresses().collect();
        let mut config = OpenConfig::new();
        // The others get their GIDs from the agent.
        let at_once = |address: &&InterfaceAddress| {
            address.vlan == args.vlan && detection != DuplicateDetection::BeforeUse
        };
        for address in addresses.iter().filter(at_once) {
            config = config.address(address.ip);
        }
        if let Some(vlan) = args.vlan {
            config = config.vlan(vlan);
        }
        if let Some(mac) = args.mac {
            config = config.mac(mac);
        }
        if let Some(mtu) = args.port_mtu {
            config = config.mtu(mtu);
        }
        let context = Context::open(function, config).map_err(|source| CliError::Open {
            device: device.clone(),
            source: Box::new(source),
        })?;
        let mut nic = Nic {
            agent: Err(String::new()),
            context,
            name: device.to_string(),
            addresses,
            choice: args.gid,
            peer_mac: args.peer_mac,
            priority: args.priority,
            traffic_class: args.traffic_class,
            model,
        };
        if let Some(dscp) = args.cnp_dscp {
            let how = ModifyNotificationPoint {
                cnp_dscp: Some(dscp),
                ..ModifyNotificationPoint::default()
            };
            let set = nic.context.set_notification_point(&how);
            set.map_err(failed("--cnp-dscp"))?;
        }
        nic.agent = nic.start_agent(args, detection)?;
        Ok(nic)
    }

    /// Lets somebody answer for the NIC's addresses.
    fn start_agent(
        &self,
        args: &NicArgs,
        detection: DuplicateDetection,
    ) -> Result<Result<Arc<Agent>, String>, CliError> {
        let mut config = AgentConfig::new().duplicate_detection(detection);
        for address in &self.addresses {
            config = config.address(*address);
        }
        for gateway in args.interface_gateways() {
            config = config.gateway(gateway);
        }
        match Agent::start(&self.context, config) {
            Ok(agent) => Ok(Ok(Arc::new(agent))),
            Err(error @ LinkError::Queues(_)) => {
                let why = chain(&error);
                log::warn!(
                    "{}: nobody answers for its addresses or asks for others': {why}",
                    self.name
                );
                Ok(Err(why))
            }
            Err(error) => Err(failed("the NIC's addresses")(error)),
        }
    }

    /// What verbs objects are made from.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What the port has counted of frames, and of congestion; `null` where firmware doesn't tell.
    pub fn counted(&self) -> Value {
        let port = self.context.port_counters().map(|c| {
            json!({
                "frames_sent": c.frames_sent, "frames_received": c.frames_received,
                "octets_sent": c.octets_sent, "octets_received": c.octets_received,
                "check_sequence_errors": c.check_sequence_errors, "mac_control_received": c.mac_control_received,
                "pause_received": c.pause_received, "pause_sent": c.pause_sent,
                "priority_pause_received": c.priority_pause_received, "priority_pause_sent": c.priority_pause_sent,
            })
        });
        let congestion = self.context.congestion_counters().map(|c| {
            json!({
                "np_ecn_marked_roce_packets": c.np_ecn_marked_roce_packets, "np_cnp_sent": c.np_cnp_sent,
                "rp_cnp_handled": c.rp_cnp_handled, "rp_cnp_ignored": c.rp_cnp_ignored,
            })
        });
        json!({ "port": port.ok(), "congestion": congestion.ok() })
    }

    /// Who answers for its addresses.
    ///
    /// # Errors
    /// The NIC has no queues for it.
    pub fn agent(&self) -> Result<&Arc<Agent>, CliError> {
        self.agent.as_ref().map_err(|why| {
            CliError::Other(format!(
                "{}: nobody can answer for its addresses and find others', without which this does not work: {why}",
                self.name
            ))
        })
    }

    /// The GID for a connection to `peer`, or for one to a peer that is not known yet.
    ///
    /// # Errors
    /// There is none that fits; the error says what there is.
    pub fn gid(&self, peer: Option<Gid>) -> Result<LocalGid, CliError> {
        match (peer, &self.agent) {
            (Some(peer), Ok(agent)) => self.gid_to(agent, RouteQuery::to(peer.to_ip())),
            _ => self.first_gid(peer),
        }
    }

    /// The GID that `ferroce route` says, among those that the user wants.
    ///
    /// # Errors
    /// As [`Nic::gid`].
    pub fn gid_to(&self, agent: &Agent, query: RouteQuery) -> Result<LocalGid, CliError> {
        let peer = Gid::from_ip(query.destination);
        let found = match self.choice {
            // What is wrong with it is told when the way is looked for.
            Some(GidChoice::Index(_)) => return self.first_gid(Some(peer)),
            Some(GidChoice::Kind(version, _)) => agent.route(RouteQuery {
                version: Some(version),
                ..query
            }),
            None => agent.route(query),
        };
        match (found, self.choice) {
            (Ok(route), choice) if choice.is_none_or(|choice| choice.admits(&route.source)) => Ok(LocalGid {
                index: route.sgid_index,
                entry: route.source,
            }),
            // Whoever tells the next hop's MAC may send anywhere.
            (Err(error), None) if self.peer_mac.is_none() => {
                Err(failed("no GID for a connection to the peer")(error))
            }
            _ => self.first_gid(Some(peer)),
        }
    }

    /// The first that fits, whatever the way.
    fn first_gid(&self, peer: Option<Gid>) -> Result<LocalGid, CliError> {
        gids::choose(&self.context.gids().entries(), self.choice, peer)
            .map_err(|reason| CliError::Other(format!("{}: {reason}", self.name)))
    }

    /// Whether the NIC can be asked for at that address, which may be the unspecified one.
    ///
    /// # Errors
    /// It can't; the error says which addresses it has.
    pub fn check_own(&self, ip: IpAddr) -> Result<(), CliError> {
        let entries = self.context.gids().entries();
        let mut own: Vec<_> = self.addresses.iter().map(|address| address.ip).collect();
        own.extend(entries.iter().map(|(_, entry)| entry.gid.to_ip()));
        own.sort();
        own.dedup();
        if ip.is_unspecified() || own.contains(&ip) {
            return Ok(());
        }
        let own: Vec<_> = own.iter().map(IpAddr::to_string).collect();
        Err(CliError::Other(format!(
            "{}: {ip} is no address of this NIC, which has {}; give it one with --address",
            self.name,
            own.join(", ")
        )))
    }

    /// Does something with a connection manager, which finds peers by the link agent, and closes it, which may take as long
    /// as `patience`.
    ///
    /// # Errors
    /// The NIC has no queues for an agent, QP 1 can't be made, `play` failed, or connections did not end in time.
    pub fn with_manager<T>(
        &self,
        patience: Duration,
        play: impl FnOnce(&Manager) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let agent = self.agent()?;
        let manager = Manager::start(&self.context, agent.clone()).map_err(failed("connection manager"))?;
        let played = play(&manager);
        let closed = manager.close(Instant::now() + patience);
        let closed = closed.map_err(failed("closing the connection manager"));
        Ok(first_error(played, closed)?.0)
    }

    /// Does something with the NIC, and closes it.
    ///
    /// # Errors
    /// `play` failed, or the NIC did not go down as [`Nic::close`] says.
    pub fn with<T>(self, play: impl FnOnce(&Nic) -> Result<T, CliError>) -> Result<T, CliError> {
        let played = play(&self);
        Ok(first_error(played, self.close())?.0)
    }

    /// The way to a peer.
    ///
    /// # Errors
    /// There is none, or nobody answers there.
    pub fn path(&self, local: &LocalGid, peer: Gid, patience: Duration) -> Result<Path, CliError> {
        let mut path = match (self.peer_mac, &self.agent) {
            (Some(mac), _) => Path::new(local.index, peer, mac),
            (None, Ok(agent)) => {
                let ip = peer.to_ip();
                // A link-local address is one in each VLAN; the GID says which.
                let on_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
                let query = RouteQuery {
                    sgid_index: Some(local.index),
                    vlan: on_link.then_some(local.entry.vlan),
                    ..RouteQuery::to(ip)
                };
                let route = agent.route_to(query, Instant::now() + patience);
                let route = route.map_err(failed("the way to the peer"))?;
                if let Some(better) = route.better() {
                    log::warn!("GID {}, to {ip}: {better}", local.index);
                }
                route
                    .path()
                    .ok_or_else(|| CliError::Other(format!("{} has no MAC address", route.next_hop)))?
            }
            (None, Err(why)) => {
                return Err(CliError::Other(format!(
                    "the MAC address of {} is not known, and the NIC can't ask for it ({why}); give it with --peer-mac",
                    peer.to_ip()
                )));
            }
        };
        path.priority = self.priority;
        path.traffic_class = self.traffic_class;
        Ok(path)
    }

    /// Shuts the NIC down, and ends the model so that its capture is whole.
    ///
    /// # Errors
    /// The NIC did not go down in order, or the capture could not be written.
    fn close(self) -> Result<(), CliError> {
        let Nic {
            context,
            name,
            model,
            agent,
            ..
        } = self;
        drop(agent);
        let closed = context.close().map_err(|source| CliError::Close {
            device: name,
            source: Box::new(source),
        });
        if let Some(mut model) = model {
            model.runner.stop();
            if let Some((pcap, path)) = &model.pcap {
                pcap.flush().map_err(CliError::file("can't write", path))?;
            }
        }
        closed.map(|_| ())
    }
}

/// The PCI function, and the model that it belongs to.
fn function(args: &NicArgs) -> Result<(Arc<dyn PciFunction>, Option<Model>), CliError> {
    let wire = match &args.device {
        Device::Function(address) => {
            let function = function::open(address).map_err(|source| CliError::Function {
                device: address.clone(),
                source: Box::new(source),
            })?;
            return Ok((function, None));
        }
        Device::Model(wire) => wire,
    };
    let pcap = args.pcap.as_deref().map(model::create_pcap).transpose()?;
    let runner = model::single(&SingleNic {
        profile: args.profile.unwrap_or(Profile::Connectx4),
        no_reset: false,
        mac: args.mac.unwrap_or_else(|| wire.default_mac()),
        wires: std::slice::from_ref(wire),
        ports: 1,
        faults: &args.faults,
        faults_on: args.faults_on,
        pcap: pcap.clone(),
    })?;
    let device = runner
        .device(0)
        .ok_or_else(|| CliError::Other("the model has no NIC".to_string()))?;
    let function = InProcess::new("model", device).map_err(|source| CliError::Function {
        device: FunctionAddress::InProcess("model".to_string()),
        source: Box::new(source),
    })?;
    let pcap = pcap.zip(args.pcap.clone());
    Ok((Arc::new(function), Some(Model { runner, pcap })))
}

/// A time that is as good as none, for who waits without end.
pub fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 24 * 3600)
}

/// The path MTU of that many bytes.
///
/// # Errors
/// It is none.
pub fn mtu(bytes: u16) -> Result<ferroce::verbs::Mtu, CliError> {
    let found = ferroce::verbs::Mtu::ALL
        .into_iter()
        .find(|mtu| mtu.bytes() == u32::from(bytes));
    found.ok_or_else(|| failed("path MTU")(MtuError(bytes)))
}

#[derive(Debug, thiserror::Error)]
#[error("{0} bytes is none of 256, 512, 1024, 2048 and 4096")]
struct MtuError(u16);
