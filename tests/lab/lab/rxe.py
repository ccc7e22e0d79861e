"""A guest with Linux's Soft-RoCE (rdma_rxe) on a virtio-net, as a peer of ferroce on the host."""

import collections
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import time

from . import image, qemu, roce, run, wire

GUEST_MAC = "52:54:00:09:00:02"
NIC_MAC = "02:fe:44:0c:e0:01"
ADDRESSES = {"ipv4": ("10.9.0.1", "10.9.0.2"), "ipv6": ("fd00:9::1", "fd00:9::2")}
PREFIXES = {"ipv4": 24, "ipv6": 64}
VLAN = 7
VLAN_ADDRESSES = ("10.9.7.1", "10.9.7.2")
# The port at which Debian's tools meet.
PORT = 18515
# What rdma_rxe counts of things that went wrong on a good wire. What it counts where an answer was late, since other
# programs had the processors, is not among them (completer_retry_err, duplicate_request).
FAULTS = ["out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err"]
# Those of them that a bad wire may cause.
BAD_WIRE = ["out_of_seq_request", "rcvd_seq_err"]
ROCE_PORT = roce.ROCE_PORT
# MTU of a port, in bytes of IP, by the path MTU that it makes Linux choose.
PORT_MTUS = {1024: 1500, 4096: 9000}
# Opcodes of packets with a path MTU of payload and no further header: SEND first and middle, WRITE and READ response middle.
WHOLE_PACKETS = (0x00, 0x01, 0x07, 0x0e)
# Attribute of a connection manager's REQ, and where in it the path MTU stands (IBTA vol. 1, 12.6.5): the high half of the byte.
CM_REQ, CM_REQ_MTU = 0x0010, 0x4a
# Bytes before the first frame of a capture file.
PCAP_HEADER = 24


