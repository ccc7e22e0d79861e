#!/usr/bin/env python3
"""Does by Linux's verbs (pyverbs) what its test programs do not: requests and commands that ferroce's driver has too.

Each queue pair is connected to another of the same NIC. SEND with invalidate names a key that the peer may not end, so
that it has to fail: such keys are those of memory windows, which the model has not.
"""

import argparse
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
PATIENCE = 30
LENGTH = 4096
SHORT = 16


class Ends:
    """Two connected queue pairs and what they need."""

    def __init__(self, context, gid_index, qp_type):
        self.access = REMOTE if qp_type == e.IBV_QPT_RC else e.IBV_ACCESS_REMOTE_WRITE
        self.pd = PD(context)
        self.cq = CQ(context, 64)
        self.mr = MR(self.pd, LENGTH, e.IBV_ACCESS_LOCAL_WRITE | REMOTE)
        cap = QPCap(max_send_wr=4, max_recv_wr=500, max_send_sge=1, max_recv_sge=1, max_inline_data=SHORT)
        init = QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)
        self.qps = [QP(self.pd, init) for _ in range(2)]
        gid = context.query_gid(1, gid_index)
        for qp, peer in zip(self.qps, reversed(self.qps)):
            attr = QPAttr(path_mtu=e.IBV_MTU_1024)
            attr.qp_access_flags = self.access
            attr.dest_qp_num = peer.qp_num
            attr.rq_psn = attr.sq_psn = 0x123456
            attr.max_dest_rd_atomic = attr.max_rd_atomic = 16
            attr.min_rnr_timer = 12
            attr.timeout = 14
            attr.retry_cnt = attr.rnr_retry = 7
            route = GlobalRoute(dgid=gid, sgid_index=gid_index, hop_limit=64)
            attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
            qp.to_rts(attr)

    def exchange(self, opcode, inline, wanted=e.IBV_WC_SUCCESS, flags=e.IBV_SEND_SIGNALED):
        """One request, and what it causes at the other end."""
        from_qp, to_qp = self.qps
        length = SHORT if inline else LENGTH
        sge = SGE(self.mr.buf, length, self.mr.lkey)
        arrives = opcode != e.IBV_WR_RDMA_WRITE
        if arrives:
            # Only what is sent needs room.
            room = 0 if opcode == e.IBV_WR_RDMA_WRITE_WITH_IMM else LENGTH
            to_qp.post_recv(RecvWR(wr_id=2, num_sge=1, sg=[SGE(self.mr.buf, room, self.mr.lkey)]))
        flags |= e.IBV_SEND_INLINE if inline else 0
        # The key of SEND with invalidate stands where immediate data do.
        value = self.mr.rkey if opcode == e.IBV_WR_SEND_WITH_INV else 7
        request = SendWR(wr_id=1, opcode=opcode, num_sge=1, sg=[sge], imm_data=value, send_flags=flags)
        if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM):
            request.set_wr_rdma(self.mr.rkey, self.mr.buf)
        from_qp.post_send(request)
        statuses = self.completions(arrives + bool(flags & e.IBV_SEND_SIGNALED))
        right = all(s == e.IBV_WC_SUCCESS for s in statuses) == (wanted == e.IBV_WC_SUCCESS) and wanted in statuses
        if not right:
            raise RuntimeError("opcode %d: statuses %r where %d was due" % (opcode, statuses, wanted))

    def completions(self, count):
        """Statuses of the next completions."""
        deadline = time.monotonic() + PATIENCE
        statuses = []
        while len(statuses) < count:
            got, completions = self.cq.poll(count)
            statuses += [wc.status for wc in completions]
            if got == 0 and time.monotonic() > deadline:
                raise TimeoutError("%d of %d completions" % (len(statuses), count))
        return statuses


def connected(context, gid_index):
    """RC and UC."""
    for qp_type in (e.IBV_QPT_UC, e.IBV_QPT_RC):
        ends = Ends(context, gid_index, qp_type)
        for inline in (False, True):
            for opcode in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM):
                ends.exchange(opcode, inline)
        for flags in (e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE, e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED, 0):
            ends.exchange(e.IBV_WR_SEND, False, flags=flags)
        attr = QPAttr()
        attr.qp_access_flags = ends.access
        ends.qps[0].modify(attr, e.IBV_QP_ACCESS_FLAGS)
        ends.qps[0].query(e.IBV_QP_STATE)
        ends.cq.resize(600)
        ends.exchange(e.IBV_WR_SEND, False)
        if qp_type == e.IBV_QPT_RC:
            refused(context, gid_index)
        for thing in (*ends.qps, ends.mr, ends.cq, ends.pd):
            thing.close()


def refused(context, gid_index):
    """SEND with invalidate of a key that the peer may not end, in each form."""
    for inline in (False, True):
        ends = Ends(context, gid_index, e.IBV_QPT_RC)
        ends.exchange(e.IBV_WR_SEND_WITH_INV, inline, e.IBV_WC_REM_ACCESS_ERR)
        for thing in (*ends.qps, ends.mr, ends.cq, ends.pd):
            thing.close()


def shared_receives(context):
    """A limit of a shared receive queue."""
    pd = PD(context)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=100, max_sge=1)))
    srq.modify(SrqAttr(srq_limit=1), e.IBV_SRQ_LIMIT)
    srq.query()
    srq.close()
    pd.close()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="mlx5_0")
    arguments.add_argument("--gid-index", type=int, required=True)
    given = arguments.parse_args()
    context = Context(name=given.device)
    shared_receives(context)
    connected(context, given.gid_index)


if __name__ == "__main__":
    main()
