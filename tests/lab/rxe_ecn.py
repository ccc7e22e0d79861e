#!/usr/bin/env python3
"""Congestion marks, their notifications (CNPs), traffic classes and pause frames, with Linux's Soft-RoCE as the peer."""

import collections
import shutil

import rxe_link
import rxe_operations
from lab import run, rxe

CNP = 0x81
ECT0, ECT1, CE = 2, 1, 3
OUR_DSCP, THEIR_DSCP, CNP_DSCP = 26, 10, 46
# Least time in seconds between two CNPs of a queue pair, which is the device's default, less what seconds since 1970 lose as
# floats.
CNP_INTERVAL = 4e-6 - 1e-6
# Marks what the guest's programs send, where it takes part in ECN, as a congested switch would. The ICRC leaves these bits out.
MARK = """tc qdisc add dev wire clsact
for kind in ip ipv6; do
    tc filter add dev wire egress protocol $kind flower ip_proto udp dst_port 4791 action skbmod ecn || exit 1
done"""
# By priority, what that adds to the counters of pause frames; those of 802.3x stand with priority 0, as Linux has them.
PAUSED = [1, 0, 0, 2, 2, 0, 0, 0]
# Counts the traffic classes of the RoCE frames that come, until /tmp/watch.end is there.
WATCH = """
import collections, json, os, socket, struct
counts = collections.Counter()
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
s.bind(("wire", 0))
s.settimeout(0.2)
print("watching", flush=True)
while True:
    try:
        frame, (_, _, kind, _, _) = s.recvfrom(65536)
    except TimeoutError:
        if os.path.exists("/tmp/watch.end"):
            break
        continue
    four = frame[12:14] == b"\\x08\\x00"
    udp = 14 + (frame[14] & 15) * 4 if four else 54
    if kind == 0 and (four and frame[23] == 17 or frame[12:14] == b"\\x86\\xdd" and frame[20] == 17) \\
            and frame[udp + 2:udp + 4] == b"\\x12\\xb7":
        counts[frame[15] if four else struct.unpack_from(">H", frame, 14)[0] >> 4 & 255] += 1
print(json.dumps(counts))
"""
# A pause frame (IEEE 802.3, annex 31B), and one that stops priorities 3 and 4 (802.1Qbb) twice.
PAUSE = """python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("wire", 0))
for body in ("0001ffff", "01010018" + "0000" * 3 + "00ff00ff" + "0000" * 3, "01010018" + "0000" * 8):
    s.send((bytes.fromhex("0180c2000001") + s.getsockname()[4] + bytes.fromhex("8808" + body)).ljust(60, bytes(1)))
'"""


def play(peer, name, kind, count, options):
    """Operations both ways, with traffic classes of both sides."""
    before = peer.counters()
    watch = peer.guest.run_in_background("rm -f /tmp/watch.end; python3 /share/watch.py", timeout=700)
    watch.wait_for("watching")
    mine = (OUR_DSCP << 2) + (ECT0 if kind == "ipv4" else ECT1)
    case = (name, kind, 1024, None, ["--traffic-class", str(mine), "--cnp-dscp", str(CNP_DSCP), *options])
    program, result, right = rxe_operations.operate(peer, name, case, count, 7, "--traffic-class %d" % (THEIR_DSCP << 2 | ECT0))
    peer.guest.run("touch /tmp/watch.end")
    seen = {int(key): value for key, value in run.as_json(watch.result()).items()}
    grown = {key: now - before[key] for key, now in peer.counters().items() if now != before[key]}
    peer.task.note("%s: rxe's counters grew: %s" % (name, grown))
    wire = list(rxe.roce_packets(program.pcap))
    # What both runs have in common.
    check = peer.task.check
    faults = {key: value for key, value in grown.items() if key in rxe.FAULTS}
    check("%s: rxe counts no fault" % name, right and not faults, faults)
    ours = [p for p in wire if p.ours]
    roce = [p for p in ours if p.opcode != CNP]
    check("%s: rxe accepted each of our packets, and drops CNPs without counting them" % name,
          grown.get("rcvd_pkts") == len(roce), "%r of %d and %d CNPs" % (grown.get("rcvd_pkts"), len(roce), len(ours) - len(roce)))
    check("%s: the guest saw the traffic classes that were sent" % name, seen == collections.Counter(p.traffic_class for p in ours), seen)
    check("%s: all of ours have DSCP %d" % (name, OUR_DSCP), {p.traffic_class >> 2 for p in roce} == {OUR_DSCP})
    peer.check_frames(name, program.pcap, count)
    return result.get("counters", {}).get("congestion") or {}, wire, mine & 3


