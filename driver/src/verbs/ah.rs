//! Address handles: checked paths for datagrams.

use super::error::PathError;
use super::path::Path;
use super::pd::Pd;
use crate::ring::Ah;

impl Ah {
    /// Checks a path, to a station or to a multicast group ([`Path::to_group`]), and makes its address handle. Firmware is
    /// not asked. Where the path names no UDP source port, it follows from the flow label.
    ///
    /// # Errors
    /// [`PathError`] names what is wrong with the path.
    pub fn new(pd: &Pd, path: &Path) -> Result<Ah, PathError> {
        let context = pd.context();
        let source = path.check_any(context)?;
        let vector = path.to_vector(&source, context.caps().roce());
        Ok(Ah::from_parts(
            zerocopy::transmute!(vector),
            pd.domain(),
            pd.keep(),
        ))
    }
}
