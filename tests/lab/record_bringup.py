#!/usr/bin/env python3
"""Records what Linux's mlx5 drivers and rdma-core's VFIO provider say to the model, for scripts/compare-bringup."""

import re

import linux_ib
import vfio_provider
from lab import linux, run, wire

# What gives each kind of work request once. perftest wants five iterations at least.
PROGRAMS = [
    "ibv_rc_pingpong -g {gid} -n 5 -e",
    "ibv_srq_pingpong -g {gid} -n 5 -q 1",
    "ib_write_bw -d mlx5_0 -x {gid} -n 5 -s 4096",
    "ib_write_bw -d mlx5_0 -x {gid} -n 5 -s 4096 --write_with_imm",
    "ib_write_lat -d mlx5_0 -x {gid} -n 5 -s 16",
    "ib_read_bw -d mlx5_0 -x {gid} -n 5 -s 4096",
    "ib_send_bw -d mlx5_0 -x {gid} -n 5 -s 4096",
    "ib_send_lat -d mlx5_0 -x {gid} -n 5 -s 16",
    "ib_atomic_bw -d mlx5_0 -x {gid} -n 5 -A FETCH_AND_ADD",
    "ib_atomic_bw -d mlx5_0 -x {gid} -n 5 -A CMP_AND_SWAP",
]
PROFILE = "connectx5"
DUMPED = re.compile(r"mlx5_core .*?(cmd\[\d+\]: .*|[0-9a-f]{3}: [0-9a-f]{8} .*)$")


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
    for program in PROGRAMS:
        linux_ib.between(task, guests[1], guests[0], program.format(gid=gid))
    guests[0].run("rmmod mlx5_ib mlx5_core", timeout=linux.PATIENCE)
    for guest in guests:
        guest.stop()


def provider(task):
    """rdma-core's VFIO provider with its own test of traffic."""
    record = ["--record", str(task.folder / "rdma-core.jsonl")]
    vfio_provider.one_profile(task, PROFILE, ["test_mlx5vfio_rc_qp_send_imm_traffic"], record)


def body(task, arguments):
    """Records Linux's mlx5 drivers and rdma-core's VFIO provider on the model: linux.jsonl, rdma-core.jsonl."""
    linux_drivers(task)
    provider(task)


if __name__ == "__main__":
    run.main("record-bringup", body)