def marked_by_guest(peer, kind, count):
    """All that rxe sends arrives marked: CNPs go out for it."""
    peer.guest.run(MARK)
    counted, wire, _ = play(peer, "marked-%s" % kind, kind, count, [])
    peer.guest.run("tc qdisc del dev wire clsact")
    check, what = peer.task.check, "marked frames over %s" % kind
    marked = [p for p in wire if not p.ours and p.traffic_class & 3 == CE]
    theirs = [p for p in wire if not p.ours]
    check("%s: all of rxe's are marked" % what, len(marked) == len(theirs) > count // 4, "%d of %d" % (len(marked), len(theirs)))
    cnps = [p for p in wire if p.opcode == CNP]
    facts = "%d marked, %d CNPs on the wire; %r" % (len(marked), len(cnps), counted)
    check("%s: ferroce counts the marks and its CNPs" % what,
          counted.get("np_ecn_marked_roce_packets") == len(marked) and counted.get("np_cnp_sent") == len(cnps), facts)
    peer.task.note(facts)
    peers = {p.qpn for p in wire if p.ours and p.opcode != CNP}
    wrong = [p for p in cnps if not p.ours or p.qpn not in peers or len(peers) != 1 or not p.becn
             or p.traffic_class >> 2 != CNP_DSCP or p.rest[4:] != bytes(16)]
    check("%s: CNPs say so to rxe's queue pair, with DSCP %d" % (what, CNP_DSCP), cnps and not wrong, wrong[:3])
    gaps = [after.time - first.time for first, after in zip(cnps, cnps[1:])]
    check("%s: there are no more CNPs than one in 4 us" % what, len(cnps) <= len(marked) and min(gaps) >= CNP_INTERVAL, min(gaps))


def marked_by_wire(peer, kind, count):
    """Some of what ferroce sends arrives marked at rxe, which does not care."""
    counted, wire, ect = play(peer, "marking-%s" % kind, kind, count, ["--mark", "0.3"])
    what = "frames marked for rxe over %s" % kind
    ours = [p for p in wire if p.ours and p.opcode != CNP]
    marked = [p for p in ours if p.traffic_class & 3 == CE]
    rest = {p.traffic_class & 3 for p in ours} - {CE}
    peer.task.check("%s: about 30 %% of ours are marked, the others ECT(%d)" % (what, ect & 1),
                    rest == {ect} and len(ours) // 5 < len(marked) < len(ours) // 2, "%d of %d, %r" % (len(marked), len(ours), rest))
    cnps = [p for p in wire if p.opcode == CNP]
    peer.task.check("%s: rxe sends no CNPs" % what, not cnps and counted.get("rp_cnp_handled") == 0, "%d; %r" % (len(cnps), counted))
    theirs = {p.traffic_class for p in wire if not p.ours}
    peer.task.check("%s: rxe's have its own traffic class" % what, theirs == {THEIR_DSCP << 2 | ECT0}, theirs)


def pause(task, peer):
    """Pause frames of the guest's are counted by the port, and are nobody's data."""
    pcap = task.folder / "pause.pcap"
    options = ["--address", "%s/24" % rxe.ADDRESSES["ipv4"][0], "--pcap", str(pcap)]
    link = rxe_link.Link(task, "pause", "model:dgram:%s,%s" % peer.end, options)
    link.hear("up")
    peer.guest.run("for i in $(seq 50); do ping -c 1 -W 1 %s && exit 0; done; exit 1" % rxe.ADDRESSES["ipv4"][0])
    counts = []
    for _ in range(2):
        link.tell("counters")
        counts.append(link.hear("counters"))
        peer.guest.run(PAUSE + "; ping -c 1 -W 5 %s" % rxe.ADDRESSES["ipv4"][0])
    link.tell("counters")
    counts.append(link.hear("counters"))
    link.stop()
    for before, after in zip(counts, counts[1:]):
        grown = {name: after["port"][name] - before["port"][name] for name in ("pause_received", "mac_control_received")}
        task.check("a pause frame and two of priorities are counted", grown == {"pause_received": 1, "mac_control_received": 3}, grown)
        by_priority = [now - then for then, now in zip(*(found["port"]["priority_pause_received"] for found in (before, after)))]
        task.check("they are counted by priority", by_priority == PAUSED, by_priority)
        ignored = after["frames_in"] - before["frames_in"], after["malformed"] - before["malformed"]
        task.check("pause frames go to nobody", ignored[0] <= 4 and ignored[1] == 0, ignored)
    # It has no RoCE.
    peer.check_frames("pause", pcap, 0)


def body(task, arguments):
    """Soft-RoCE in a guest and ferroce on the host: marks, CNPs, traffic classes, pause frames."""
    peer = rxe.Peer(task, listen=(rxe_operations.PORT,), reach=())
    shutil.copy(run.image.HERE.parent / "share/operations_peer.py", peer.guest.share)
    (peer.guest.share / "watch.py").write_text(WATCH)
    count = 4000 if arguments.full else 400
    for kind in ("ipv4", "ipv6") if arguments.full else ("ipv4",):
        marked_by_guest(peer, kind, count)
    for kind in ("ipv4", "ipv6") if arguments.full else ("ipv6",):
        marked_by_wire(peer, kind, count)
    pause(task, peer)
    peer.at_end()


if __name__ == "__main__":
    run.main("rxe-ecn", body)
