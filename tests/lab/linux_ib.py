#!/usr/bin/env python3
"""Linux's mlx5_ib and libmlx5 on the model: two NICs in two guests on one wire."""

import re

from lab import linux, run, rxe, wire

# A pair of programs: what the server runs, what the client runs, how to see that the server is ready, and the test.
TCP = "ss -tln | grep -qE ':(18515|18516) '"
LISTENER = "rdma resource show cm_id | grep -q LISTEN"
# A group is joined when the netdev listens to its MAC address (239.1.2.3).
JOINED = "ip maddr show | grep -q 01:00:5e:01:02:03"


def pingpong(command, address="10.9.0.2"):
    """Programs that take the server's address behind all else, and exchange their numbers by TCP."""
    return (command, command + " " + address, TCP)


def by_cm(server, client):
    """Programs that the RDMA connection manager brings together, over QP1."""
    return (server, client, LISTENER)


QUICK = [
    pingpong("ibv_rc_pingpong -g {gid} -n 100"),
    pingpong("ibv_rc_pingpong -g {gid} -n 100 -e"),
    pingpong("ibv_uc_pingpong -g {gid} -n 100"),
    pingpong("ibv_ud_pingpong -g {gid} -n 100 -s 1000"),
    pingpong("ib_write_bw -d mlx5_0 -x {gid} -n 100 -s 4096"),
    by_cm("udaddy -b 10.9.0.2", "udaddy -s 10.9.0.2"),
]
FULL = [
    # Linux's connection manager asks for atomics, which `minimal` has not.
    by_cm("rping -s -a 10.9.0.2 -C 10 -v", "rping -c -a 10.9.0.2 -C 10 -v"),
    pingpong("ibv_srq_pingpong -g {gid} -n 100"),
    pingpong("ibv_rc_pingpong -g {gid} -n 50 -s 65536 -m 4096"),
    pingpong("ibv_uc_pingpong -g {gid} -n 50 -s 65536 -e"),
    pingpong("ibv_ud_pingpong -g {gid} -n 100 -s 1000 -e"),
    pingpong("ib_read_bw -d mlx5_0 -x {gid} -n 100 -s 4096"),
    pingpong("ib_send_bw -d mlx5_0 -x {gid} -n 100 -s 4096"),
    pingpong("ib_send_bw -d mlx5_0 -x {gid} -n 200 -s 1024 -c UD"),
    pingpong("ib_send_bw -d mlx5_0 -x {gid} -n 100 -s 8192 -c UC"),
    pingpong("ib_write_bw -d mlx5_0 -x {gid} -n 100 -s 8192 -c UC"),
    pingpong("ib_send_lat -d mlx5_0 -x {gid} -n 100 -s 64 -c UD"),
    by_cm("ucmatose -b 10.9.0.2", "ucmatose -s 10.9.0.2"),
    by_cm("ucmatose -b 10.9.0.2 -c 20 -C 20 -S 5000", "ucmatose -s 10.9.0.2 -c 20 -C 20 -S 5000"),
    by_cm("rping -s -a fd00:9::2 -C 10 -v", "rping -c -a fd00:9::2 -C 10 -v"),
    by_cm("ib_send_bw -d mlx5_0 -R -n 100 -s 4096", "ib_send_bw -d mlx5_0 -R -n 100 -s 4096 10.9.0.2"),
    ("mckey -m 239.1.2.3 -b 10.9.0.2", "mckey -m 239.1.2.3 -b 10.9.0.1 -s", JOINED),
]
ATOMIC = [
    pingpong("ib_atomic_bw -d mlx5_0 -x {gid} -n 100 -A FETCH_AND_ADD"),
    pingpong("ib_atomic_bw -d mlx5_0 -x {gid} -n 100 -A CMP_AND_SWAP"),
]


def gid_of(guest, ip):
    """Index of the RoCE v2 GID of an IPv4 address, and the whole table."""
    out = guest.run("ibv_devinfo -v", timeout=60).out
    found = re.search(r"GID\[ *(\d+)\]:\s+::ffff:%s, RoCE v2" % re.escape(ip), out)
    return (int(found.group(1)) if found else None), out


def together(task, server, client, pair, timeout=90):
    """Runs a pair of programs."""
    first, second, ready = pair
    running = server.run_in_background(first, timeout)
    server.run("for i in $(seq 60); do %s && exit 0; sleep 0.2; done" % ready, check=False)
    result = client.run(second, timeout=timeout, check=False)
    other = running.result()
    task.check(second, result.code == 0 and other.code == 0, "%r\n%r" % (result, other))


def between(task, server, client, command, address="10.9.0.2", timeout=150):
    """Runs a program at both ends, at the client with the server's address behind all else."""
    together(task, server, client, pingpong(command, address), timeout)


