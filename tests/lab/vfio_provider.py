#!/usr/bin/env python3
"""rdma-core's user-space mlx5 driver over VFIO (Debian's libmlx5) on the model: its own pyverbs tests for that."""

import shutil

from lab import linux, packages, run

NIC = "0000:01:00.0"
BIND = "modprobe vfio-pci && echo vfio-pci >/sys/bus/pci/devices/{nic}/driver_override && echo {nic} >/sys/bus/pci/drivers_probe"
MAC = "02:fe:44:0c:e0:01"
TESTS = "cd /share/rdma-core && PYTHONPATH=.:tests:/share/scapy python3 /share/vfio_roce.py {mac} {test} --pci-dev {nic}"


TRAFFIC = ("test_mlx5vfio_rc_qp_send_imm_traffic", "test_mlx5vfio_async_event")


def one_profile(task, profile, tests=TRAFFIC, options=()):
    """The tests on a NIC of a kind."""
    tree = packages.source("rdma-core", task.note)
    scapy = packages.binary("python3-scapy", task.note)
    # The provider leaves pages to the reset that comes when its files close, and takes their maps away before.
    task.expect(model=[linux.UNMAPPED])
    model = task.model(profile, options=["--profile", profile, "--mac", MAC, *options])
    guest = task.guest("guest-" + profile, models=model.sockets, iommu=True)
    shutil.copytree(tree / "tests", guest.share / "rdma-core/tests", dirs_exist_ok=True)
    shutil.copy(run.image.HERE.parent / "share/vfio_roce.py", guest.share)
    # The tests declare the firmware's layouts with scapy.
    shutil.copytree(scapy / "usr/lib/python3/dist-packages/scapy", guest.share / "scapy/scapy", dirs_exist_ok=True)
    guest.run(BIND.format(nic=NIC))
    for test in tests:
        result = guest.run(TESTS.format(nic=NIC, mac=MAC, test=test), timeout=300, check=False)
        right = result.code == 0 and "OK" in result.out and "skipped" not in result.out
        task.check("%s: %s" % (profile, test), right, result)
    guest.stop()


def body(task, arguments):
    """rdma-core's mlx5 VFIO provider opens the model; Debian's pyverbs tests of it pass."""
    for profile in ("connectx5", "minimal") if arguments.full else ("connectx5",):
        one_profile(task, profile)


if __name__ == "__main__":
    run.main("vfio-provider", body)
