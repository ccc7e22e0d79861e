#!/usr/bin/env python3
"""Checks every frame of a capture with other people's code.

* tshark must find nothing malformed and no error, the checksums of IPv4, ICMP and ICMPv6 right, and must recognise every
  RoCE frame (the ICRC leaves IPv4's checksum out);
* scapy must compute the same ICRC for every RoCE v2 frame. scapy knows no RoCE v1 ICRC, so for those frames the
  CRC is computed here, from the IBTA's rules and with Python's zlib, by code that shares nothing with ferroce.

Exit status 0 when all frames are right; otherwise 1, with the frames that are not.
"""

import argparse
import collections
import json
import struct
import subprocess
import sys
import zlib

ROCE_V1 = 0x8915
ROCE_V2_PORT = 4791

TSHARK = [
    "tshark",
    # Its heuristic calls zero-length SENDs malformed RPC.
    "--disable-protocol",
    "rpcordma",
    # Its heuristic takes payload that begins like an EtherType for Ethernet over InfiniBand: random bytes do so now
    # and then, and are no frames of any protocol.
    "--disable-heuristic",
    "eth_over_ib",
    # So does the one for Fibre Channel.
    "--disable-protocol",
    "fcoib",
    # RoCE v2 over IPv6 may have a UDP checksum of zero (IBTA annex A17), as Linux sends it.
    "-o",
    "udp.ignore_ipv6_zero_checksum:TRUE",
    "-o",
    "ip.check_checksum:TRUE",
]
CHECKSUMS = ["ip.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status"]
# tshark's numbers for a checksum that is wrong, and for the worst that an expert may say ("error").
BAD_CHECKSUM = "0"
ERROR = 0x80_0000


def roce_v1_icrc(frame, ip_at):
    """ICRC of a RoCE v1 frame whose GRH begins at `ip_at` (IBTA vol. 1, 7.8.1)."""
    grh = bytearray(frame[ip_at : ip_at + 40])
    # Variant fields count as ones: traffic class, flow label, hop limit; and resv8a of the BTH.
    grh[0] |= 0x0F
    grh[1:4] = b"\xff\xff\xff"
    grh[7] = 0xFF
    rest = bytearray(frame[ip_at + 40 : -4])
    rest[4] = 0xFF
    # The 8 bytes of an LRH that RoCE does not have.
    return zlib.crc32(b"\xff" * 8 + bytes(grh) + bytes(rest))


def ethernet(frame):
    """EtherType and the offset of what follows it; VLAN tags are skipped."""
    at = 12
    kind = struct.unpack_from("!H", frame, at)[0]
    while kind in (0x8100, 0x88A8):
        at += 4
        kind = struct.unpack_from("!H", frame, at)[0]
    return kind, at + 2


def check_icrcs(path):
    from scapy.contrib.roce import BTH
    from scapy.layers.l2 import Ether
    from scapy.utils import RawPcapReader

    counts = collections.Counter()
    wrong = []
    with RawPcapReader(path) as frames:
        for number, (frame, _) in enumerate(frames, 1):
            kind, at = ethernet(frame)
            if kind == ROCE_V1:
                want = struct.pack("<I", roce_v1_icrc(frame, at))
                counts["RoCE v1"] += 1
            else:
                packet = Ether(frame)
                if BTH not in packet:
                    counts["other"] += 1
                    continue
                bth = packet[BTH]
                # What scapy puts in place of an ICRC that is not given.
                want = bth.compute_icrc(bytes(bth)[:-4])
                counts["RoCE v2 over IPv%d" % (4 if kind == 0x0800 else 6)] += 1
            if frame[-4:] != want:
                wrong.append("frame %d: ICRC %s, should be %s" % (number, frame[-4:].hex(), want.hex()))
    return counts, wrong


def check_tshark(path):
    out = subprocess.run(
        TSHARK
        + ["-r", path, "-T", "fields", "-E", "separator=/t"]
        + ["-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.malformed", "-e", "_ws.expert.severity"]
        + [word for field in CHECKSUMS for word in ("-e", field)]
        + ["-e", "_ws.expert.message"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    wrong = []
    roce = 0
    for line in out.split("\n")[:-1]:
        number, protocols, malformed, severities, *rest = line.split("\t")
        checksums, said = rest[: len(CHECKSUMS)], " ".join(rest[len(CHECKSUMS) :])
        if malformed or "_ws.malformed" in protocols:
            wrong.append("frame %s: tshark calls it malformed (%s)" % (number, protocols))
        elif any(int(severity) >= ERROR for severity in severities.split(",") if severity):
            wrong.append("frame %s: tshark finds an error (%s): %s" % (number, protocols, said))
        for field, states in zip(CHECKSUMS, checksums):
            if BAD_CHECKSUM in states.split(","):
                wrong.append("frame %s: %s: it is wrong" % (number, field.partition(".status")[0]))
        if "infiniband" in protocols or ":rroce" in protocols:
            roce += 1
    return roce, wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("pcap", help="the capture")
    arguments.add_argument("--at-least", type=int, default=1, help="RoCE frames that must be there (default: 1)")
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    given = arguments.parse_args()

    counts, wrong_icrc = check_icrcs(given.pcap)
    recognised, malformed = check_tshark(given.pcap)
    roce = sum(n for kind, n in counts.items() if kind.startswith("RoCE"))
    problems = wrong_icrc + malformed
    if recognised != roce:
        problems.append("tshark recognises %d RoCE frames of %d" % (recognised, roce))
    if roce < given.at_least:
        problems.append("only %d RoCE frames, at least %d were to be checked" % (roce, given.at_least))
    if given.json:
        print(json.dumps({"frames": dict(counts), "recognised_by_tshark": recognised, "problems": problems}))
    else:
        print("frames: %s; recognised by tshark: %d; problems: %d" % (dict(counts), recognised, len(problems)))
        for problem in problems[:20]:
            print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
