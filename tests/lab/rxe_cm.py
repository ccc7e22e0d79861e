#!/usr/bin/env python3
"""ferroce's connection manager with librdmacm's ucmatose, udaddy and cmtime on Linux's Soft-RoCE, either as client and as
server."""

import re

from lab import qemu, run, rxe

# Tool, kind of address, options of both sides, path MTU where one is chosen.
QUICK = [
    ("ucmatose", "ipv4", "-c 1 -C 10 -S 100"),
    ("ucmatose", "ipv6", "-c 4 -C 20 -S 3000"),
    ("udaddy", "ipv4", "-c 1 -C 10 -S 100"),
    # A burst of datagrams is no longer than the queue of the wire (net.unix.max_dgram_qlen, 10).
    ("udaddy", "ipv6", "-c 3 -C 3 -S 1000"),
    ("cmtime", "ipv4", "-c 50"),
    ("cmtime", "ipv6", "-c 20"),
]
FULL = [
    ("ucmatose", "link-local", "-c 1 -C 100 -S 65536"),
    ("ucmatose", "ipv4", "-c 100 -C 4 -S 64"),
    ("udaddy", "link-local", "-c 1 -C 10 -S 4096"),
    ("udaddy", "ipv4", "-c 10 -C 1 -S 64"),
    ("cmtime", "ipv4", "-c 500"),
    ("cmtime", "ipv6", "-c 500"),
    ("ucmatose", "vlan", "-c 4 -C 10 -S 3000"),
    ("ucmatose", "ipv4", "-c 2 -C 20 -S 10000", 1024),
    ("ucmatose", "ipv6", "-c 2 -C 20 -S 10000", 4096),
    ("ucmatose", "vlan", "-c 2 -C 20 -S 10000", 1024),
    ("udaddy", "vlan", "-c 1 -C 8 -S 1000"),
    ("udaddy", "ipv4", "-c 1 -C 8 -S 1024", 1024),
    ("cmtime", "vlan", "-c 50"),
    ("cmtime", "vlan", "-c 20", 1024),
    ("cmtime", "ipv4", "-c 20", 1024),
    ("cmtime", "ipv6", "-c 20", 4096),
]
# cmtime's two ends keep step by TCP at the addresses that they connect, where nobody answers TCP for a NIC without a kernel; it is
# led over the guest's other network. That TCP is for IPv4 only, also where they connect over IPv6: there the tool is given a name
# that has an address of IPv4 on the other network. Over IPv4 the guest's kernel keeps TCP for the NIC's address to itself, where
# a relay takes it. IPv6 link-local is left out: the tool would have to be given a name for it, and names in /etc/hosts have no
# zone.
SYNC = 7471
# ferroce's and the guest's.
NAMES = {"nic": (rxe.ADDRESSES["ipv6"][0], qemu.Control.HOST), "guest": (rxe.ADDRESSES["ipv6"][1], qemu.Control.GUEST)}
# Kinds of addresses of IPv4.
IPV4 = ("ipv4", "vlan")
KEEP = "ip rule add pref 1 ipproto tcp to {nic} lookup 77 && ip route add local {nic} dev lo table 77 src {guest}"
RELAY = """
import socket, sys, threading

def pump(one, other):
    while data := one.recv(4096):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)

here, there = ((address, int(port)) for address, port in (text.rsplit(":", 1) for text in sys.argv[1:]))
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
# Answers from an address that is not the guest's (IP_TRANSPARENT).
server.setsockopt(socket.IPPROTO_IP, 19, 1)
server.bind(here)
server.listen()
one, _ = server.accept()
server.close()
other = socket.create_connection(there)
for pair in ((one, other), (other, one)):
    threading.Thread(target=pump, args=pair).start()
"""


def lead_tcp(peer):
    """Leads cmtime's TCP between the guest and the host, so that the tool needs to know nothing of it."""
    (peer.guest.share / "hosts").write_text("".join("%s %s\n" % (ip, name) for name, ips in NAMES.items() for ip in ips))
    peer.guest.run("cat /share/hosts >>/etc/hosts")
    (peer.guest.share / "relay.py").write_text(RELAY)
    for kind in IPV4:
        nic, guest = peer.addresses(kind)
        peer.guest.run(KEEP.format(nic=nic, guest=guest))


