"""Wires between models and guests: unix datagram sockets, one Ethernet frame a datagram, as QEMU's -netdev dgram."""

import os
import selectors
import socket
import struct
import threading
import time

LARGEST = 65536


def pair(folder, name):
    """Both ends of a wire between two ports: (LOCAL, REMOTE) of each."""
    a, b = (str(folder / ("%s-%s.wire" % (name, end))) for end in "ab")
    return (a, b), (b, a)


class Hub:
    """A wire with any number of ports: what comes in at one goes out at all others. Writes a pcap."""

    def __init__(self, folder, name, ports):
        self.name = name
        self.process = None
        self.ends = []
        self.selector = selectors.DefaultSelector()
        self.outs = []
        for number in range(ports):
            inside, outside = (str(folder / ("%s-%d-%s.wire" % (name, number, side))) for side in ("hub", "port"))
            for path in (inside, outside):
                if os.path.exists(path):
                    os.unlink(path)
            here = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            here.bind(inside)
            here.settimeout(0.05)
            here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            self.selector.register(here, selectors.EVENT_READ, number)
            self.outs.append((here, outside))
            self.ends.append((outside, inside))
        self.pcap = open(folder / (name + ".pcap"), "wb")
        self.pcap.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, LARGEST, 1))
        self.stopping = False
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()

    def _carry(self):
        while not self.stopping:
            for key, _ in self.selector.select(timeout=0.2):
                try:
                    frame = key.fileobj.recv(LARGEST)
                except OSError:
                    continue
                self._record(frame)
                for number, (here, outside) in enumerate(self.outs):
                    if number != key.data:
                        self._send(here, outside, frame)

    @staticmethod
    def _send(here, outside, frame):
        """A port that is not there, or has no room for long, loses the frame, as a switch's would."""
        try:
            here.sendto(frame, outside)
        except OSError:
            pass

    def _record(self, frame):
        now = time.time()
        header = struct.pack("<IIII", int(now), int(now % 1 * 1e6), len(frame), len(frame))
        self.pcap.write(header + frame)

    def tail(self, *_):
        """For `Run.where`."""
        return ""

    def stop(self):
        """Ends it."""
        self.stopping = True
        self.thread.join(timeout=5)
        for here, _ in self.outs:
            here.close()
        self.pcap.close()
