#!/usr/bin/env python3
"""Records what Linux's mlx5 drivers and rdma-core's VFIO provider say to the model, for scripts/compare-bringup."""

import shutil
import subprocess

import linux_ib
import vfio_provider
from lab import ending, linux, run, wire

# What gives each kind of work request once, in either direction: the recorded NIC is the client of most and the server
# of those whose server does other things. perftest wants five iterations at least.
AS_CLIENT = [
    "ibv_rc_pingpong -g {gid} -n 5 -e",
    "ibv_uc_pingpong -g {gid} -n 5 -e",
    "ibv_ud_pingpong -g {gid} -n 5 -e",
    "ibv_srq_pingpong -g {gid} -n 5 -q 1 -e",
    "ib_write_bw -d mlx5_0 -x {gid} -n 5 -s 4096",
    "ib_write_bw -d mlx5_0 -x {gid} -n 5 -s 4096 --write_with_imm",
    "ib_write_lat -d mlx5_0 -x {gid} -n 5 -s 16",
    "ib_write_lat -d mlx5_0 -x {gid} -n 5 -s 16 -c UC",
    "ib_read_bw -d mlx5_0 -x {gid} -n 5 -s 4096",
    "ib_send_bw -d mlx5_0 -x {gid} -n 5 -s 4096",
    "ib_send_lat -d mlx5_0 -x {gid} -n 5 -s 16",
    "ib_send_lat -d mlx5_0 -x {gid} -n 5 -s 16 -c UD",
    "ib_atomic_bw -d mlx5_0 -x {gid} -n 5 -A FETCH_AND_ADD",
    "ib_atomic_bw -d mlx5_0 -x {gid} -n 5 -A CMP_AND_SWAP",
]
AS_SERVER = [
    "ib_write_bw -d mlx5_0 -x {gid} -n 5 -s 4096 --write_with_imm",
    "ib_read_bw -d mlx5_0 -x {gid} -n 5 -s 4096",
    "ib_atomic_bw -d mlx5_0 -x {gid} -n 5 -A FETCH_AND_ADD",
]
PROFILE = "connectx5"


def others(task, guest, gid):
    """What none of those programs does: invalidation, immediate data in each form, changes of what is up, counters."""
    shutil.copy(run.image.HERE.parent / "share/verbs_once.py", guest.share)
    result = guest.run("python3 /share/verbs_once.py --gid-index %d" % gid, timeout=linux.PATIENCE, check=False)
    task.check("verbs that no program of them uses", result.code == 0, result)
    guest.run("ethtool -S %s" % linux.netdev(guest), timeout=linux.PATIENCE)


def connections(task, guests):
    """rping and mckey: the connection manager's datagrams on QP 1, and a multicast group."""
    for guest in guests:
        guest.run("modprobe rdma_ucm")
    group = ("mckey -m 239.1.2.3 -b 10.9.0.2", "mckey -m 239.1.2.3 -b 10.9.0.1 -s", linux_ib.JOINED)
    linux_ib.together(task, guests[1], guests[0], group)
    server = guests[1].run_in_background("rping -s -a 10.9.0.2 -C 2 -v", 60)
    result = guests[0].run("sleep 2; rping -c -a 10.9.0.2 -C 2 -v", timeout=60, check=False)
    other = server.result()
    task.check("rping", result.code == 0 and other.code == 0, "%r\n%r" % (result, other))


def linux_drivers(task):
    """mlx5_core and mlx5_ib from probe to unload, with each kind of work request; one of the two NICs is recorded."""
    guests = []
    for number, end in enumerate(wire.pair(task.folder, "wire")):
        options = ["--profile", PROFILE, "--wire", "dgram:%s,%s" % end, "--mac", "02:fe:44:0c:e0:0%d" % (number + 1)]
        if number == 0:
            options += ["--record", str(task.folder / "linux.jsonl")]
        model = task.model("nic%d" % number, options=options)
        guests.append(task.guest("guest%d" % number, models=model.sockets, cpus=1))
    for number, guest in enumerate(guests):
        linux.load(guest, "mlx5_core", "mlx5_ib")
        linux.address(guest, linux.netdev(guest), "10.9.0.%d/24" % (number + 1))
        guest.run("sleep 2")
    gid, _ = linux_ib.gid_of(guests[0], "10.9.0.1")
    task.check("a GID", gid is not None)
    for program in AS_CLIENT:
        linux_ib.between(task, guests[1], guests[0], program.format(gid=gid))
    for program in AS_SERVER:
        linux_ib.between(task, guests[0], guests[1], program.format(gid=gid), "10.9.0.1")
    others(task, guests[0], gid)
    connections(task, guests)
    guests[0].run("rmmod rdma_ucm mlx5_ib mlx5_core", timeout=linux.PATIENCE)
    for guest in guests:
        guest.stop()


def provider(task):
    """rdma-core's VFIO provider with its own test of traffic."""
    record = ["--record", str(task.folder / "rdma-core.jsonl")]
    vfio_provider.one_profile(task, PROFILE, ["test_mlx5vfio_rc_qp_send_imm_traffic"], record)


def body(task, arguments):
    """Records Linux's mlx5 drivers and rdma-core's VFIO provider on the model, and compares them with ferroce."""
    linux_drivers(task)
    provider(task)
    if arguments.only_record:
        return
    command = ["cargo", "run", "-q", "-p", "ferroce-compare", "--", "check", "--linux", str(task.folder / "linux.jsonl"),
               "--rdma-core", str(task.folder / "rdma-core.jsonl")]
    compared = subprocess.run(command, capture_output=True, text=True, cwd=run.image.TOP, preexec_fn=ending.with_this_process)
    task.check("no difference to ferroce without a reason", compared.returncode == 0, compared.stdout + compared.stderr)


def options(parser):
    """What this run can be told besides."""
    parser.add_argument("--only-record", action="store_true", help="don't compare: scripts/compare-bringup does it then")


if __name__ == "__main__":
    run.main("record-bringup", body, options)
