#!/usr/bin/env python3
"""Who answers for the NIC's addresses: `ferroce link` on the host, Linux's ping, ip neigh and arping in a guest."""

import json
import os
import queue
import signal
import subprocess
import threading

from lab import ending, run, rxe, wire

MAC, GUEST = rxe.NIC_MAC, rxe.GUEST_MAC
# Another MAC address for the guest's end, as if another station had its addresses now.
MOVED = "52:54:00:09:00:77"
OWN = ["10.9.0.1", "fd00:9::1", "10.9.7.1"]
TAGGED = "wire.%d" % rxe.VLAN
# What a frame must not be. That an echo request had no answer, or an address two owners, is meant.
WRONG = "_ws.malformed || ip.checksum.status == 0 || icmp.checksum.status == 0 || icmpv6.checksum.status == 0 " \
        "|| _ws.expert.severity == error"


class Link:
    """A running `ferroce link --json`."""

    def __init__(self, task, name, device, options):
        self.name = name
        self.log = task.folder / (name + ".log")
        line = [str(task.ferroce), "link", "--json", "--device", device, "--mac", MAC, *options]
        self.stderr = open(self.log, "wb")
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, text=True,
                                        env={**os.environ, "RUST_LOG": "warn"}, start_new_session=True,
                                        preexec_fn=ending.with_this_process)
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        task.parts.append(self)

    def _read(self):
        for line in self.process.stdout:
            self.events.put(json.loads(line))

    def hear(self, event, timeout=60, **facts):
        """The next event of a kind with these facts."""
        seen = []
        while True:
            try:
                found = self.events.get(timeout=timeout)
            except queue.Empty:
                raise run.Failed("%s: no %s %r, but %r; %s" % (self.name, event, facts, seen, self.tail()))
            if found["event"] == event and all(found.get(key) == value for key, value in facts.items()):
                return found
            seen.append(found)

    def tell(self, line):
        """Gives it a command."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def tail(self, *_):
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def stop(self):
        """Ends it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.stderr.close()
        return self.process.wait()


def guest_on(task, end):
    """A guest with addresses on the wire, untagged and in a VLAN."""
    guest = task.guest("peer", nics=[(GUEST, *end)], cpus=1)
    guest.run("modprobe virtio_net; modprobe 8021q; for n in /sys/class/net/*; do [ \"$(cat $n/address)\" = %s ] && "
              "ip link set ${n##*/} name wire; done; ip link set wire mtu 9000 && ip link set wire up" % GUEST)
    guest.run("ip addr add 10.9.0.2/24 dev wire; ip addr add fd00:9::2/64 dev wire nodad; "
              "ip link add link wire name %s type vlan id %d && ip link set %s up && ip addr add 10.9.7.2/24 dev %s"
              % (TAGGED, rxe.VLAN, TAGGED, TAGGED))
    return guest


def ping(task, guest, ip, size=56, answered=True):
    """Pings, all of which must be answered, or none."""
    out = guest.run("ping -c 3 -i 0.2 -W 2 -s %d %s" % (size, ip), check=False).out
    right = (" 0% packet loss" if answered else "100% packet loss") in out
    task.check("%s answers %d bytes%s" % (ip, size, "" if answered else " no more"), right, out)


def answers(task, guest):
    """Everything that the guest asks is answered, with our MAC."""
    for size in (0, 56, 1400, 8000):
        for ip in ("10.9.0.1", "fd00:9::1", "10.9.7.1", "%s%%wire" % rxe.link_local(MAC)):
            ping(task, guest, ip, size)
    table = guest.run("ip neigh").out
    for ip in OWN + [rxe.link_local(MAC)]:
        known = [line for line in table.splitlines() if line.startswith(ip + " ") and MAC in line]
        task.check("the guest's neighbour table has %s" % ip, known, table)
    out = guest.run("busybox arping -c 3 -I wire 10.9.0.1", check=False).out
    task.check("arping is answered by one station", "Received 3 re" in out and MAC in out.lower(), out)
    out = guest.run("ping -f -c 300 -W 2 10.9.0.1", check=False, timeout=120).out
    task.check("a flood of pings is answered", " 0% packet loss" in out, out)


def finds(task, link):
    """We find the guest."""
    places = ["10.9.0.2", "fd00:9::2", rxe.link_local(GUEST), "10.9.7.2@%d" % rxe.VLAN]
    for place in places:
        link.tell("resolve " + place)
        task.check("we find %s" % place, link.hear("resolved")["mac"] == GUEST)


