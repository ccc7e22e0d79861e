//! Address handles: checked paths for datagrams.

use super::error::PathError;
use super::path::Path;
use super::pd::Pd;
use crate::port::PortNumber;
use crate::ring::Ah;

impl Ah {
    /// Checks a path, to a station or to a multicast group ([`Path::to_group`]), and makes its address handle. Firmware is
    /// not asked. It is for queue pairs on the first port. Where the path names no UDP source port, it follows from the flow label.
    ///
    /// # Errors
    /// [`PathError`] names what is wrong with the path.
    pub fn new(pd: &Pd, path: &Path) -> Result<Ah, PathError> {
        Ah::on_port(pd, path, PortNumber::FIRST)
    }

    /// The same for a port, which is that of the queue pairs that send by it.
    ///
    /// # Errors
    /// [`PathError`] names what is wrong with the path, or that the NIC has no such port.
    pub fn on_port(pd: &Pd, path: &Path, port: PortNumber) -> Result<Ah, PathError> {
        let context = pd.context();
        let source = path.check_any(context, port)?;
        let vector = path.to_vector(&source, context.caps().roce());
        Ok(Ah::from_parts(
            zerocopy::transmute!(vector),
            (pd.domain(), port),
            pd.keep(),
        ))
    }
}
