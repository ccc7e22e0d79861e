//! What the firmware asks of the rest of the NIC: the data plane with its objects, and host memory.
//!
//! The firmware checks commands (lengths, reserved bits, order, capabilities); the data plane owns the objects,
//! numbers them, and knows what refers to what. The two meet at [`Plane`], so that either can be tried without
//! the other.

use ferroce_firmware_iface::event::PortChange;
use ferroce_firmware_iface::layouts::{
    Cqc, Eqc, Mkc, Qpc, QueryQCounterOut, QueryVportCounterOut, Srqc, Umem,
};

use super::plane_ethernet::EthernetPlane;
use super::plane_port::PortPlane;
use super::qp_transition::QpTransition;
use crate::objects::{Buffer, ObjectError};

/// A host address that the device could not reach: not mapped, mapped read-only, or bus mastering is off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no DMA access to {len} bytes at {iova:#x}")]
pub struct DmaFault {
    /// First byte.
    pub iova: u64,
    /// Bytes asked for.
    pub len: usize,
}

/// Host memory as the firmware reaches it.
pub trait HostDma {
    /// Copies `data.len()` bytes at `iova` into `data`.
    ///
    /// # Errors
    /// Not all of it is mapped for the device to read.
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DmaFault>;

    /// Copies `data` to `iova`. What was written by an earlier call is visible to the host before this.
    ///
    /// # Errors
    /// Not all of it is mapped for the device to write.
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaFault>;

    /// Whether the device could read and write all `len` bytes at `iova`.
    fn mapped(&self, iova: u64, len: u64) -> bool;
}

/// Something that the firmware tells its host through an event queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Commands completed; a bit for each slot of the command queue.
    Command {
        /// Bit mask of slots.
        slots: u32,
    },
    /// The firmware needs pages (positive) or gives some up (negative).
    PageRequest {
        /// The function whose pages they are.
        function_id: u16,
        /// How many.
        num_pages: i32,
    },
    /// Something about a port changed.
    PortChange {
        /// Port, from 1.
        port: u8,
        /// What.
        change: PortChange,
    },
}