def cmtime(peer, name, role, case):
    """Its three rounds: one connection, all, and all again without queue pairs at its side."""
    tool, kind, options, mtu = case
    nic, guest = peer.addresses(kind)
    relay = None
    if role == "client":
        # Without an address it takes TCP on all of its networks, and connections over IPv4.
        own = "" if kind in IPV4 else "-b guest"
        other = peer.guest.run_in_background("timeout 100 cmtime %s %s" % (own, options), timeout=110)
        listening(peer)
        arguments = ["-s", guest, "--sync", "127.0.0.1:%d" % peer.control.listen[SYNC]]
        program = peer.program(name, [tool, *arguments], [*options.split(), "--json", *rxe.link_options(kind, mtu)]).start()
    else:
        port = peer.control.reach[SYNC]
        own = [*options.split(), "--json", *rxe.link_options(kind, mtu)]
        program = peer.program(name, [tool, "--sync", str(port)], own).start()
        program.listening(port)
        if kind in IPV4:
            ends = "0.0.0.0:%d %s:%d" % (SYNC, qemu.Control.HOST, SYNC)
            relay = peer.guest.run_in_background("timeout 100 python3 /share/relay.py " + ends, timeout=110)
            peer.listening(SYNC)
        command = "timeout 100 cmtime -s %s %s" % (nic if kind in IPV4 else "nic", options)
        other = peer.guest.run_in_background(command, timeout=110)
    code, result = program.result()
    if relay:
        relay.result()
    return program, code, result, other.result()


def listening(peer):
    """Returns when a program in the guest listens for connections. Linux rejects (28) what comes while it is at its
    rdma_listen."""
    peer.guest.run("for i in $(seq 200); do rdma resource show cm_id | grep -q 'state LISTEN' && exit 0; sleep 0.1; done; exit 1")


def as_client(peer, name, case):
    """The server is in the guest."""
    tool, kind, options, mtu = case
    theirs = peer.addresses(kind)[1]
    # Without an address it listens for IPv4 only, and rejects others (28).
    server = peer.guest.run_in_background("timeout 40 %s -b %s %s" % (tool, theirs, options), timeout=60)
    listening(peer)
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
    if tool == "cmtime":
        program, code, result, other = cmtime(peer, name, role, case)
    else:
        program, code, result, other = (as_client if role == "client" else as_server)(peer, name, case)
    right = code == 0 and other.code == 0 and result.get("ok") is True
    peer.task.check(what, right, "%s\n%s\n%s" % (result, program.tail(), other))
    if not right:
        return
    if tool == "cmtime":
        peer.task.note("%s: %d connections in %.3f s" % (what, result["connections"], result["seconds"]))
        kinds = {packet.kind for packet in rxe.roce_packets(program.pcap)}
        peer.task.check("%s: it went over %s" % (what, kind), kinds == {kind}, kinds)
    peer.all_accepted(what, before, program.pcap)
    connections = int(re.search(r"-c (\d+)", options).group(1))
    peer.check_frames(what, program.pcap, 2 * connections)
    if mtu and tool != "udaddy":
        # cmtime's connections carry nothing.
        found = (rxe.asked_mtu if tool == "cmtime" else rxe.path_mtu)(program.pcap)
        peer.task.check("%s: the path MTU is in use" % what, found == {mtu}, found)


def body(task, arguments):
    """Soft-RoCE in a guest and ferroce on the host: connections by RDMA CM both ways, over IPv4 and IPv6."""
    peer = rxe.Peer(task, listen=(SYNC,), reach=(SYNC,))
    lead_tcp(peer)
    peer.play(play, QUICK + (FULL if arguments.full else []))
    peer.at_end()


if __name__ == "__main__":
    run.main("rxe-cm", body)
