#!/usr/bin/env python3
"""All RC operations by chance, both ways, between ferroce and Linux's Soft-RoCE, on a good and on a bad wire."""

import re
import shutil

from lab import run, rxe

PORT = 18516
# Name, kind of GID, path MTU, operations, options of ferroce. Operations in the quick version and in the long one.
GOOD = [("good-ipv4", "ipv4", 1024, (2000, 10000), [])]
# Frames of both sides are lost, doubled, overtaken. rxe can't repeat its answers to READs once there was a READ or WRITE of
# nothing: docs/interop.md.
FAULTS = ["--loss", "0.01", "--duplicate", "0.01", "--reorder", "0.01", "--faults-on", "both"]
EMPTY = "--no-empty-rdma"
# What the wire says at the end that it has done to frames of a direction.
DONE = re.compile(r"bad wire, frames (sent|received): \d+, of which (\d+) lost, (\d+) doubled, (\d+) overtaken")
BAD = [
    ("bad-ipv6", "ipv6", 4096, (1000, 10000), [*FAULTS, EMPTY]),
    ("bad-ipv4", "ipv4", 1024, (0, 10000), [*FAULTS, EMPTY]),
]


def play(peer, name, case, count, seed):
    """One run: what rxe had counted before, the capture, and whether all was right."""
    before = peer.counters()
    # rxe never sends a fenced request again: docs/interop.md.
    program, _, right = operate(peer, name, case, count, seed, "--wait-for-fences" if case[4] else "")
    if is_bad(case):
        was_bad(peer, name, before, program)
    return before, program.pcap, right


def is_bad(case):
    """Whether its wire is bad."""
    return "--faults-on" in case[4]


def was_bad(peer, name, before, program):
    """Checks that the wire was bad both ways, and that the guest felt it."""
    done = {way: [int(count) for count in counts] for way, *counts in DONE.findall(program.log.read_text())}
    peer.task.check("%s: frames were lost, doubled and overtaken both ways" % name,
                    set(done) == {"sent", "received"} and all(min(counts) > 0 for counts in done.values()), done)
    now = peer.counters()
    grown = {key: now[key] - before[key] for key in peer.FELT}
    peer.task.check("%s: the guest felt it" % name, min(grown.values()) > 0, grown)
    peer.task.note("%s: of frames sent and received, lost, doubled and overtaken %s; the guest counts %s" % (name, done, grown))


def operate(peer, name, case, count, seed, peer_options=""):
    """One run with all data verified: the program, what it said at its end, and whether that was right."""
    _, kind, mtu, _, options = case
    script = "python3 /share/operations_peer.py --device %s --gid-index %d --port %d %s" % (
        peer.DEVICE, peer.gids[kind], PORT, peer_options)
    running = peer.guest.run_in_background(script, timeout=600)
    peer.listening(PORT)
    arguments = ["--gid", "roce-v2-" + kind, "--mtu", str(mtu), "--count", str(count), "--seed", str(seed),
                 *options, *peer.server_at(PORT)]
    program = peer.program(name, ["operations"], arguments).start()
    code, result = program.result(timeout=600)
    other = running.result()
    right = code == 0 and result.get("ok") is True and other.code == 0
    what = "%s: %d operations over %s, MTU %d, seed %d" % (name, count, kind, mtu, seed)
    peer.task.check(what, right, "%s\n%r" % (result, other))
    peer.task.note(str(result))
    return program, result, right


def body(task, arguments):
    """Soft-RoCE in a guest and ferroce on the host: WRITE, READ, SEND, atomics, invalidate, with verified data."""
    peer = rxe.Peer(task, listen=(PORT,), reach=())
    shutil.copy(run.image.HERE.parent / "share/operations_peer.py", peer.guest.share)
    for seed, case in enumerate(GOOD + BAD, 1):
        count = case[3][arguments.full]
        if not count:
            continue
        before, pcap, right = play(peer, case[0], case, count, seed)
        if right:
            # The capture has our frames as the wire has left them.
            peer.all_accepted(case[0], before, pcap, bad=is_bad(case))
            peer.check_frames(case[0], pcap, count)
    peer.at_end()


if __name__ == "__main__":
    run.main("rxe-operations", body)