def table_follows(task, guest, device):
    """GIDs come and go with addresses."""
    guest.run("ip addr add 10.77.0.1/24 dev %s; sleep 1" % device)
    task.check("a GID comes with an address", gid_of(guest, "10.77.0.1")[0] is not None)
    guest.run("ip addr del 10.77.0.1/24 dev %s; sleep 1" % device)
    task.check("and goes with it", gid_of(guest, "10.77.0.1")[0] is None)


def counter(guest, name):
    """A counter of the RoCE device."""
    folder = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/"
    return int(guest.run("cat %s%s" % (folder, name)).out)


def congestion(task, server, client, gid):
    """The wire marks a part of what takes part in ECN: both ends count, and the receiver sends CNPs."""
    # DSCP 26, ECT(0).
    pair = pingpong("ib_write_bw -d mlx5_0 -x %d -n 500 -s 4096 --tclass=106" % gid)
    together(task, server, client, pair)
    marked, sent = (counter(server, name) for name in ("np_ecn_marked_roce_packets", "np_cnp_sent"))
    handled = counter(client, "rp_cnp_handled")
    right = marked > 50 and 0 < sent <= marked and handled > 0
    task.check("marks are counted and answered", right, "%d marked, %d CNPs sent, %d handled" % (marked, sent, handled))


# A pause frame of IEEE 802.3, annex 31B.
PAUSE = """python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("%s", 0))
s.send(bytes.fromhex("0180c2000001") + bytes(6) + bytes.fromhex("88080001ffff") + bytes(42))
'"""


def pause(task, server, client, device):
    """A pause frame is counted by the port that gets it, and goes nowhere."""
    before = linux.statistics(server, device)
    client.run(PAUSE % device)
    client.run("ping -c 1 10.9.0.2")
    after = linux.statistics(server, device)
    names = ("rx_pause_ctrl_phy", "rx_mac_control_phy", "rx_packets_phy")
    more = {name: after[name] - before[name] for name in names}
    right = more["rx_pause_ctrl_phy"] == more["rx_mac_control_phy"] == 1 and more["rx_packets_phy"] >= 2
    task.check("a pause frame is counted", right, repr(more))


def one_profile(task, arguments, profile):
    """All of it between two NICs of a kind."""
    guests, models = [], []
    for number, end in enumerate(wire.pair(task.folder, profile)):
        options = ["--profile", profile, "--wire", "dgram:%s,%s" % end, "--mac", "02:fe:44:0c:e0:0%d" % (number + 1)]
        if arguments.full:
            options += ["--mark", "0.2", "--seed", "5"]
        if number == 0:
            options += ["--pcap", str(task.folder / (profile + ".pcap"))]
        models.append(task.model("%s-%d" % (profile, number), options=options))
        guests.append(task.guest("guest-%s-%d" % (profile, number), models=models[-1].sockets, cpus=1))
    gid = None
    for number, guest in enumerate(guests):
        linux.load(guest, "mlx5_core", "mlx5_ib", "rdma_ucm")
        device = linux.netdev(guest)
        linux.address(guest, device, "10.9.0.%d/24" % (number + 1))
        guest.run("ip addr add fd00:9::%d/64 dev %s nodad" % (number + 1, device))
        guest.run("sleep 2")
        gid, info = gid_of(guest, "10.9.0.%d" % (number + 1))
        task.check("%s: an active RoCE port with its GIDs" % guest.name, gid is not None and "PORT_ACTIVE" in info, info)
    table_follows(task, guests[0], device)
    commands = QUICK + (FULL if arguments.full else [])
    if profile == "connectx5":
        task.check("atomics are offered", "ATOMIC_HCA" in info, info)
    # The recorded ConnectX-4 answers atomics in big-endian order only, which Linux does not offer to programs.
    commands += ATOMIC if arguments.full and "ATOMIC_HCA" in info else []
    for pair in commands:
        together(task, guests[1], guests[0], [part.format(gid=gid) for part in pair])
    if arguments.full:
        congestion(task, guests[1], guests[0], gid)
        pause(task, guests[1], guests[0], device)
    for guest, model in zip(guests, models):
        guest.stop()
        # Only then is all of its capture in the file.
        model.stop()
    rxe.check_frames(task, profile, task.folder / (profile + ".pcap"), 10_000 if arguments.full else 1000)


def body(task, arguments):
    """Linux's mlx5_ib: device, GIDs, pingpong, perftest between two NICs; with --full more NICs and programs."""
    for profile in ("connectx4", "connectx5") if arguments.full else ("minimal",):
        one_profile(task, arguments, profile)


if __name__ == "__main__":
    run.main("linux-ib", body)
