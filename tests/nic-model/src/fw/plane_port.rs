//! What the firmware asks of the data plane for the ports as a whole: link, addresses, counters, congestion, groups.

use ferroce_firmware_iface::layouts::RoceAddrLayout;

use crate::engine::congestion::Congestion;
use crate::engine::ports::PortNumber;
use crate::engine::traffic::Traffic;
use crate::objects::ObjectError;

/// The part of [`super::Plane`] that is about the ports, whose numbers count from 1. Errors are as described there.
#[allow(missing_docs)] // One function for each firmware command, under the command's name.
pub trait PortPlane {
    /// What a port counted since power-on.
    fn port_traffic(&self, port: PortNumber) -> Traffic;
    /// Whether a port's wire is there.
    fn link_up(&self, port: PortNumber) -> bool;
    /// Administrative state of a port.
    fn set_link_admin(&mut self, port: PortNumber, up: bool);
    /// `None` takes the entry of a port's table away.
    fn set_roce_address(
        &mut self,
        port: PortNumber,
        index: u16,
        address: Option<&RoceAddrLayout>,
    ) -> Result<(), ObjectError>;
    /// The entry of a port's table; all zeros where there is none.
    fn roce_address(&self, port: PortNumber, index: u16) -> Option<RoceAddrLayout>;
    /// How the port takes part in congestion notification, and what it counted.
    fn port_congestion(&mut self) -> &mut Congestion;
    /// Packets whose Q_Key was not their QP's.
    fn qkey_violations(&self) -> u64;

    /// Puts a QP into a multicast group, of at most `groups` with `members` each.
    fn attach_multicast(
        &mut self,
        qpn: u32,
        gid: [u8; 16],
        groups: u32,
        members: u32,
    ) -> Result<(), ObjectError>;
    fn detach_multicast(&mut self, qpn: u32, gid: [u8; 16]) -> Result<(), ObjectError>;
}
