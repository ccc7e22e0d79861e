#!/usr/bin/env python3
"""ferroce on the host and Linux's mlx5_ib with libmlx5 in a guest, on two NIC models and one wire."""

import shutil

import rxe_cm
import rxe_operations
import rxe_perftest
import rxe_pingpong
import rxe_rping
from lab import ib, run, rxe

# Tool, kind of GID, options of both sides, options of ferroce.
QUICK = [
    ("rc", "ipv4", "-n 100 -s 4096 -m 1024 -c", []),
    ("rc", "ipv6", "-n 50 -s 65536 -m 4096 -c -e", []),
    ("uc", "ipv4", "-n 100 -s 4096 -m 1024 -c", []),
    ("ud", "ipv6", "-n 100 -s 2048 -c", []),
    ("srq", "ipv6", "-n 200 -s 1000 -m 1024 -q 16 -c -e", []),
]
FULL = [
    ("rc", "link-local", "-n 100 -s 5000 -m 256 -c -e", []),
    ("rc", "vlan", "-n 100 -s 1000 -m 1024 -c", ["--vlan", str(rxe.VLAN), "--priority", "3"]),
    ("uc", "ipv6", "-n 50 -s 65536 -m 4096 -c -e", []),
    ("ud", "ipv4", "-n 100 -s 100 -c -e", []),
    ("ud", "vlan", "-n 100 -s 1024 -c", ["--vlan", str(rxe.VLAN)]),
]

# perftest's program, ferroce's command, options of both, options of the program alone.
ATOMIC = [
    ("ib_atomic_bw", "perftest fetch-and-add", "-n 200 -m 1024", "-A FETCH_AND_ADD"),
    ("ib_atomic_bw", "perftest compare-and-swap", "-n 200 -m 1024", "-A CMP_AND_SWAP"),
]
# Kind of address, options of both sides, path MTU where one is chosen; for the second, the tool before.
RPING = [("ipv4", "-C 20 -V -S 1000"), ("ipv6", "-C 20 -V -S 64")]
RPING_FULL = [
    ("link-local", "-C 20 -V -S 10000"),
    ("vlan", "-C 20 -V -S 10000"),
    ("ipv4", "-C 10 -V -S 60000", 1024),
    ("ipv6", "-C 10 -V -S 60000", 4096),
]
CONNECTIONS = [("ucmatose", "ipv4", "-c 4 -C 20 -S 3000"), ("cmtime", "ipv4", "-c 20")]
CONNECTIONS_FULL = [
    ("ucmatose", "vlan", "-c 2 -C 10 -S 10000", 1024),
    ("ucmatose", "link-local", "-c 2 -C 10 -S 10000", 4096),
    ("udaddy", "vlan", "-c 1 -C 8 -S 1000"),
    ("cmtime", "ipv6", "-c 50"),
    ("cmtime", "vlan", "-c 50"),
]


def body(task, arguments):
    """mlx5_ib in a guest and ferroce on the host: pingpong, perftest, connections both ways, operations with verified data."""
    sync = rxe_cm.SYNC
    peer = ib.Peer(task, listen=(rxe.PORT, rxe_operations.PORT, sync), reach=(rxe.PORT, sync))
    rxe_cm.lead_tcp(peer)
    full = arguments.full
    peer.play(rxe_pingpong.play, QUICK + (FULL if full else []))
    peer.play(rxe_perftest.play, rxe_perftest.QUICK + ATOMIC + (rxe_perftest.FULL if full else []))
    peer.guest.run("modprobe rdma_ucm")
    peer.play(rxe_rping.play, RPING + (RPING_FULL if full else []))
    peer.play(rxe_cm.play, CONNECTIONS + (CONNECTIONS_FULL if full else []))
    shutil.copy(run.image.HERE.parent / "share/operations_peer.py", peer.guest.share)
    for seed, case in enumerate(rxe_operations.GOOD + rxe_operations.BAD, 1):
        # A window is bound by a UMR on the RC queue pair, which the model does not do.
        options = [option for option in case[4] if option != rxe_operations.EMPTY]
        case = (*case[:4], options + ["--no-windows"])
        count = case[3][arguments.full]
        if not count:
            continue
        before, pcap, right = rxe_operations.play(peer, case[0], case, count, seed)
        if right and not rxe_operations.is_bad(case):
            peer.all_accepted(case[0], before, pcap)
        if right:
            peer.check_frames(case[0], pcap, count)
    peer.no_complaints()


if __name__ == "__main__":
    run.main("ib-and-ferroce", body)
