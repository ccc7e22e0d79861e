#!/usr/bin/env python3
"""Soft-RoCE in a guest, and ferroce in another guest with its NIC over VFIO: ping, pingpong, connections, operations."""

import shutil

import rxe_cm
import rxe_operations
import rxe_pingpong
import rxe_rping
from lab import linux, run, rxe, seats

# As in the runs of those names: tool, kind of address, options of both sides, options of ferroce.
PINGPONG = [
    ("rc", "ipv4", "-n 50 -s 4096 -m 1024 -c", []),
    ("srq", "ipv6", "-n 50 -s 1000 -m 1024 -q 4 -c -e", []),
]
PINGPONG_FULL = [
    ("rc", "link-local", "-n 20 -s 65536 -m 4096 -c -e", []),
    ("rc", "vlan", "-n 50 -s 1000 -m 1024 -c", ["--vlan", str(rxe.VLAN)]),
    ("uc", "ipv6", "-n 50 -s 4096 -m 1024 -c -e", []),
    ("ud", "ipv4", "-n 50 -s 2048 -c -e", []),
]
RPING = [("ipv4", "-C 20 -V -S 1000")]
RPING_FULL = [("ipv6", "-C 50 -V -S 65000")]
CONNECTIONS = [("ucmatose", "ipv6", "-c 2 -C 5 -S 3000")]
CONNECTIONS_FULL = [("udaddy", "ipv4", "-c 2 -C 4 -S 1000")]
OPERATIONS = (200, 2000)


def ping(peer):
    """Linux pings ferroce, which only answers for its addresses."""
    task = peer.task
    options = ["--json", "--duplicate-detection", "optimistic", "--port-mtu", "9000"]
    options += ["--address", "%s/24@%d" % (rxe.VLAN_ADDRESSES[0], rxe.VLAN)]
    link = peer.program("link", ["link"], options).start()
    link.says('"up"')
    for size in (0, 56, 8000):
        for ip in (*(own for own, _ in rxe.ADDRESSES.values()), rxe.VLAN_ADDRESSES[0], rxe.link_local(rxe.NIC_MAC) + "%wire"):
            out = peer.guest.run("ping -c 2 -i 0.2 -W 5 -s %d %s" % (size, ip), check=False).out
            task.check("%s answers %d bytes" % (ip, size), " 0% packet loss" in out, out)
    link.interrupt()
    code, _ = link.result()
    task.check("link ends when it is told to", code == 0, link.tail())


def operations(peer, count):
    """WRITE, READ, SEND, atomics, invalidate, with verified data."""
    case = ("operations", "ipv4", 1024, None, [])
    before, pcap, right = rxe_operations.play(peer, case[0], case, count, 11)
    if right:
        peer.all_accepted(case[0], before, pcap)
        peer.check_frames(case[0], pcap, count)


def session(task, arguments, peer):
    """All of it, with ferroce wherever the peer has it."""
    peer.guest.run("modprobe rdma_ucm")
    shutil.copy(run.image.HERE.parent / "share/operations_peer.py", peer.guest.share)
    ping(peer)
    full = arguments.full
    peer.play(rxe_pingpong.play, PINGPONG + (PINGPONG_FULL if full else []))
    peer.play(rxe_rping.play, RPING + (RPING_FULL if full else []))
    peer.play(rxe_cm.play, CONNECTIONS + (CONNECTIONS_FULL if full else []))
    operations(peer, OPERATIONS[full])
    # What was before, between and after, too.
    rxe.check_frames(task, "the whole wire", peer.capture, OPERATIONS[full])
    peer.at_end()
    refused = linux.refusals(peer.model)
    task.check("no complaint of the model's", not refused, "\n".join(refused[:10]))


def body(task, arguments):
    """Soft-RoCE in one guest, ferroce in another over VFIO: ping, pingpong, connections, operations, each side first."""
    session(task, arguments, seats.TwoGuests(task))


if __name__ == "__main__":
    run.main("rxe_two_guests", body)
