#!/usr/bin/env python3
"""ferroce's connection manager with librdmacm's ucmatose, udaddy and cmtime on Linux's Soft-RoCE, either as client and as
server."""

import re

from lab import run, rxe

# Tool, kind of address, options of both sides.
QUICK = [
    ("ucmatose", "ipv4", "-c 1 -C 10 -S 100"),
    ("ucmatose", "ipv6", "-c 4 -C 20 -S 3000"),
    ("udaddy", "ipv4", "-c 1 -C 10 -S 100"),
    # A burst of datagrams is no longer than the queue of the wire (net.unix.max_dgram_qlen, 10).
    ("udaddy", "ipv6", "-c 3 -C 3 -S 1000"),
    ("cmtime", "ipv4", "-c 50"),
]
FULL = [
    ("ucmatose", "link-local", "-c 1 -C 100 -S 65536"),
    ("ucmatose", "ipv4", "-c 100 -C 4 -S 64"),
    ("udaddy", "link-local", "-c 1 -C 10 -S 4096"),
    ("udaddy", "ipv4", "-c 10 -C 1 -S 64"),
    ("cmtime", "ipv6", "-c 500"),
]


def addresses(kind):
    """ferroce's and the guest's."""
    if kind == "link-local":
        return rxe.link_local(rxe.NIC_MAC), rxe.link_local(rxe.GUEST_MAC) + "%wire"
    return rxe.ADDRESSES[kind]


def as_client(peer, name, case):
    """The server is in the guest."""
    tool, kind, options = case
    theirs = addresses(kind)[1]
    # Without an address it listens for IPv4 only, and rejects others (28).
    server = peer.guest.run_in_background("timeout %d %s -b %s %s" % (8 if tool == "cmtime" else 40, tool, theirs, options), timeout=60)
    # Linux rejects (28) what comes while a program is at its rdma_listen.
    peer.guest.run("for i in $(seq 200); do rdma resource show cm_id | grep -q 'state LISTEN' && exit 0; sleep 0.1; done; exit 1")
    program = peer.program(name, [tool, "-s", theirs.split("%")[0]], options.split() + ["--json"])
    code, result = program.start().result()
    return program, code, result, server.result()


def as_server(peer, name, case):
    """The client is in the guest."""
    tool, kind, options = case
    program = peer.program(name, [tool], options.split() + ["--json"]).start()
    ours = addresses(kind)[0] + ("%wire" if kind == "link-local" else "")
    command = "for i in $(seq 8); do timeout 15 %s -s %s %s && exit 0; sleep 0.25; done; exit 1" % (tool, ours, options)
    client = peer.guest.run(command, timeout=120, check=False)
    code, result = program.result()
    return program, code, result, client


def play(peer, number, role, case):
    """One game, and all that can be checked of it."""
    tool, kind, options = case
    what = "%s %s over %s, ferroce as %s" % (tool, options, kind, role)
    name = "%02d-%s-%s-%s" % (number, tool, kind, role)
    before = peer.counters()
    program, code, result, other = (as_client if role == "client" else as_server)(peer, name, case)
    # cmtime's two ends talk by TCP too, which a NIC without a kernel has not: it does not learn that all is done.
    right = code == 0 and (other.code == 0 or tool == "cmtime") and result.get("ok") is True
    peer.task.check(what, right, "%s\n%s\n%s" % (result, program.tail(), other))
    if not right:
        return
    if tool == "cmtime":
        peer.task.note("%s: %d connections in %.3f s" % (what, result["connections"], result["seconds"]))
    grown = {name: now - before[name] for name, now in peer.counters().items()
             if name in rxe.FAULTS and now != before[name]}
    peer.task.check("%s: rxe counts no fault" % what, not grown, grown)
    connections = int(re.search(r"-c (\d+)", options).group(1))
    rxe.check_frames(peer.task, what, program.pcap, 2 * connections)


def body(task, arguments):
    """Soft-RoCE in a guest and ferroce on the host: connections by RDMA CM both ways, over IPv4 and IPv6."""
    peer = rxe.Peer(task)
    number = 0
    for case in QUICK + (FULL if arguments.full else []):
        for role in ("client",) if case[0] == "cmtime" else ("client", "server"):
            number += 1
            play(peer, number, role, case)
    bad = [line for line in peer.guest.run("dmesg").out.splitlines() if "rxe" in line and "ICRC" in line]
    task.check("rxe found each ICRC right", not bad, "\n".join(bad[:5]))


if __name__ == "__main__":
    run.main("rxe-cm", body)
