#!/usr/bin/env python3
"""Linux's mlx5 netdev on the model, against virtio-net and against another mlx5 netdev."""

from lab import linux, run, wire

SERVER = """
import hashlib, socket
listener = socket.create_server(("0.0.0.0", 9000))
print("listening", flush=True)
peer, _ = listener.accept()
digest, total = hashlib.sha256(), 0
while data := peer.recv(65536):
    digest.update(data)
    total += len(data)
print(total, digest.hexdigest())
"""
CLIENT = """
import hashlib, os, socket, sys
peer = socket.create_connection((sys.argv[1], 9000))
digest, total = hashlib.sha256(), int(sys.argv[2])
for _ in range(total // 65536):
    data = os.urandom(65536)
    digest.update(data)
    peer.sendall(data)
peer.close()
print(total, digest.hexdigest())
"""
FLOWS = """
import socket, sys
for port in range(20000, 20032):
    flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flow.bind(("", port))
    flow.sendto(b"flow", (sys.argv[1], 9))
"""
OTHER_MAC = "02:fe:44:0c:e0:77"
STRANGER = "02:00:00:00:00:99"
# Says when a frame for the stranger's address came by.
LISTENER = """
import socket, sys
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
raw.bind((sys.argv[1], 0))
raw.settimeout(4)
print("listening", flush=True)
try:
    while raw.recv(2048)[:6] != bytes.fromhex(sys.argv[2].replace(":", "")):
        pass
    print("seen")
except TimeoutError:
    print("not seen")
"""


def transfer(task, sender, receiver, ip, megabytes):
    """A TCP stream, compared by its hash."""
    server = receiver.run_in_background("python3 /share/server.py")
    server.wait_for("listening")
    sent = sender.run("python3 /share/client.py %s %d" % (ip, megabytes << 20), timeout=300).out.strip()
    received = server.result().out.strip().splitlines()[-1]
    task.check("%s to %s: TCP, %d MiB" % (sender.name, receiver.name, megabytes), sent == received, (sent, received))


def ping(task, sender, ip, size=56, options=""):
    """Pings, all of which must be answered."""
    out = sender.run("ping -c 5 -i 0.2 -s %d %s %s" % (size, options, ip), check=False).out
    task.check("%s pings %s with %d bytes %s" % (sender.name, ip, size, options), " 0% packet loss" in out, out)


def settings(task, guest, device):
    """What ethtool and ip show and set."""
    task.check("ethtool -i", "driver: mlx5_core" in guest.run("ethtool -i %s" % device).out)
    task.check("ethtool -l", "Combined" in guest.run("ethtool -l %s" % device).out)
    task.check("ethtool: link and speed", "Link detected: yes" in guest.run("ethtool %s" % device).out)


def jumbo(task, guests, devices):
    """Both ends take frames of 9000 bytes: no packet is cut in two."""
    for guest, device in zip(guests, devices):
        guest.run("ip link set %s mtu 9000" % device, timeout=60)
    linux.carrier(guests[0], devices[0], True)
    for guest, ip in zip(guests, ("10.9.0.2", "10.9.0.1")):
        ping(task, guest, ip, 8900, "-M do")


def another_mac(task, guest, device, sender):
    """The netdev gets another MAC address, and goes down and up: frames to the new one arrive, the peer sees it."""
    guest.run("ip link set %s address %s" % (device, OTHER_MAC))
    ping(task, guest, "10.9.0.2")
    seen = sender.run("ip neigh show 10.9.0.1").out
    task.check("another MAC address", OTHER_MAC in seen, seen)
    guest.run("ip link set %s down" % device)
    out = sender.run("ping -c 2 -i 0.3 -W 1 10.9.0.1", check=False).out
    task.check("nothing answers while it is down", " 100% packet loss" in out, out)
    # Its addresses stay.
    guest.run("ip link set %s up" % device)
    linux.carrier(guest, device, True)
    ping(task, sender, "10.9.0.1")


def wire_out(task, guest, device, sender, control):
    """The wire is pulled out of the NIC and put back: the driver hears of it, and traffic stops and goes on."""
    for order, up in (("down", False), ("up", True)):
        said = linux.tell(control, "port 0 " + order)
        followed = linux.carrier(guest, device, up, check=False)
        task.check("the netdev's carrier follows the wire %s" % order, said == "ok" and followed.code == 0, (said, followed))
        if not up:
            out = sender.run("ping -c 2 -i 0.3 -W 1 10.9.0.1", check=False).out
            task.check("nothing answers while the wire is out", " 100% packet loss" in out, out)
    ping(task, sender, "10.9.0.1")


def vlan(task, guests, devices):
    """A tagged network beside the untagged one."""
    for number, (guest, device) in enumerate(zip(guests, devices)):
        guest.run("ip link add link %s name v5 type vlan id 5; ip addr add 10.95.0.%d/24 dev v5; ip link set v5 up"
                  % (device, number + 1))
    ping(task, guests[0], "10.95.0.2")