def link_local(mac):
    """The link-local address that is made of a MAC address (RFC 4291)."""
    a, b, c, d, e, f = (int(byte, 16) for byte in mac.split(":"))
    return "fe80::%x:%x:%x:%x" % ((a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)


def link_options(kind, mtu=None):
    """Options that ferroce's NIC gets for addresses of a kind, and for a path MTU."""
    options = ["--vlan", str(VLAN)] if kind == "vlan" else []
    return options + (["--port-mtu", str(PORT_MTUS[mtu])] if mtu else [])


def own_addresses(options):
    """Options that give ferroce its addresses: in the VLAN, or outside of any."""
    if "--vlan" in options:
        return ["--address", "%s/24" % VLAN_ADDRESSES[0]]
    return ["--address=%s/%d" % (own, PREFIXES[family]) for family, (own, _) in ADDRESSES.items()]


class Program:
    """`ferroce` on the host, with a NIC model of its own at the other end of the guest's wire."""

    def __init__(self, peer, name, arguments, options=()):
        self.peer = peer
        self.name = name
        self.log = peer.task.folder / (name + ".log")
        self.line = [str(peer.task.ferroce), *arguments, *self._nic(), *options, *own_addresses(options)]
        self.process = None
        peer.task.parts.append(self)

    @property
    def pcap(self):
        """The frames of its wire."""
        return self.peer.task.folder / (self.name + ".pcap")

    def _nic(self):
        return ["--device", "model:dgram:%s,%s" % self.peer.end, "--mac", NIC_MAC, "--pcap", str(self.pcap)]

    def start(self):
        """Starts it."""
        self.output = open(self.log, "wb")
        environment = {**os.environ, "RUST_LOG": "warn,ferroce_nic_model=info"}
        self.process = subprocess.Popen(self.line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self.output, env=environment, start_new_session=True,
                                        preexec_fn=run.ending.with_this_process)
        return self

    def listening(self, port, timeout=60):
        """Returns when it listens at a TCP port of the host's."""
        deadline = time.monotonic() + timeout
        wanted = ":%04X " % port
        while time.monotonic() < deadline and self.process.poll() is None:
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                with open(table) as sockets:
                    if any(line.split()[3] == "0A" and wanted in line.split()[1] + " " for line in sockets.readlines()[1:]):
                        return
            time.sleep(0.05)
        raise run.Failed("%s does not listen at port %d: %s" % (self.name, port, self.tail()))

    def says(self, text, timeout=60):
        """Returns when its first line, which has to have `text`, has come."""
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline().decode(errors="replace") if ready else ""
        if text not in line:
            raise run.Failed("%s does not say %r: %r %s" % (self.name, text, line, self.tail()))

    def result(self, timeout=120):
        """Waits for its end: exit status, and the JSON object that it printed."""
        try:
            out, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            out, _ = self.process.communicate()
        self.output.close()
        text = out.decode(errors="replace")
        lines = [line for line in text.splitlines() if line.startswith("{")]
        return self.process.returncode, json.loads(lines[-1]) if lines else {"output": text}

    def interrupt(self):
        """Asks it to end."""
        self.process.send_signal(signal.SIGINT)

    def tail(self, *_):
        """The last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-20:])

    def stop(self):
        """Ends it, if it still runs."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Peer:
    """The guest. `hub` puts a wire between that a run can make bad."""

    # Name of the RDMA device.
    DEVICE = "rxe0"
    # MAC address of the guest's end.
    MAC = GUEST_MAC
    # What it counts when frames to it are lost, doubled, overtaken.
    FELT = ["duplicate_request", "out_of_seq_request"]
    # How ferroce is run.
    PROGRAM = Program
    # Where programs in the guest find ferroce by TCP.
    host = qemu.Control.HOST
    # MTU of its port, in bytes of IP.
    port_mtu = 9000
    # How many cases were played.
    played = 0

    def __init__(self, task, listen=(PORT,), reach=(PORT,), capture=None):
        self.task = task
        end, self.end = wire.pair(task.folder, "rxe")
        self.control = qemu.Control(listen, reach)
        self.capture = task.folder / capture if capture else None
        self.guest = task.guest("rxe", nics=self._nics(end), control=self.control, capture=self.capture)
        self._set_up()
        self.gids = self._gids()

    def _nics(self, end):
        return [(GUEST_MAC, *end)]

    def addresses(self, kind):
        """ferroce's and the guest's of a kind, as programs in the guest take them."""
        if kind == "link-local":
            return link_local(NIC_MAC) + "%wire", link_local(self.MAC) + "%wire"
        return VLAN_ADDRESSES if kind == "vlan" else ADDRESSES[kind]

    def program(self, name, arguments, options=()):
        """`ferroce` with those arguments, not started yet."""
        return self.PROGRAM(self, name, arguments, options)

    def server_at(self, port):
        """Options with which ferroce finds a program in the guest."""
        return ["--port", str(self.control.listen[port]), "127.0.0.1"]

    def own_port(self, port):
        """Where ferroce listens, for the guest to find it at `port`."""
        return self.control.reach[port]

    def _set_up(self):
        guest = self.guest
        self.control.set_up(guest)
        guest.run("for n in /sys/class/net/*; do [ \"$(cat $n/address)\" = %s ] && ip link set ${n##*/} name wire; done; "
                  "ip link set wire mtu %d && ip link set wire up" % (GUEST_MAC, self.port_mtu))
        for family, (_, own) in ADDRESSES.items():
            guest.run("ip addr add %s/%d dev wire %s" % (own, PREFIXES[family], "nodad" if family == "ipv6" else ""))
        guest.run("ip link add link wire name wire.%d type vlan id %d && ip link set wire.%d up && "
                  "ip addr add %s/24 dev wire.%d" % (VLAN, VLAN, VLAN, VLAN_ADDRESSES[1], VLAN))
        guest.run("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev wire && sleep 1", timeout=60)

    def _gids(self):
        """Index of the GID of each kind of address."""
        folder = "/sys/class/infiniband/%s/ports/1" % self.DEVICE
        out = self.guest.run("cd %s; for i in $(seq 0 15); do echo $i $(cat gids/$i) $(cat gid_attrs/types/$i 2>/dev/null); done"
                             % folder).out
        found = {}
        for index, gid in re.findall(r"^(\d+) (\S+) RoCE v2", out, re.M):
            words = gid.split(":")
            if words[0] == "fe80":
                found.setdefault("link-local", int(index))
            elif words[0] == "fd00":
                found["ipv6"] = int(index)
            elif words[5] == "ffff":
                v4 = ".".join(str(int(words[n][m:m + 2], 16)) for n in (6, 7) for m in (0, 2))
                found["vlan" if v4 == VLAN_ADDRESSES[1] else "ipv4"] = int(index)
        if set(found) != {"link-local", "ipv6", "ipv4", "vlan"}:
            raise run.Failed("%s has not all GIDs: %r of %s" % (self.DEVICE, found, out))
        return found

    def counters(self):
        """What rdma_rxe counts."""
        out = self.guest.run("cd /sys/class/infiniband/%s/ports/1/hw_counters; grep . *" % self.DEVICE).out
        return {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)$", out, re.M)}

    def set_mtu(self, mtu):
        """Gives the guest's port the MTU for a path MTU, or again the usual one. Linux's connection manager takes no other."""
        mtu = PORT_MTUS[mtu or 4096]
        if mtu == self.port_mtu:
            return
        self.port_mtu = mtu
        self.guest.run("ip link set wire mtu %d && ip link set wire.%d mtu %d && sleep 0.5" % (mtu, VLAN, mtu))

    def listening(self, port=PORT):
        """Returns when a program in the guest listens at a TCP port."""
        self.guest.run("for i in $(seq 200); do ss -tln | grep -q ':%d ' && exit 0; sleep 0.1; done; exit 1" % port)

    def play(self, play, cases):
        """Each case with ferroce as client and as server, by `play(peer, number, role, case)`."""
        for case in cases:
            for role in ("client", "server"):
                self.played += 1
                play(self, self.played, role, case)

    def at_end(self):
        """Checks what holds for the whole run, when no program of ferroce's has the wire."""
        self.wrong_icrcs()
        told = [line for line in self.guest.run("dmesg").out.splitlines() if "rxe" in line and ("WARN" in line or "BUG" in line)]
        self.task.check("Linux complains of nothing in rxe", not told, "\n".join(told[:5]))

    def wrong_icrcs(self):
        """Checks that rdma_rxe, which says nothing of a wrong ICRC, leaves such packets out of its count: `all_accepted` stands
        on that."""
        right = roce.datagram((NIC_MAC, ADDRESSES["ipv4"][0]), (self.MAC, ADDRESSES["ipv4"][1]))
        # In the ICRC, in the payload, and in the BTH's PSN.
        wrong = [roce.with_flipped(right, at) for at in (-4, -100, 14 + 20 + 8 + 11)]
        before = self.counters()["rcvd_pkts"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as port:
            for batch, counted in (([right], 1), ([*wrong, right], 2)):
                for frame in batch:
                    port.sendto(frame, self.end[1])
                deadline = time.monotonic() + 30
                while self.counters()["rcvd_pkts"] < before + counted and time.monotonic() < deadline:
                    pass
        # rdma_rxe takes them in order. The kernel renews what it tells each 10 ms.
        self.guest.run("sleep 0.1")
        grown = self.counters()["rcvd_pkts"] - before
        self.task.check("rxe counts two packets with the right ICRC, and none of %d with a wrong one" % len(wrong), grown == 2, grown)

    def check_frames(self, what, pcap, at_least):
        """Checks each frame of a program's. Where QEMU writes all of the wire into one file, its frames are checked at the end,
        from there."""
        if self.capture:
            count = sum(packets(pcap))
            self.task.check("%s: at least %d RoCE frames" % (what, at_least), count >= at_least, count)
        else:
            check_frames(self.task, what, pcap, at_least)

    def all_accepted(self, what, before, pcap, late=0, bad=False):
        """Checks that rdma_rxe has found nothing wrong since `before`, and accepted each packet that we sent: it counts a
        packet when its headers and its ICRC are right, and its queue pair is there. `late` is how many may have come when
        that was gone; `bad`, whether the wire was."""
        now = self.counters()
        names = [name for name in FAULTS if not (bad and name in BAD_WIRE)]
        grown = {name: now[name] - before[name] for name in names if now[name] != before[name]}
        self.task.check("%s: rxe counts no fault" % what, not grown, grown)
        ours, theirs = packets(pcap)
        accepted, sent = (now[name] - before[name] for name in ("rcvd_pkts", "sent_pkts"))
        self.task.check("%s: rxe accepted each of our packets" % what, ours - late <= accepted <= ours and sent >= theirs > 0,
                        "%d accepted of %d; %d came of %d" % (accepted, ours, theirs, sent))


def timed_frames(pcap):
    """The frames of a capture file with their times in seconds."""
    data = pcap.read_bytes()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    unit = 1e-9 if b"\x3c" in data[:4] else 1e-6
    at = PCAP_HEADER
    while at + 16 <= len(data):
        seconds, part, length = struct.unpack_from(order + "III", data, at)
        yield seconds + part * unit, data[at + 16:at + 16 + length]
        at += 16 + length


def frames(pcap):
    """The frames of a capture file."""
    return (frame for _, frame in timed_frames(pcap))


# `kind` is that of its addresses as far as a frame tells, `rest` what follows the BTH's destination, up to the ICRC.
Packet = collections.namedtuple("Packet", "time ours kind traffic_class opcode becn qpn rest")


def roce_packets(pcap):
    """RoCE v2 packets of a capture, with or without a VLAN tag."""
    own = bytes.fromhex(NIC_MAC.replace(":", ""))
    for when, frame in timed_frames(pcap):
        at = 18 if frame[12:14] == b"\x81\x00" else 14
        if frame[at - 2:at] == b"\x08\x00":
            family, traffic_class, protocol, udp = "ipv4", frame[at + 1], frame[at + 9], at + (frame[at] & 15) * 4
        elif frame[at - 2:at] == b"\x86\xdd":
            family, protocol, udp = "ipv6", frame[at + 6], at + 40
            traffic_class = struct.unpack_from(">H", frame, at)[0] >> 4 & 255
        else:
            continue
        if protocol != 17 or struct.unpack_from(">H", frame, udp + 2)[0] != ROCE_PORT:
            continue
        bth, end = udp + 8, udp + struct.unpack_from(">H", frame, udp + 4)[0]
        yield Packet(when, frame[6:12] == own, "vlan" if at == 18 else family, traffic_class, frame[bth], frame[bth + 4] >> 6 & 1,
                     int.from_bytes(frame[bth + 5:bth + 8], "big"), frame[bth + 8:end - 4])


def packets(pcap):
    """RoCE v2 packets of a capture: how many from our NIC, how many from others."""
    counts = [0, 0]
    for packet in roce_packets(pcap):
        counts[not packet.ours] += 1
    return counts


def asked_mtu(pcap):
    """Path MTUs in bytes that connections were asked for with."""
    sizes = set()
    for packet in roce_packets(pcap):
        # After the rest of the BTH and the DETH.
        mad = packet.rest[4 + 8:]
        about_connections = packet.opcode == roce.UD_SEND_ONLY and packet.qpn == roce.GSI_QPN
        if about_connections and struct.unpack_from(">H", mad, 0x10)[0] == CM_REQ:
            sizes.add(128 << (mad[CM_REQ_MTU] >> 4))
    return sizes


def path_mtu(pcap):
    """Bytes of payload of the packets that begin or go on with a message or an answer, by their opcode (RC; IBTA vol. 1,
    9.2.1): the path MTU that both sides use."""
    sizes = set()
    for frame in frames(pcap):
        at = 18 if frame[12:14] == b"\x81\x00" else 14
        udp = at + (40 if frame[at] >> 4 == 6 else (frame[at] & 15) * 4)
        if frame[at - 2:at] in (b"\x08\x00", b"\x86\xdd") and len(frame) > udp + 20:
            port, length = struct.unpack_from(">HH", frame, udp + 2)
            if port == ROCE_PORT and frame[udp + 8] in WHOLE_PACKETS:
                # Without the headers of UDP and the BTH, and the ICRC.
                sizes.add(length - 8 - 12 - 4)
    return sizes


def check_frames(task, what, pcap, at_least):
    """Checks each frame of a capture with tshark and scapy."""
    python = image.TOP / "target/venv/bin/python"
    program = image.TOP / "tests/wire-check/check_pcap.py"
    done = subprocess.run([str(python), str(program), str(pcap), "--json", "--at-least", str(at_least)],
                          check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    task.check("%s: each frame is right by tshark and scapy" % what, done.returncode == 0, done.stdout[-1000:])
