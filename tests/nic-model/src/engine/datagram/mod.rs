//! Unreliable datagrams: UD queue pairs, and QP1, which is one with a fixed number on the wire (the GSI).
//!
//! ```text
//!   send WQE ─▶ address vector, GID table ─▶ headers, DETH ─▶ one frame ─▶ wire (and ourselves)
//!   frame ─▶ GID, P_Key, Q_Key ─▶ receive ─▶ 40 bytes of global header, payload ─▶ CQE
//! ```
//!
//! Sources: IBTA vol. 1, 9.8.3 (UD), 10.2.5 (Q_Key), 13.5.1 (QP1), annex A17.4.5 (what a receiver finds before
//! the payload); the PRM's address vector; what Linux's mlx5_ib reads out of a CQE.

pub(super) mod av;
mod receive;
mod send;

/// QP number of the General Services Interface on the wire (IBTA vol. 1, 3.9.2.3).
pub(super) const GSI_QPN: u32 = 1;
/// QP number in packets to a multicast group (IBTA vol. 1, 3.5.3).
pub(super) const MULTICAST_QPN: u32 = 0xff_ffff;
/// Bytes before the payload in a receive buffer: the GRH, or what stands for it.
pub(super) const GRH_BYTES: usize = 40;
