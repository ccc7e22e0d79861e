//! What the firmware asks of the data plane for the port as a whole: counters, congestion, groups.

use crate::engine::congestion::Congestion;
use crate::engine::traffic::Traffic;
use crate::objects::ObjectError;

/// The part of [`super::Plane`] that is about the port. Errors are as described there.
#[allow(missing_docs)] // One function for each firmware command, under the command's name.
pub trait PortPlane {
    /// What the port counted since power-on.
    fn port_traffic(&self) -> Traffic;
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
