#!/usr/bin/env python3
"""What check_pcap.py has to find in frames of which a bit was flipped: it passes nothing that is wrong."""

import pathlib
import struct
import sys
import tempfile
import unittest

import check_pcap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

from lab import roce  # noqa: E402 (it is found by the line above)

# Bytes of a frame: the IPv4 checksum, the BTH's PSN, the last of the payload, the ICRC.
IP_CHECKSUM, PSN, PAYLOAD, ICRC = 24, 14 + 20 + 8 + 11, -5, -4


def found(*frames):
    """What is said of these frames, by scapy's ICRC and by tshark."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65536, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
        file.flush()
        return check_pcap.check_icrcs(file.name)[1], check_pcap.check_tshark(file.name)[1]


class CheckPcap(unittest.TestCase):
    def setUp(self):
        self.right = roce.datagram(("02:00:00:00:00:01", "10.9.0.1"), ("02:00:00:00:00:02", "10.9.0.2"))

    def test_a_right_frame_has_nothing_wrong(self):
        self.assertEqual(found(self.right), ([], []))

    def test_a_bit_that_the_icrc_covers_is_found(self):
        for at in (PSN, PAYLOAD, ICRC):
            icrcs, _ = found(self.right, roce.with_flipped(self.right, at), self.right)
            self.assertEqual([line.partition(":")[0] for line in icrcs], ["frame 2"])

    def test_a_wrong_ipv4_checksum_is_found_though_the_icrc_is_right(self):
        icrcs, told = found(self.right, roce.with_flipped(self.right, IP_CHECKSUM))
        self.assertEqual(icrcs, [])
        self.assertIn("frame 2: ip.checksum: it is wrong", told)

    def test_an_expert_error_is_found(self):
        # An IPv4 header of 4 words, where 5 is the least.
        _, told = found(self.right[:14] + b"\x44" + self.right[15:])
        self.assertTrue(any("frame 1: tshark finds an error" in line for line in told), told)

    def test_no_frames_are_no_error(self):
        self.assertEqual(found(), ([], []))


if __name__ == "__main__":
    unittest.main()
