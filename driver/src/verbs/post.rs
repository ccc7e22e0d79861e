//! Posting work requests.
//!
//! `post_send` and `post_recv` write to the queue; the device sees it when [`Qp::ring_send`] or [`Qp::ring_recv`] is
//! called, once for as many as there are. The `_list` calls ring by themselves.

use std::ops::Range;

use ferroce_hw_regs::ids::Qpn;

use super::error::{BadWr, Refused};
use super::local::LocalBuffer;
use super::qp::Qp;
use crate::ring::{Ah, Payload, PostError, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr};

/// What a send request does with the buffer that is moved into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferOp<'a> {
    /// SEND of its bytes.
    Send {
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// SEND of its bytes as a datagram; see [`SendOp::SendTo`].
    SendTo {
        /// Immediate data, in host order.
        imm: Option<u32>,
        /// The way there.
        to: &'a Ah,
        /// The queue pair there.
        qpn: Qpn,
        /// The Q_Key there.
        qkey: u32,
    },
    /// WRITE of its bytes.
    Write {
        /// Where to.
        remote: RemoteAddr,
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// READ into it.
    Read {
        /// Where from.
        remote: RemoteAddr,
    },
    /// Atomic compare and swap, the old value into it (8 bytes).
    CompareSwap {
        /// The peer's 8 bytes.
        remote: RemoteAddr,
        /// Swapped only if the old value equals this one.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Atomic fetch and add, the old value into it (8 bytes).
    FetchAdd {
        /// The peer's 8 bytes.
        remote: RemoteAddr,
        /// Added.
        add: u64,
    },
}

impl Qp {
    /// Writes a send request to the queue. The device sees it at [`Qp::ring_send`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match &mut self.sq {
            Some(sq) => sq.post(wr),
            None => Err(PostError::NoQueue { queue: "send" }),
        }
    }

    /// Shows the device all send requests that were posted since the last call, by one doorbell.
    #[inline]
    pub fn ring_send(&mut self) {
        if let Some(sq) = &mut self.sq {
            sq.ring();
        }
    }

    /// The same for a queue pair that was made for it ([`QpConfig::blueflame`](super::QpConfig::blueflame)): if it is one request,
    /// and small, it goes to the device within the doorbell, which then need not fetch it. Other requests and other queue
    /// pairs are rung for as ever. Both calls may be mixed.
    ///
    /// A call of its own, so that [`Qp::ring_send`] costs nothing more.
    #[inline]
    pub fn ring_send_blueflame(&mut self) {
        match (&mut self.sq, &mut self.blueflame) {
            (Some(sq), Some(register)) => sq.ring_blueflame(register),
            _ => self.ring_send(),
        }
    }

    /// Writes a receive request to the queue. The device sees it at [`Qp::ring_recv`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        match &mut self.rq {
            Some(rq) => rq.post(wr),
            None => Err(PostError::NoQueue { queue: "receive" }),
        }
    }

    /// Shows the device all receive requests that were posted since the last call.
    #[inline]
    pub fn ring_recv(&mut self) {
        if let Some(rq) = &mut self.rq {
            rq.ring();
        }
    }

    /// Posts a chain of send requests and rings once.
    ///
    /// # Errors
    /// [`BadWr`] names the first that can't be posted; those before it are.
    pub fn post_send_list(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BadWr> {
        let Some(sq) = &mut self.sq else {
            let error = PostError::NoQueue { queue: "send" };
            return if wrs.is_empty() {
                Ok(())
            } else {
                Err(BadWr { index: 0, error })
            };
        };
        for (index, wr) in wrs.iter().enumerate() {
            if let Err(error) = sq.post(wr) {
                sq.ring();
                return Err(BadWr { index, error });
            }
        }
        sq.ring();
        Ok(())
    }

    /// Posts a chain of receive requests and rings once.
    ///
    /// # Errors
    /// [`BadWr`] names the first that can't be posted; those before it are.
    pub fn post_recv_list(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), BadWr> {
        let bad = wrs.iter().enumerate().find_map(|(index, wr)| {
            let error = self.post_recv(wr).err()?;
            Some(BadWr { index, error })
        });
        self.ring_recv();
        bad.map_or(Ok(()), Err)
    }

    /// Posts a receive into the whole of a buffer, which comes back with the completion. The device sees it at
    /// [`Qp::ring_recv`].
    ///
    /// # Errors
    /// [`Refused`] with the buffer; nothing was posted.
    pub fn post_recv_buffer(&mut self, wr_id: u64, buffer: LocalBuffer) -> Result<(), Refused<LocalBuffer>> {
        let Some(rq) = &mut self.rq else {
            return Err(Refused {
                error: PostError::NoQueue { queue: "receive" },
                buffer,
            });
        };
        let sge = match buffer.sge(&self.pd, 0..buffer.len()) {
            Ok(sge) => sge,
            Err(error) => return Err(Refused { error, buffer }),
        };
        rq.post_owned(&RecvWr { wr_id, sges: &[sge] }, buffer.lend())
            .map_err(|(error, buffer)| Refused {
                error,
                buffer: LocalBuffer::reclaim(buffer),
            })
    }

    /// Posts a send request with a part of a buffer, which comes back with the completion; the request is always
    /// signaled. The device sees it at [`Qp::ring_send`].
    ///
    /// # Errors
    /// [`Refused`] with the buffer; nothing was posted.
    pub fn post_send_buffer(
        &mut self,
        wr_id: u64,
        op: BufferOp<'_>,
        flags: SendFlags,
        buffer: LocalBuffer,
        range: Range<usize>,
    ) -> Result<(), Refused<LocalBuffer>> {
        let Some(sq) = &mut self.sq else {
            return Err(Refused {
                error: PostError::NoQueue { queue: "send" },
                buffer,
            });
        };
        let into = match buffer.sge(&self.pd, range) {
            Ok(sge) => sge,
            Err(error) => return Err(Refused { error, buffer }),
        };
        let sges = &[into];
        let op = match op {
            BufferOp::Send { imm } => SendOp::Send {
                data: Payload::Gather(sges),
                imm,
            },
            BufferOp::SendTo { imm, to, qpn, qkey } => SendOp::SendTo {
                data: Payload::Gather(sges),
                imm,
                to,
                qpn,
                qkey,
            },
            BufferOp::Write { remote, imm } => SendOp::Write {
                data: Payload::Gather(sges),
                remote,
                imm,
            },
            BufferOp::Read { remote } => SendOp::Read { into: sges, remote },
            BufferOp::CompareSwap {
                remote,
                compare,
                swap,
            } => SendOp::CompareSwap {
                into,
                remote,
                compare,
                swap,
            },
            BufferOp::FetchAdd { remote, add } => SendOp::FetchAdd { into, remote, add },
        };
        sq.post_owned(&SendWr { wr_id, op, flags }, buffer.lend())
            .map_err(|(error, buffer)| Refused {
                error,
                buffer: LocalBuffer::reclaim(buffer),
            })
    }
}
