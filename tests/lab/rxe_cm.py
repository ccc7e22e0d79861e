#!/usr/bin/env python3
"""ferroce's connection manager with librdmacm's ucmatose, udaddy and cmtime on Linux's Soft-RoCE, either as client and as
server."""

import re

from lab import run, rxe

# Tool, kind of address, options of both sides, path MTU where one is chosen.
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
    ("ucmatose", "vlan", "-c 4 -C 10 -S 3000"),
    ("ucmatose", "ipv4", "-c 2 -C 20 -S 10000", 1024),
    ("ucmatose", "ipv6", "-c 2 -C 20 -S 10000", 4096),
    ("ucmatose", "vlan", "-c 2 -C 20 -S 10000", 1024),
    ("udaddy", "vlan", "-c 1 -C 8 -S 1000"),
    ("udaddy", "ipv4", "-c 1 -C 8 -S 1024", 1024),
]


def as_client(peer, name, case):
    """The server is in the guest."""
    tool, kind, options, mtu = case
    theirs = peer.addresses(kind)[1]
    # Without an address it listens for IPv4 only, and rejects others (28).
    server = peer.guest.run_in_background("timeout %d %s -b %s %s" % (8 if tool == "cmtime" else 40, tool, theirs, options), timeout=60)
    # Linux rejects (28) what comes while a program is at its rdma_listen.
    peer.guest.run("for i in $(seq 200); do rdma resource show cm_id | grep -q 'state LISTEN' && exit 0; sleep 0.1; done; exit 1")
    options = [*options.split(), "--json", *rxe.link_options(kind, mtu)]
    program = peer.program(name, [tool, "-s", theirs.split("%")[0]], options)
    code, result = program.start().result()
    return program, code, result, server.result()


def as_server(peer, name, case):
    """The client is in the guest."""
    tool, kind, options, mtu = case
    program = peer.program(name, [tool], [*options.split(), "--json", *rxe.link_options(kind, mtu)]).start()
    ours = peer.addresses(kind)[0]
    command = "for i in $(seq 8); do timeout 15 %s -s %s %s && exit 0; sleep 0.25; done; exit 1" % (tool, ours, options)
    client = peer.guest.run(command, timeout=120, check=False)
    code, result = program.result()
    return program, code, result, client


def play(peer, number, role, case):
    """One game, and all that can be checked of it."""
    tool, kind, options, mtu = case = (*case, None)[:4]
    what = "%s %s over %s%s, ferroce as %s" % (tool, options, kind, ", path MTU %d" % mtu if mtu else "", role)
    peer.set_mtu(mtu)
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
    if mtu and tool == "ucmatose":
        found = rxe.path_mtu(program.pcap)
        peer.task.check("%s: the path MTU is in use" % what, found == {mtu}, found)


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
