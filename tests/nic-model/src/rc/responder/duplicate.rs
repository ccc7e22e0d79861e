//! Requests whose PSN was executed before (IBTA vol. 1, 9.7.5.1.1): SENDs and WRITEs are acknowledged again,
//! READs are executed again, atomics are answered from what was saved.

use super::super::Shared;
use super::super::segment;
use super::super::types::{QpMemory, RemoteAccess};
use super::checks::{check_range, check_supported};
use super::reply::{Content, Reply};
use super::{Control, Request, Responder};
use crate::wire::opcode::Kind;

impl Responder {
    /// Answers a duplicate, or drops it when it can't be one of a well-behaved peer.
    pub(super) fn replay<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        shared: &mut Shared,
        mem: &M,
    ) {
        let answered = match request.info.kind {
            Kind::Send | Kind::Write => {
                if self.control == Control::None {
                    self.control = Control::Ack;
                }
                true
            }
            Kind::ReadRequest => self.replay_read(request, shared, mem).is_some(),
            Kind::CompareSwap | Kind::FetchAdd => self.replay_atomic(request, shared).is_some(),
            _ => false,
        };
        if !answered {
            shared.counters.dropped += 1;
        }
    }

    /// Reads again, from the middle if that is what is asked for. A response that is still leaving starts
    /// again where it is asked to.
    fn replay_read<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        shared: &Shared,
        mem: &M,
    ) -> Option<()> {
        let reth = request.packet.reth?;
        let psn = request.psn();
        let packets = segment::packets(reth.dma_len, shared.config.path_mtu);
        let executed = self.expected.sub(psn.get()).get();
        let len = u64::from(reth.dma_len);
        let sound = packets <= executed
            && request.packet.payload.is_empty()
            && check_supported(request, &shared.config).is_ok()
            && check_range(reth.rkey, reth.va, len, RemoteAccess::Read, mem).is_ok();
        if !sound {
            return None;
        }
        if let Some(reply) = self.replies.iter_mut().find(|r| r.contains(psn)) {
            if reply.next.diff(psn) > 0 {
                reply.next = psn;
                reply.start = psn;
            }
            return Some(());
        }
        self.insert_replay(
            Reply {
                first: psn,
                start: psn,
                next: psn,
                packets,
                msn: self.msn,
                replayed: true,
                content: Content::Read {
                    rkey: reth.rkey,
                    va: reth.va,
                    len: reth.dma_len,
                },
            },
            shared,
        )
    }

    fn replay_atomic(&mut self, request: Request<'_>, shared: &Shared) -> Option<()> {
        let psn = request.psn();
        let saved = *self.atomics.iter().rev().find(|a| a.psn == psn)?;
        if self.replies.iter().any(|r| r.contains(psn)) {
            return Some(());
        }
        self.insert_replay(Reply::of_atomic(saved, true), shared)
    }

    /// Puts an answer where its PSN belongs. As many replays as the peer may have requests outstanding are
    /// kept; a peer that wants more has to ask again.
    fn insert_replay(&mut self, reply: Reply, shared: &Shared) -> Option<()> {
        let limit = usize::from(shared.config.max_dest_rd_atomic);
        if self.replies.iter().filter(|r| r.replayed).count() >= limit {
            return None;
        }
        let age = |r: &Reply| self.expected.sub(r.first.get()).get();
        let at = self.replies.partition_point(|r| age(r) > age(&reply));
        self.replies.insert(at, reply);
        Some(())
    }
}
