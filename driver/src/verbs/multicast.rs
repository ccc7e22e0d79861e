//! Multicast groups, whose datagrams UD queue pairs may take.

use ferroce_firmware_iface::cmds::{AttachToMcg, DetachFromMcg};

use super::error::AttachError;
use super::qp::Qp;
use crate::gid::Gid;
use crate::ring::QpType;

impl Qp {
    /// Lets a UD queue pair take the datagrams that are sent to a multicast group, with its Q_Key. The network is not
    /// asked to bring them here (IGMP, MLD). A group that it is in already changes nothing.
    ///
    /// # Errors
    /// [`AttachError`]; the queue pair is in the groups that it was in before.
    pub fn attach_multicast(&mut self, group: Gid) -> Result<(), AttachError> {
        if self.qp_type() != QpType::Ud {
            let qp_type = self.qp_type();
            return Err(AttachError::Service { qp_type });
        }
        if !group.is_multicast() {
            let gid = group.to_ip().to_string();
            return Err(AttachError::NoGroup { gid });
        }
        let context = self.pd.context();
        let general = context.caps().general();
        if general.log_max_mcg() == 0 || general.max_qp_mcg() == 0 {
            return Err(AttachError::Capability);
        }
        if self.groups.contains(&group) {
            return Ok(());
        }
        let (qpn, gid) = (self.qpn, group.0);
        context.exec(&AttachToMcg { qpn, gid })?;
        self.groups.push(group);
        Ok(())
    }

    /// Ends that.
    ///
    /// # Errors
    /// [`AttachError::NotAttached`], or [`AttachError::Command`]; nothing has changed.
    pub fn detach_multicast(&mut self, group: Gid) -> Result<(), AttachError> {
        let Some(at) = self.groups.iter().position(|have| *have == group) else {
            let gid = group.to_ip().to_string();
            return Err(AttachError::NotAttached { gid });
        };
        let (qpn, gid) = (self.qpn, group.0);
        self.pd.context().exec(&DetachFromMcg { qpn, gid })?;
        self.groups.swap_remove(at);
        Ok(())
    }

    /// The multicast groups that it is in.
    pub fn multicast_groups(&self) -> &[Gid] {
        &self.groups
    }
}
