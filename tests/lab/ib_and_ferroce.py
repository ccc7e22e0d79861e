#!/usr/bin/env python3
"""ferroce on the host and Linux's mlx5_ib with libmlx5 in a guest, on two NIC models and one wire."""

import shutil

import rxe_cm
import rxe_operations
import rxe_pingpong
import rxe_rping
from lab import ib, run, rxe

# Tool, kind of GID, options of both sides, options of ferroce.
QUICK = [
    ("rc", "ipv4", "-n 100 -s 4096 -m 1024 -c", []),
    ("rc", "ipv6", "-n 50 -s 65536 -m 4096 -c -e", []),
    ("uc", "ipv4", "-n 100 -s 4096 -m 1024 -c", []),
    ("ud", "ipv6", "-n 100 -s 2048 -c", []),
]
FULL = [
    ("rc", "link-local", "-n 100 -s 5000 -m 256 -c -e", []),
    ("rc", "vlan", "-n 100 -s 1000 -m 1024 -c", ["--vlan", str(rxe.VLAN), "--priority", "3"]),
    ("uc", "ipv6", "-n 50 -s 65536 -m 4096 -c -e", []),
    ("ud", "ipv4", "-n 100 -s 100 -c -e", []),
    ("ud", "vlan", "-n 100 -s 1024 -c", ["--vlan", str(rxe.VLAN)]),
]

# perftest's program, ferroce's name for what it does, options of both, options of the program alone.
PERFTEST = [
    ("ib_write_bw", "write", "-n 200 -s 4096", ""),
    ("ib_read_bw", "read", "-n 200 -s 4096", ""),
    ("ib_send_bw", "send", "-n 200 -s 4096", ""),
    ("ib_atomic_bw", "fetch-and-add", "-n 200", "-A FETCH_AND_ADD"),
    ("ib_atomic_bw", "compare-and-swap", "-n 200", "-A CMP_AND_SWAP"),
]
PERFTEST_FULL = [
    ("ib_write_bw", "write", "-n 50 -s 1048576", ""),
    ("ib_read_bw", "read", "-n 50 -s 1048576", ""),
    ("ib_send_bw", "send", "-n 1000 -s 64", ""),
]
# Kind of address, options of both sides; for the second, the tool before.
RPING = [("ipv4", "-C 20 -V -S 1000"), ("ipv6", "-C 20 -V -S 64")]
CONNECTIONS = [("ucmatose", "ipv4", "-c 4 -C 20 -S 3000")]


def perftest(peer, number, role, case):
    """One of perftest's programs in the guest and ferroce at the other end."""
    program, test, options, alone = case
    what = "%s %s %s, ferroce as %s" % (program, options, alone, role)
    command = "%s -d %s -x %d -m 1024 %s %s" % (program, peer.DEVICE, peer.gids["ipv4"], options, alone)
    ferroce = ["perftest", test], options.split() + ["--gid", "roce-v2-ipv4", "--mtu", "1024"]
    name = "%02d-%s-%s" % (number, test, role)
    before = peer.counters()
    if role == "client":
        server = peer.guest.run_in_background(command, timeout=90)
        peer.listening()
        host = peer.program(name, ferroce[0], ferroce[1] + peer.server_at(rxe.PORT)).start()
        code, result = host.result()
        other = server.result()
    else:
        port = peer.own_port(rxe.PORT)
        host = peer.program(name, ferroce[0], ferroce[1] + ["--port", str(port)]).start()
        host.listening(port)
        other = peer.guest.run("%s %s" % (command, peer.host), timeout=90, check=False)
        code, result = host.result()
    right = code == 0 and other.code == 0 and result.get("ok") is True
    if peer.task.check(what, right, "%s\n%s\n%s" % (result, host.tail(), other)):
        peer.all_accepted(what, before, host.pcap)


def body(task, arguments):
    """mlx5_ib in a guest and ferroce on the host: pingpong, perftest, connections both ways, operations with verified data."""
    peer = ib.Peer(task, listen=(rxe.PORT, rxe_operations.PORT))
    number = 0
    for case in QUICK + (FULL if arguments.full else []):
        for role in ("client", "server"):
            number += 1
            rxe_pingpong.play(peer, number, role, case)
    for case in PERFTEST + (PERFTEST_FULL if arguments.full else []):
        for role in ("client", "server"):
            number += 1
            perftest(peer, number, role, case)
    peer.guest.run("modprobe rdma_ucm")
    for play, cases in ((rxe_rping.play, RPING), (rxe_cm.play, CONNECTIONS)):
        for case in cases:
            for role in ("client", "server"):
                number += 1
                play(peer, number, role, case)
    shutil.copy(run.image.HERE.parent / "share/operations_peer.py", peer.guest.share)
    for seed, case in enumerate(rxe_operations.GOOD + rxe_operations.BAD, 1):
        # A window is bound by a UMR on the RC queue pair, which the model does not do.
        case = (*case[:4], case[4] + ["--no-windows"])
        rxe_operations.play(peer, case[0], case, case[3][arguments.full], seed)
    peer.no_complaints()


if __name__ == "__main__":
    run.main("ib-and-ferroce", body)
