#!/usr/bin/env python3
"""ferroce perf with Debian's perftest on Linux's Soft-RoCE, either as client and as server."""

from lab import run, rxe

# perftest's program, ferroce's command, options of both, options of the program alone, kind of GID where it is not IPv4.
QUICK = [
    ("ib_write_bw", "perf write-bw", "-n 200 -s 4096 -m 1024", ""),
    ("ib_read_bw", "perf read-bw", "-n 100 -s 4096 -m 1024 -q 2", ""),
    ("ib_send_bw", "perf send-bw", "-n 100 -s 4096 -m 1024 -q 2", ""),
    ("ib_write_lat", "perf write-lat", "-n 300 -s 64 -m 1024", ""),
    ("ib_read_lat", "perf read-lat", "-n 100 -s 4096 -m 1024", ""),
    ("ib_send_lat", "perf send-lat", "-n 100 -s 64 -m 1024", ""),
    ("ib_atomic_lat", "perf atomic-lat", "-n 100 -m 1024", "-A FETCH_AND_ADD"),
]
# All sizes are 16 MiB together, of which each packet is checked.
FULL = [
    ("ib_write_bw", "perf write-bw", "-n 5 -a -m 4096", ""),
    ("ib_read_bw", "perf read-bw", "-n 10 -s 1048576 -m 4096", ""),
    ("ib_send_bw", "perf send-bw", "-n 1000 -s 64 -m 4096 -q 4", ""),
    ("ib_send_lat", "perf send-lat", "-n 5 -a -m 4096", ""),
    ("ib_write_lat", "perf write-lat", "-n 100 -s 5000 -m 4096", "", "ipv6"),
]


def play(peer, number, role, case):
    """One of perftest's programs in the guest and ferroce at the other end, and all that can be checked of it."""
    program, tool, options, alone, kind = (*case, "ipv4")[:5]
    what = "%s %s %s over %s, ferroce as %s" % (program, options, alone, kind, role)
    command = "%s -d %s -x %d -F %s %s" % (program, peer.DEVICE, peer.gids[kind], options, alone)
    arguments = tool.split()
    name = "%02d-%s-%s" % (number, arguments[-1], role)
    # A server of ferroce's chooses a GID that fits the client's.
    more = options.split() + (["--gid", "roce-v2-" + kind] if role == "client" or arguments[0] != "perf" else [])
    more += ["--with-perftest", "--json"] if arguments[0] == "perf" else []
    before = peer.counters()
    if role == "client":
        server = peer.guest.run_in_background(command, timeout=90)
        peer.listening()
        host = peer.program(name, arguments, more + peer.server_at(rxe.PORT)).start()
        code, result = host.result()
        other = server.result()
    else:
        port = peer.own_port(rxe.PORT)
        host = peer.program(name, arguments, [*more, "--port", str(port)]).start()
        host.listening(port)
        other = peer.guest.run("%s %s" % (command, peer.host), timeout=90, check=False)
        code, result = host.result()
    right = code == 0 and other.code == 0 and result.get("ok") is True
    if peer.task.check(what, right, "%s\n%s\n%s" % (result, host.tail(), other)):
        peer.all_accepted(what, before, host.pcap)
        peer.check_frames(what, host.pcap, int(options.split()[1]))
        if arguments[0] == "perf" and role == "client":
            measured(peer.task, what, result, "software model")


def measured(task, what, result, warning):
    """Checks that a client's result has figures of each size, and the warning that they are worth little."""
    for row in result["rows"]:
        latency = row.get("latency_us")
        names = ("min", "p50", "p90", "p99", "p99_9", "p99_99", "max")
        figures = [latency[name] for name in names] if latency else [row["bandwidth"]["mib_per_second"]]
        right = figures == sorted(figures) and figures[0] > 0
        if latency:
            count = sum(count for _, count in latency["histogram"])
            # With perftest the server WRITEs first, and nothing answers the client's last.
            right = right and row["iterations"] - 1 <= count <= row["iterations"]
        if not right:
            task.check("%s: figures of %d bytes" % (what, row["bytes"]), False, row)
    warned = any(warning in text for text in result["warnings"])
    task.check("%s: %d sizes measured, with a warning" % (what, len(result["rows"])), warned, result["warnings"])


def body(task, arguments):
    """Soft-RoCE in a guest and ferroce on the host: ferroce perf with perftest, all seven tests, both ways."""
    peer = rxe.Peer(task)
    peer.play(play, QUICK + (FULL if arguments.full else []))
    peer.at_end()


if __name__ == "__main__":
    run.main("rxe-perftest", body)
