//! Version negotiation: what each end can take, as JSON text after [`Version`](crate::protocol::Version).
//!
//! Each side says how much *it* can receive, so the limits of what we send are the peer's. A field that is
//! absent has the specification's default. Migration is never offered.

use serde::{Deserialize, Serialize};

use crate::protocol::{MAX_DATA_XFER, MAX_FDS, MAX_VERSION_DATA};

/// What one end of a connection can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// File descriptors that it can receive in one message. At least 1 once negotiated.
    pub max_msg_fds: u64,
    /// Bytes of data that it can receive, or return, in one access.
    pub max_data_xfer_size: u64,
    /// DMA maps that can exist at a time.
    pub max_dma_maps: u64,
    /// Page sizes in bytes that DMA maps can be made of, or'ed together.
    pub pgsizes: u64,
    /// REGION_WRITE_MULTI is understood.
    pub write_multiple: bool,
}

/// The defaults that the specification gives to what a peer does not say.
impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            max_msg_fds: 1,
            max_data_xfer_size: 1 << 20,
            max_dma_maps: 65535,
            pgsizes: 4096,
            write_multiple: false,
        }
    }
}

/// The version data as a whole; only `capabilities` is defined.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct VersionData {
    capabilities: Capabilities,
}

/// What is wrong with a peer's version data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionDataError {
    /// Longer than any sane text.
    #[error("version data of {len} bytes; at most {MAX_VERSION_DATA} are read")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Not NUL-terminated.
    #[error("version data does not end in a NUL byte")]
    NotTerminated,
    /// Not the JSON that the specification asks for.
    #[error("version data is not the expected JSON: {reason}")]
    NotJson {
        /// What the JSON parser said.
        reason: String,
    },
    /// A limit of zero.
    #[error("version data says that {what} is 0")]
    Zero {
        /// Which limit.
        what: &'static str,
    },
}

impl Capabilities {
    /// Writes the version data that says this, NUL included.
    pub fn to_version_data(&self) -> Vec<u8> {
        let data = VersionData { capabilities: *self };
        // Integers and booleans in a struct always serialise; the fallback is a valid, empty offer.
        let mut text = serde_json::to_vec(&data).unwrap_or_else(|_| b"{}".to_vec());
        text.push(0);
        text
    }

    /// Reads a peer's version data. Nothing at all means all defaults. What the peer can take beyond what one
    /// message can carry is cut to that.
    ///
    /// # Errors
    /// [`VersionDataError`]; a field of the wrong type is an error, one with an unknown name is not.
    pub fn from_version_data(bytes: &[u8]) -> Result<Capabilities, VersionDataError> {
        if bytes.len() > MAX_VERSION_DATA {
            return Err(VersionDataError::TooLong { len: bytes.len() });
        }
        let mut capabilities = match bytes.split_last() {
            None => Capabilities::default(),
            Some((0, [])) => Capabilities::default(),
            Some((0, text)) => {
                let data: VersionData =
                    serde_json::from_slice(text).map_err(|e| VersionDataError::NotJson {
                        reason: e.to_string(),
                    })?;
                data.capabilities
            }
            Some(_) => return Err(VersionDataError::NotTerminated),
        };
        for (what, value) in [
            ("max_msg_fds", capabilities.max_msg_fds),
            ("max_data_xfer_size", capabilities.max_data_xfer_size),
            ("max_dma_maps", capabilities.max_dma_maps),
            ("pgsizes", capabilities.pgsizes),
        ] {
            // A peer that takes no descriptors can still be talked to; the other limits can't be 0.
            if value == 0 && what != "max_msg_fds" {
                return Err(VersionDataError::Zero { what });
            }
        }
        capabilities.max_msg_fds = capabilities.max_msg_fds.min(MAX_FDS as u64);
        capabilities.max_data_xfer_size = capabilities.max_data_xfer_size.min(u64::from(MAX_DATA_XFER));
        Ok(capabilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_text_is_read_back() {
        let ours = Capabilities {
            max_msg_fds: 16,
            write_multiple: true,
            ..Capabilities::default()
        };
        let text = ours.to_version_data();
        assert_eq!(
            text,
            b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576,\"max_dma_maps\":65535,\
              \"pgsizes\":4096,\"write_multiple\":true}}\0"
        );
        assert_eq!(Capabilities::from_version_data(&text), Ok(ours));
    }

    #[test]
    fn qemu_offer_is_understood() {
        let text = b"{\"capabilities\": {\"write_multiple\": true, \"max_msg_fds\": 16, \"pgsizes\": 4096, \
            \"max_data_xfer_size\": 1048576, \"max_dma_maps\": 65535, \"migration\": {\"max_bitmap_size\": \
            268435456, \"pgsize\": 4096}}}\0";
        let caps = Capabilities::from_version_data(text).expect("valid");
        assert_eq!(
            caps,
            Capabilities {
                max_msg_fds: 16,
                write_multiple: true,
                ..Capabilities::default()
            }
        );
    }

    #[test]
    fn absent_data_means_the_defaults() {
        for text in [&b""[..], b"\0", b"{}\0", b"{\"capabilities\":{}}\0"] {
            assert_eq!(Capabilities::from_version_data(text), Ok(Capabilities::default()));
        }
    }

    #[test]
    fn bad_data_is_refused() {
        let read = Capabilities::from_version_data;
        assert_eq!(read(b"{}"), Err(VersionDataError::NotTerminated));
        assert_eq!(
            read(&vec![b' '; 20000]),
            Err(VersionDataError::TooLong { len: 20000 })
        );
        for text in [
            &b"[]x\0"[..],
            b"{\"capabilities\":{\"pgsizes\":-1}}\0",
            b"\xff\xff\0",
            b"{\"capabilities\":3}\0",
        ] {
            assert!(
                matches!(read(text), Err(VersionDataError::NotJson { .. })),
                "{text:?}"
            );
        }
        let nested = [vec![b'['; 10000], vec![0]].concat();
        assert!(matches!(read(&nested), Err(VersionDataError::NotJson { .. })));
        assert!(matches!(
            read(b"{\"capabilities\":{\"pgsizes\":0}}\0"),
            Err(VersionDataError::Zero { .. })
        ));
    }

    #[test]
    fn boundless_offers_are_cut() {
        let text = b"{\"capabilities\":{\"max_msg_fds\":100000,\"max_data_xfer_size\":1099511627776}}\0";
        let caps = Capabilities::from_version_data(text).expect("valid");
        assert_eq!((caps.max_msg_fds, caps.max_data_xfer_size), (253, 1 << 20));
    }
}
