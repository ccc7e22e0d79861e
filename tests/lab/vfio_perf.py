#!/usr/bin/env python3
"""ferroce perf between two guests, each with a NIC behind an emulated IOMMU: all seven tests, connected by TCP and by the
connection manager."""

import json

import rxe_perftest
from lab import rxe
from lab.run import as_json, main
from vfio_two_guests import FERROCE, NIC, two_ends

# Test, and options of both sides.
BY_TCP = [
    ("write-bw", "-n 20 -q 4 -s 9000"),
    ("read-bw", "-n 20 -s 64K -e -m 1024"),
    ("send-bw", "-n 20 -q 2 -r 7 -t 16 -I 32 -s 32"),
    ("write-lat", "-n 50 -I 64"),
    ("read-lat", "-n 50 -s 4096 -e"),
    ("send-lat", "-n 50 -s 100 -e"),
    ("atomic-lat", "-n 50"),
    ("write-bw", "-n 2 -a -q 2"),
]
BY_CM = [
    ("write-bw", "-n 20 -s 64K -e"),
    ("read-bw", "-n 20 -q 4 -s 9000"),
    ("send-bw", "-n 20 -q 3 -s 4096 -e"),
    ("write-lat", "-n 50 -s 1000"),
    ("read-lat", "-n 2 -a"),
    ("send-lat", "-n 50 -I 64 -s 64"),
    ("atomic-lat", "-n 50 -e"),
]
# Options that don't go together, and what is said of them.
BAD = [
    ("write-lat -e", "no --events"),
    ("atomic-lat -s 16", "atomics are of 8 bytes"),
    ("read-lat -q 2", "one queue pair"),
    ("write-bw -R somewhere", "is no IP address"),
    ("write-bw -I 5000", "928"),
    ("write-bw -m 1000", "1000"),
]


def one(run, guests, number, case):
    """One test: the guests take turns at being the server."""
    test, options, by_cm = case
    server, client = (guests, guests[::-1])[number % 2]
    own = {guest: guests.index(guest) + 1 for guest in guests}
    command = "%s perf %s %s%s --device %s --address 10.9.0.%%d/24" % (FERROCE, test, options, " -R" if by_cm else "", NIC)
    waiting = server.run_in_background((command + " --json --timeout 120") % own[server], timeout=180)
    if not by_cm:
        server.run("for i in $(seq 300); do ss -tln | grep -q ':18515 ' && exit 0; sleep 0.1; done; exit 1")
    host = "10.9.%d.%d" % (0 if by_cm else 1, own[server])
    result = client.run((command + " --json --timeout 120 %s") % (own[client], host), timeout=180, check=False)
    other = waiting.result()
    what = "%s %s%s" % (test, options, " by the connection manager" if by_cm else "")
    if run.check(what, result.code == 0 and other.code == 0, "%r\n%r" % (result, other)):
        found = as_json(result)
        rxe_perftest.measured(run, what, found, "one core only")
        sizes = 23 if "-a" in options.split() else 1
        run.check("%s: as asked" % what, found["connection"] == ("rdma-cm" if by_cm else "tcp") and
                  len(found["rows"]) == sizes and as_json(other)["role"] == "server", json.dumps(found)[:1000])


def body(run, arguments):
    """ferroce perf between two guests: all seven tests, by TCP and by the connection manager, and options that don't do."""
    del arguments
    pcap = run.folder / "wire.pcap"
    models, guests = two_ends(run, ["--pcap", str(pcap)])
    for options, words in BAD:
        said = guests[0].run("%s perf %s --device %s" % (FERROCE, options, NIC), check=False)
        run.check("perf %s is refused" % options, said.code in (1, 2) and words in said.out, said)
    for number, case in enumerate([(*case, False) for case in BY_TCP] + [(*case, True) for case in BY_CM]):
        one(run, guests, number, case)
    for model, guest in zip(models, guests):
        guest.stop()
        # Only then is all of its capture in the file.
        model.stop()
    rxe.check_frames(run, "wire", pcap, 10_000)


if __name__ == "__main__":
    main("vfio_perf", body)