def duplicates(task, guest, link):
    """Either side looks for others with an address, and the other objects."""
    out = guest.run("busybox arping -D -c 3 -I wire 10.9.0.1", check=False)
    task.check("arping -D finds our address taken", out.code == 1, out)
    guest.run("ip addr add fd00:9::1/64 dev wire")
    out = guest.run("for i in $(seq 50); do ip addr show dev wire | grep -q 'fd00:9::1/64.*dadfailed' && exit 0; sleep 0.1; "
                    "done; ip addr show dev wire; exit 1", check=False)
    task.check("the guest's own duplicate detection finds our address taken", out.code == 0, out)
    guest.run("ip addr del fd00:9::1/64 dev wire")
    for address in ("10.9.0.2/24", "fd00:9::2/64", "10.9.7.2/24@%d" % rxe.VLAN):
        link.tell("add " + address)
        task.check("we find %s taken" % address, link.hear("duplicate", address=address)["mac"] == GUEST)
        link.tell("remove " + address.replace("/24", "").replace("/64", ""))
    guest.run("ip addr add 10.9.0.1/24 dev wire && busybox arping -U -c 1 -I wire 10.9.0.1; ip addr del 10.9.0.1/24 dev wire",
              check=False)
    task.check("we hear who claims our address", link.hear("conflict", address="10.9.0.1/24")["mac"] == GUEST)
    guest.run("ip neigh flush dev wire")
    ping(task, guest, "10.9.0.1")


def changes(task, guest, link):
    """Addresses of ours, and the MAC of a neighbour's, change."""
    link.tell("add 10.9.0.11/24")
    link.hear("usable", address="10.9.0.11/24")
    ping(task, guest, "10.9.0.11")
    link.tell("remove 10.9.0.11")
    link.hear("addresses")
    guest.run("ip neigh flush dev wire")
    ping(task, guest, "10.9.0.11", answered=False)
    ping(task, guest, "10.9.0.1")
    link.tell("watch 10.9.0.2")
    # Another station has the address now, and announces it, as a virtual machine that has migrated.
    guest.run("ip link set wire down; ip link set wire address %s; ip link set wire up; "
              "ip addr add fd00:9::2/64 dev wire nodad 2>/dev/null; busybox arping -U -c 1 -I wire 10.9.0.2" % MOVED,
              check=False)
    moved = link.hear("moved", neighbour="10.9.0.2")
    task.check("we hear that the guest has another MAC (case C07)", (moved["old"], moved["mac"]) == (GUEST, MOVED), moved)
    ping(task, guest, "10.9.0.1")
    guest.run("ip link set wire down")
    link.hear("unreachable", neighbour="10.9.0.2")
    task.check("and that nobody answers any more", True)


def check_frames(task, name, pcap):
    """tshark finds nothing wrong in a capture."""
    line = ["tshark", "-r", str(pcap), "-o", "ip.check_checksum:TRUE", "-Y", WRONG]
    done = subprocess.run(line, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    count = sum(1 for _ in rxe.frames(pcap))
    right = done.returncode == 0 and not done.stdout.strip() and count > 100
    task.check("%s: %d frames, nothing malformed" % (name, count), right, done.stdout[-1000:] + done.stderr[-500:])


def session(task, guest, name, device, options):
    """All of it on one NIC."""
    addresses = []
    for address in ("10.9.0.1/24", "fd00:9::1/64", "10.9.7.1/24@%d" % rxe.VLAN):
        addresses += ["--address", address]
    link = Link(task, name, device, [*addresses, "--port-mtu", "9000", *options])
    link.hear("up")
    # In any order, for each waits by chance; the link-local one may come too.
    missing = set(addresses[1::2])
    while missing:
        missing.discard(link.hear("usable")["address"])
    answers(task, guest)
    finds(task, link)
    duplicates(task, guest, link)
    changes(task, guest, link)
    link.tell("counters")
    counters = link.hear("counters")
    task.check("%s: no frame was malformed, no queue failed" % name,
               counters["malformed"] == 0 and counters["queue_errors"] == 0, counters)
    task.check("%s: it ends in order" % name, link.stop() == 0, link.tail())


def body(task, arguments):
    """ferroce answers for a NIC's addresses: ping, ARP, neighbour discovery, VLAN, duplicates, changes, seen by Linux."""
    end, own = wire.pair(task.folder, "link")
    guest = guest_on(task, end)
    pcap = task.folder / "in-process.pcap"
    session(task, guest, "in-process", "model:dgram:%s,%s" % own, ["--pcap", str(pcap)])
    check_frames(task, "in-process", pcap)
    if not arguments.full:
        return
    guest.run("ip link set wire address %s; ip link set wire up; ip addr add fd00:9::2/64 dev wire nodad; "
              "ip link set %s up; true" % (GUEST, TAGGED))
    pcap = task.folder / "vfio-user.pcap"
    model = task.model("nic", options=["--wire", "dgram:%s,%s" % own, "--mac", MAC, "--pcap", str(pcap)])
    session(task, guest, "vfio-user", "vfio-user:%s" % model.sockets[0], [])
    model.stop()
    check_frames(task, "vfio-user", pcap)


if __name__ == "__main__":
    run.main("rxe-link", body)