/// The data plane as the firmware uses it. Numbers are those that the host sees; every number it names is
/// untrusted.
///
/// All `create_*` and `alloc_*` functions fail with [`ObjectError::NoResources`] when their table is full, with
/// [`ObjectError::BadValue`] or [`ObjectError::FewPages`] for a context that can't be had, and with
/// [`ObjectError::NoSuch`] for objects it names that aren't there. All `destroy_*` and `dealloc_*` functions fail
/// with [`ObjectError::NoSuch`] and, while others refer to the object, [`ObjectError::Busy`].
#[allow(missing_docs)] // One function for each firmware command, under the command's name.
pub trait Plane: HostDma + EthernetPlane + PortPlane {
    fn alloc_uar(&mut self) -> Result<u32, ObjectError>;
    fn dealloc_uar(&mut self, uar: u32) -> Result<(), ObjectError>;
    fn alloc_pd(&mut self) -> Result<u32, ObjectError>;
    fn dealloc_pd(&mut self, pd: u32) -> Result<(), ObjectError>;
    fn alloc_transport_domain(&mut self) -> Result<u32, ObjectError>;
    fn dealloc_transport_domain(&mut self, td: u32) -> Result<(), ObjectError>;
    fn alloc_xrcd(&mut self) -> Result<u32, ObjectError>;
    fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), ObjectError>;
    fn alloc_q_counter(&mut self) -> Result<u8, ObjectError>;
    fn dealloc_q_counter(&mut self, id: u8) -> Result<(), ObjectError>;
    fn query_q_counter(&mut self, id: u8, clear: bool, out: &mut QueryQCounterOut)
    -> Result<(), ObjectError>;
    fn query_vport_counter(&mut self, clear: bool, out: &mut QueryVportCounterOut);

    fn create_eq(&mut self, eqc: &Eqc, event_bitmask: [u64; 4], pas: Buffer<'_>) -> Result<u32, ObjectError>;
    fn destroy_eq(&mut self, eqn: u32) -> Result<(), ObjectError>;
    /// Fills in the context; gives the event mask.
    fn query_eq(&self, eqn: u32, eqc: &mut Eqc) -> Result<[u64; 4], ObjectError>;

    fn create_cq(&mut self, cqc: &Cqc, buffer: Buffer<'_>) -> Result<u32, ObjectError>;
    /// Takes over moderation, EQ and overrun-ignore of `cqc`, and moves to a new buffer if there is one.
    fn modify_cq(&mut self, cqn: u32, cqc: &Cqc, buffer: Option<Buffer<'_>>) -> Result<(), ObjectError>;
    fn destroy_cq(&mut self, cqn: u32) -> Result<(), ObjectError>;
    fn query_cq(&self, cqn: u32, cqc: &mut Cqc) -> Result<(), ObjectError>;

    fn create_mkey(&mut self, mkc: &Mkc, translations: Buffer<'_>) -> Result<u32, ObjectError>;
    fn destroy_mkey(&mut self, index: u32) -> Result<(), ObjectError>;
    fn query_mkey(&self, index: u32, mkc: &mut Mkc) -> Result<(), ObjectError>;

    fn create_qp(&mut self, qpc: &Qpc, buffer: Buffer<'_>) -> Result<u32, ObjectError>;
    /// `qpc` is the whole context after the transition, which the firmware has checked.
    fn modify_qp(&mut self, transition: QpTransition, qpn: u32, qpc: &Qpc) -> Result<(), ObjectError>;
    fn destroy_qp(&mut self, qpn: u32) -> Result<(), ObjectError>;
    /// The context as it is now: the state may have become SQE or ERR by itself.
    fn query_qp(&self, qpn: u32, qpc: &mut Qpc) -> Result<(), ObjectError>;

    fn create_srq(&mut self, srqc: &Srqc, buffer: Buffer<'_>) -> Result<u32, ObjectError>;
    fn destroy_srq(&mut self, srqn: u32) -> Result<(), ObjectError>;
    fn query_srq(&self, srqn: u32, srqc: &mut Srqc) -> Result<(), ObjectError>;
    /// An event is raised, once, when fewer than `limit` receives are left.
    fn arm_srq(&mut self, srqn: u32, limit: u16) -> Result<(), ObjectError>;

    fn create_umem(&mut self, umem: &Umem, mtt: &[u8]) -> Result<u32, ObjectError>;
    fn destroy_umem(&mut self, id: u32) -> Result<(), ObjectError>;
    /// Where 8 bytes at `offset` of a umem are: a doorbell record.
    fn umem_iova(&self, id: u32, offset: u64) -> Result<u64, ObjectError>;

    fn set_roce_enabled(&mut self, enabled: bool);
    /// The vport's own address: what the wire sees when an L2 table does not say more.
    fn set_mac(&mut self, mac: [u8; 6]);
    /// One entry of the multi-physical-function switch's table of own addresses.
    fn set_l2_entry(&mut self, index: u32, mac: Option<[u8; 6]>) -> Result<(), ObjectError>;
    /// The largest IP packet plus Ethernet header that the port passes, in bytes.
    fn set_mtu(&mut self, mtu: u16);

    /// Whether an event queue takes events of this type (PRM number).
    fn subscribed(&self, event_type: u8) -> bool;
    /// Writes the event and interrupts; false when no event queue subscribes to it.
    fn raise(&mut self, event: Event) -> bool;

    /// Whether atomics work on values in the host's byte order (`atomic_req_8B_endianness_mode` 1) rather than in
    /// big-endian order.
    fn set_atomics_in_host_order(&mut self, host_order: bool);

    /// Objects that are there, by kind, for what a teardown leaves behind: (kind, number of them).
    fn census(&self) -> Vec<(&'static str, u32)>;
    /// Forgets all objects without a further access to host memory.
    fn reset(&mut self);
}