def multicast(task, guests, devices):
    """Neighbour discovery and echo to all nodes go to multicast addresses."""
    for a, b in ((0, 1), (1, 0)):
        ip = "ip -6 -o addr show dev %s scope link | sed -n 's/.*inet6 \\([^/]*\\).*/\\1/p'" % devices[b]
        link_local = guests[b].run(ip).out.strip()
        ping(task, guests[a], "%s%%%s" % (link_local, devices[a]))
        # Linux loops its own multicast back: who answers counts, and not how many.
        out = guests[a].run("ping -c 3 -i 0.5 ff02::1%%%s" % devices[a], check=False).out
        task.check("%s answers what %s asks all nodes" % (guests[b].name, guests[a].name), "bytes from %s%%" % link_local in out, out)


def foreign_frames(task, sender, guest, devices):
    """Frames to somebody else are seen in promiscuous mode only."""
    (guest.share / "listener.py").write_text(LISTENER)
    sender.run("ip neigh replace 10.9.0.99 lladdr %s dev %s" % (STRANGER, devices[1]))
    for mode, wanted in (("off", "not seen"), ("on", "seen"), ("off", "not seen")):
        guest.run("ip link set %s promisc %s" % (devices[0], mode))
        listener = guest.run_in_background("python3 /share/listener.py %s %s" % (devices[0], STRANGER))
        listener.wait_for("listening")
        sender.run("ping -c 2 -i 0.3 -W 1 10.9.0.99", check=False)
        seen = listener.result().out.strip().splitlines()[-1]
        task.check("promiscuous mode %s: a stranger's frame is %s" % (mode, wanted), seen == wanted, seen)


def spread(task, sender, guest, device):
    """Several flows meet several receive queues."""
    (guest.share / "flows.py").write_text(FLOWS)
    sender.run("python3 /share/flows.py 10.9.0.1 && sleep 1")
    counts = linux.statistics(guest, device)
    queues = [name for name, value in counts.items()
              if name.startswith("rx") and name.endswith("_packets") and name[2:-8].isdigit() and value]
    task.check("frames came to several receive queues", len(queues) > 1, queues)
    for name in ("rx_packets_phy", "tx_packets_phy", "rx_bytes_phy", "tx_bytes_phy", "rx_multicast_phy"):
        task.check("ethtool -S: %s counts" % name, counts.get(name, 0) > 0, counts.get(name))
    task.check("checksums were complete", counts.get("rx_csum_complete", 0) > 0, counts)


def body(task, arguments):
    """Linux's mlx5 netdev: ping, TCP, VLAN, MTU, MAC, RSS against virtio-net; with --full against another mlx5 too."""
    profile = "connectx4" if arguments.full else "minimal"
    hub = wire.Hub(task.folder, "wire", 3 if arguments.full else 2)
    task.parts.append(hub)
    ends = iter(hub.ends)
    control = task.folder / "control.sock"
    wired = ["--wire", "dgram:%s,%s" % next(ends), "--control", str(control)]
    model = task.model("nic", options=["--profile", profile, *wired])
    first = task.guest("first", models=model.sockets)
    second = task.guest("second", nics=[("52:54:00:09:00:02",) + next(ends)], cpus=1)
    (first.share / "server.py").write_text(SERVER)
    (first.share / "client.py").write_text(CLIENT)
    linux.load(first, "mlx5_core")
    linux.load(second, "virtio_net")
    devices = [linux.netdev(first), linux.netdev(second, "virtio_net")]
    for number, (guest, device) in enumerate(zip((first, second), devices)):
        linux.address(guest, device, "10.9.0.%d/24" % (number + 1))
    for size in (56, 1400, 8000):
        ping(task, first, "10.9.0.2", size)
    ping(task, second, "10.9.0.1")
    vlan(task, (first, second), devices)
    multicast(task, (first, second), devices)
    foreign_frames(task, second, first, devices)
    transfer(task, first, second, "10.9.0.2", 16)
    transfer(task, second, first, "10.9.0.1", 16)
    spread(task, second, first, devices[0])
    settings(task, first, devices[0])
    jumbo(task, (first, second), devices)
    ping(task, first, "10.9.0.2")
    another_mac(task, first, devices[0], second)
    wire_out(task, first, devices[0], second, control)
    if arguments.full:
        third_mlx5(task, first, second, next(ends))


def third_mlx5(task, first, second, end):
    """Another mlx5 netdev in place of virtio-net's guest."""
    second.stop()
    model = task.model("nic3", options=["--wire", "dgram:%s,%s" % end, "--mac", "02:fe:44:0c:e0:03"])
    third = task.guest("third", models=model.sockets, cpus=1)
    linux.load(third, "mlx5_core")
    linux.address(third, linux.netdev(third), "10.9.0.3/24")
    ping(task, first, "10.9.0.3")
    transfer(task, first, third, "10.9.0.3", 16)


if __name__ == "__main__":
    run.main("linux-net", body)
