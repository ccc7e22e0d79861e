#!/usr/bin/env python3
"""The other end of `ferroce operations`: does with Linux's verbs (pyverbs) what it is told over TCP.

One JSON object a line comes, one goes back. What memory has to hold is the other side's to know; this one tells hashes.
"""

import argparse
import hashlib
import json
import socket
import struct
import sys
import time
import traceback

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
REMOTE_ACCESS = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
OPCODES = {
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "send": e.IBV_WR_SEND,
    "send_imm": e.IBV_WR_SEND_WITH_IMM,
    "send_inv": e.IBV_WR_SEND_WITH_INV,
    "cas": e.IBV_WR_ATOMIC_CMP_AND_SWP,
    "fadd": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
# rdma_rxe gives programs the kernel's number of the flag, which is libibverbs' of another (IP checksum right).
KERNEL_WC_WITH_INV = 4
RECV = 1 << 32
BIND = 1 << 33
PATIENCE = 60


class Peer:
    """The verbs objects."""

    def __init__(self, device, gid_index, traffic_class):
        self.context = Context(name=device)
        self.gid_index = gid_index
        self.traffic_class = traffic_class
        self.pd = PD(self.context)

    def hello(self, other):
        """Makes everything, and connects."""
        self.sizes = sizes = other["sizes"]
        self.cq = CQ(self.context, 1024)
        depth = sizes["depth"]
        cap = QPCap(max_send_wr=2 * depth, max_recv_wr=4 * depth, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        local = e.IBV_ACCESS_LOCAL_WRITE
        self.remote = MR(self.pd, sizes["remote"], local | REMOTE_ACCESS)
        self.source = MR(self.pd, sizes["source"], local)
        self.results = MR(self.pd, sizes["results"], local)
        self.receives = MR(self.pd, sizes["receives"], local)
        self.window = MR(self.pd, sizes["window"], local | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND)
        blocks = (hashlib.sha256(b"%d g %d" % (other["seed"], i)).digest() for i in range(sizes["source"] // 32))
        self.source.write(b"".join(blocks), sizes["source"])
        self.remote.write(bytes(sizes["remote"]), sizes["remote"])
        self.connect(other)
        self.other = (other["addr"], other["rkey"])
        gid = self.context.query_gid(1, self.gid_index).gid
        return {"qpn": self.qp.qp_num, "psn": 0x123456, "gid": gid, "addr": self.remote.buf, "rkey": self.remote.rkey}

    def connect(self, other):
        attr = QPAttr(path_mtu=MTUS[other["mtu"]])
        attr.qp_access_flags = REMOTE_ACCESS | e.IBV_ACCESS_LOCAL_WRITE
        attr.dest_qp_num = other["qpn"]
        attr.rq_psn = other["psn"]
        attr.sq_psn = 0x123456
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 16
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = attr.rnr_retry = 7
        dgid = other["gid"] if "." not in other["gid"] else "::ffff:" + other["gid"].rpartition(":")[2]
        packed = socket.inet_pton(socket.AF_INET6, dgid)
        text = ":".join("%02x%02x" % tuple(packed[i:i + 2]) for i in range(0, 16, 2))
        route = GlobalRoute(dgid=GID(text), sgid_index=self.gid_index, hop_limit=64, traffic_class=self.traffic_class)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def begin(self):
        """Before a batch."""
        fill = bytes([self.sizes["fill"]])
        self.results.write(fill * self.sizes["results"], self.sizes["results"])
        self.receives.write(fill * self.sizes["receives"], self.sizes["receives"])
        self.arrivals = []
        self.sent = 0
        self.bound = 0
        self.expected = 0
        self.atomics = []

    def target(self, what):
        """Prepares for messages that come."""
        self.begin()
        self.expected = what["receives"]
        for slot in range(self.expected):
            at = self.receives.buf + slot * self.sizes["slot"]
            self.qp.post_recv(RecvWR(wr_id=RECV, num_sge=1, sg=[SGE(at, self.sizes["slot"], self.receives.lkey)]))
        keys = []
        self.windows = []
        for number in range(what["windows"]):
            window = MW(self.pd, e.IBV_MW_TYPE_2)
            info = MWBindInfo(self.window, self.window.buf, self.sizes["window"], e.IBV_ACCESS_REMOTE_WRITE)
            request = SendWR(wr_id=BIND, opcode=e.IBV_WR_BIND_MW)
            request.set_bind_wr(window, info)
            self.qp.post_send(request)
            self.until(lambda: self.bound > number)
            self.windows.append(window)
            keys.append(request.rkey)
        return {"keys": keys}

    def initiate(self, operations):
        """Does operations."""
        self.begin()
        for number, op in enumerate(operations):
            self.until(lambda: number - self.sent < self.sizes["depth"])
            self.post(number, op)
        self.until(lambda: self.sent == len(operations))
        for op in operations:
            if op["kind"] in ("cas", "fadd"):
                self.atomics.append(struct.unpack("=Q", self.results.read(8, op["local"]))[0])
                # The other side compares the values, not the bytes.
                self.results.write(bytes([self.sizes["fill"]]) * 8, 8, op["local"])
        return {}

    def post(self, number, op):
        kind = op["kind"]
        memory = self.results if kind in ("read", "cas", "fadd") else self.source
        imm = 0
        if kind in ("write_imm", "send_imm"):
            imm = socket.htonl(op["value"])
        elif kind == "send_inv":
            imm = op["key"]
        flags = e.IBV_SEND_SIGNALED
        if op["fence"] and self.wait_for_fences:
            self.until(lambda: self.sent == number)
        elif op["fence"]:
            flags |= e.IBV_SEND_FENCE
        sge = SGE(memory.buf + op["local"], op["len"], memory.lkey)
        request = SendWR(wr_id=number, opcode=OPCODES[kind], num_sge=1, sg=[sge], imm_data=imm, send_flags=flags)
        address, key = self.other[0] + op["remote"], self.other[1]
        if kind in ("write", "write_imm", "read"):
            request.set_wr_rdma(key, address)
        elif kind == "cas":
            request.set_wr_atomic(key, address, op["compare"], op["value"])
        elif kind == "fadd":
            request.set_wr_atomic(key, address, op["value"])
        self.qp.post_send(request)

    def until(self, done):
        """Takes completions in until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            count, completions = self.cq.poll(16)
            for wc in completions:
                self.completed(wc)
            if count == 0 and time.monotonic() > deadline:
                raise TimeoutError("%d sent, %d arrived of %d" % (self.sent, len(self.arrivals), self.expected))

    def completed(self, wc):
        if wc.status != e.IBV_WC_SUCCESS:
            raise RuntimeError("request %#x failed with status %d" % (wc.wr_id, wc.status))
        if wc.wr_id == RECV:
            imm = socket.ntohl(wc.imm_data) if wc.wc_flags & e.IBV_WC_WITH_IMM else None
            key = wc.imm_data if wc.wc_flags & (e.IBV_WC_WITH_INV | KERNEL_WC_WITH_INV) else None
            self.arrivals.append([wc.byte_len, imm, key])
        elif wc.wr_id == BIND:
            self.bound += 1
        elif wc.wr_id == self.sent:
            self.sent += 1
        else:
            raise RuntimeError("request %d completed where %d was due" % (wc.wr_id, self.sent))

    def report(self, _):
        """What is in memory."""
        self.until(lambda: len(self.arrivals) >= self.expected)
        said = {"arrivals": self.arrivals, "atomics": self.atomics}
        for name in ("remote", "results", "receives"):
            said[name] = hashlib.sha256(getattr(self, name).read(self.sizes[name], 0)).hexdigest()
        return said


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="rxe0")
    arguments.add_argument("--gid-index", type=int, default=1)
    arguments.add_argument("--port", type=int, default=18516)
    arguments.add_argument("--traffic-class", type=int, default=0, help="DSCP and ECN of its packets")
    arguments.add_argument("--wait-for-fences", action="store_true",
                           help="wait for what is outstanding instead of asking the device for a fence")
    given = arguments.parse_args()
    with socket.create_server(("", given.port)) as server:
        stream, _ = server.accept()
    peer = Peer(given.device, given.gid_index, given.traffic_class)
    peer.wait_for_fences = given.wait_for_fences
    with stream, stream.makefile("r") as lines:
        for line in lines:
            request = json.loads(line)
            try:
                if "end" in request:
                    answer = {}
                elif "hello" in request or "qpn" in request:
                    answer = peer.hello(request)
                else:
                    (what, value), = request.items()
                    answer = getattr(peer, what)(value)
            except Exception as error:
                traceback.print_exc()
                answer = {"error": repr(error)}
            stream.sendall((json.dumps(answer) + "\n").encode())
            if "error" in answer:
                return 1
            if "end" in request:
                return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
