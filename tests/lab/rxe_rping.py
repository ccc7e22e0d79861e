#!/usr/bin/env python3
"""ferroce's connection manager with Linux's rdma_cm: rping both ways over IPv4 and IPv6."""

from lab import run, rxe

PORT = 7174
# Kind of address, options of both sides, path MTU where one is chosen.
QUICK = [("ipv4", "-C 50 -V -S 1000"), ("ipv6", "-C 50 -V -S 64")]
FULL = [
    ("ipv4", "-C 500 -V -S 65000"),
    ("ipv6", "-C 500 -V -S 65000"),
    ("link-local", "-C 50 -V -S 10000"),
    ("vlan", "-C 50 -V -S 10000"),
    ("ipv4", "-C 20 -V -S 60000", 1024),
    ("ipv6", "-C 20 -V -S 60000", 4096),
    ("vlan", "-C 20 -V -S 10000", 1024),
]


def listening(peer):
    """Returns when a program in the guest listens with rdma_cm."""
    peer.guest.run("for i in $(seq 100); do rdma resource show cm_id | grep -q LISTEN && exit 0; sleep 0.1; done; exit 1")


def as_client(peer, name, case):
    """The server is in the guest."""
    kind, options, mtu = case
    own = peer.addresses(kind)[1]
    server = peer.guest.run_in_background("rping -s -a %s -p %d %s" % (own, PORT, options), timeout=120)
    listening(peer)
    arguments = ["-c", "-a", own.split("%")[0], "--port", str(PORT), *options.split(), *rxe.link_options(kind, mtu)]
    program = peer.program(name, ["rping"], arguments).start()
    code, result = program.result()
    return program, code, result, server.result()


def as_server(peer, name, case):
    """The client is in the guest."""
    kind, options, mtu = case
    own = peer.addresses(kind)[0]
    arguments = ["-s", "-a", own.split("%")[0], "--port", str(PORT), *options.split(), *rxe.link_options(kind, mtu)]
    program = peer.program(name, ["rping"], arguments).start()
    program.says("listening at")
    client = peer.guest.run("rping -c -a %s -p %d %s" % (own, PORT, options), timeout=120, check=False)
    code, result = program.result()
    return program, code, result, client


def play(peer, number, role, case):
    """Some pings, and all that can be checked of them."""
    kind, options, mtu = case = (*case, None)[:3]
    what = "rping %s over %s%s, ferroce as %s" % (options, kind, ", path MTU %d" % mtu if mtu else "", role)
    peer.set_mtu(mtu)
    name = "%02d-rping-%s-%s" % (number, kind, role)
    before = peer.counters()
    program, code, result, other = (as_client if role == "client" else as_server)(peer, name, case)
    right = code == 0 and other.code == 0
    peer.task.check(what, right, "%s\n%s\n%s" % (result, program.tail(), other))
    if right:
        peer.all_accepted(what, before, program.pcap)
        peer.check_frames(what, program.pcap, 6 * int(options.split()[1]))
        if mtu:
            found = rxe.path_mtu(program.pcap)
            peer.task.check("%s: the path MTU is in use" % what, found == {mtu}, found)


def body(task, arguments):
    """Soft-RoCE in a guest and ferroce on the host: connections by rdma_cm, both ways, IPv4 and IPv6."""
    peer = rxe.Peer(task, listen=(), reach=())
    peer.guest.run("modprobe rdma_ucm")
    peer.play(play, QUICK + (FULL if arguments.full else []))
    peer.at_end()


if __name__ == "__main__":
    run.main("rxe-rping", body)
