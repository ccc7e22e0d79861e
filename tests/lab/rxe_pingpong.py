#!/usr/bin/env python3
"""ferroce pingpong with Debian's ibv_*_pingpong on Linux's Soft-RoCE, either as client and as server."""

import re

from lab import run, rxe

# Tool, kind of GID, options of both sides, options of ferroce.
QUICK = [
    ("rc", "ipv4", "-n 100 -s 4096 -m 1024 -c", []),
    ("rc", "link-local", "-n 100 -s 5000 -m 1024 -e", []),
    ("rc", "ipv6", "-n 50 -s 65536 -m 4096 -c", []),
    ("rc", "vlan", "-n 100 -s 1000 -m 1024 -c", ["--vlan", str(rxe.VLAN), "--priority", "3"]),
    ("uc", "ipv4", "-n 100 -s 4096 -m 1024 -c", []),
    ("uc", "ipv6", "-n 50 -s 65536 -m 4096 -c -e", []),
    ("ud", "ipv4", "-n 100 -s 2048 -c", []),
    ("ud", "link-local", "-n 100 -s 4096 -c -e", []),
    ("srq", "ipv6", "-n 200 -s 1000 -m 1024 -q 16 -c -e", []),
]
FULL = [
    ("rc", "ipv4", "-n 500 -s 4096 -m 4096 -c", []),
    ("rc", "ipv4", "-n 4 -s 1048576 -m 4096 -c -e", []),
    ("rc", "link-local", "-n 10 -s 65537 -m 256 -c", []),
    ("rc", "ipv6", "-n 100 -s 1 -m 1024", []),
    ("rc", "ipv6", "-n 100 -s 2049 -m 2048 -c -e", []),
    ("rc", "vlan", "-n 100 -s 65536 -m 4096 -c", ["--vlan", str(rxe.VLAN)]),
    ("uc", "link-local", "-n 100 -s 1025 -m 1024 -c", []),
    ("uc", "vlan", "-n 100 -s 9000 -m 4096 -c", ["--vlan", str(rxe.VLAN)]),
    ("ud", "ipv6", "-n 500 -s 100 -c", []),
    ("ud", "vlan", "-n 100 -s 1024 -c", ["--vlan", str(rxe.VLAN)]),
    ("srq", "ipv4", "-n 200 -s 4096 -m 1024 -q 4 -c", []),
    ("srq", "link-local", "-n 100 -s 9000 -m 4096 -q 8 -c -e", []),
    ("srq", "vlan", "-n 100 -s 2000 -m 1024 -q 4 -c", ["--vlan", str(rxe.VLAN)]),
]


def gid_option(kind):
    """ferroce's name for it."""
    return ["--gid", "roce-v2-ipv4" if kind == "vlan" else "roce-v2-" + kind]


def as_client(peer, name, case):
    """The server is in the guest."""
    tool, kind, options, more = case
    server = peer.guest.run_in_background("ibv_%s_pingpong -g %d %s" % (tool, peer.gids[kind], options), timeout=90)
    peer.listening()
    port = ["--json", *peer.server_at(rxe.PORT)]
    program = peer.program(name, ["pingpong", tool], options.split() + gid_option(kind) + more + port)
    code, result = program.start().result()
    return program, code, result, server.result()


def as_server(peer, name, case):
    """The client is in the guest."""
    tool, kind, options, more = case
    port = peer.own_port(rxe.PORT)
    extra = ["--port", str(port), "--json"]
    program = peer.program(name, ["pingpong", tool], options.split() + more + extra).start()
    program.listening(port)
    command = "ibv_%s_pingpong -g %d %s %s" % (tool, peer.gids[kind], options, peer.host)
    client = peer.guest.run(command, timeout=90, check=False)
    code, result = program.result()
    return program, code, result, client


def under_way(options):
    """Packets of one message and its acknowledgement, on each queue pair."""
    given = dict(re.findall(r"-(\w) (\d+)", options))
    return int(given["q"]) * (-(-int(given["s"]) // int(given["m"])) + 1)


def play(peer, number, role, case):
    """One game, and all that can be checked of it."""
    tool, kind, options, _ = case
    what = "%s %s over %s, ferroce as %s" % (tool, options, kind, role)
    name = "%02d-%s-%s-%s" % (number, tool, kind, role)
    before = peer.counters()
    program, code, result, other = (as_client if role == "client" else as_server)(peer, name, case)
    # Linux's tools say that data are wrong, and end well all the same.
    right = code == 0 and other.code == 0 and result.get("ok") is True and "invalid data" not in other.out
    peer.task.check(what, right, "%s\n%s\n%s" % (result, program.tail(), other))
    if not right:
        return
    losses = {key: result["losses"][key] for key in ("out_of_sequence", "without_receive") if result["losses"][key]}
    peer.task.check("%s: nothing was lost" % what, not losses, losses)
    # ibv_srq_pingpong counts the messages of all its queue pairs together, and ends with some under way.
    late = under_way(options) if tool == "srq" else 0
    peer.all_accepted(what, before, program.pcap, late)
    peer.check_frames(what, program.pcap, 2 * int(options.split()[1]))


def body(task, arguments):
    """Soft-RoCE in a guest and ferroce on the host: pingpong both ways over IPv4, IPv6 and a VLAN."""
    peer = rxe.Peer(task)
    peer.play(play, QUICK + (FULL if arguments.full else []))
    peer.at_end()


if __name__ == "__main__":
    run.main("rxe-pingpong", body)
