#!/usr/bin/env python3
"""Linux's mlx5_core probes the model, lets go of it, and probes it again."""

import json

from lab import linux, run

FAST = ["minimal", "connectx4"]
OTHERS = ["connectx5", "connectx6dx", "vf", "minimal-vf"]
ADDRESS = "$(basename $(dirname $(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor)))"
REPORTERS = {"fw", "fw_fatal", "tx", "rx"}
DRIVER = "/sys/bus/pci/drivers/mlx5_core"


def quiet(task, guest, model, profile, what):
    """Checks that neither the kernel nor the model has anything to say against the other."""
    dmesg = guest.run("dmesg").out
    wrong = linux.complaints(dmesg, profile)
    task.check("%s: no complaint of Linux's" % what, not wrong, "\n".join(wrong))
    refused = linux.refusals(model)
    task.check("%s: no complaint of the model's" % what, not refused, "\n".join(refused[:10]))
    guest.run("dmesg -C")


def healthy(task, guest, what):
    """Checks that each of the driver's health reporters is content and has been since the probe."""
    found = json.loads(guest.run("devlink -j health show").out)["health"]
    all_of_them = [(device, one) for device, reporters in found.items() for one in reporters]
    names = {one["reporter"] for _, one in all_of_them}
    task.check("%s: devlink has reporters of firmware and of both queues" % what, REPORTERS <= names, names)
    wrong = [one for one in all_of_them if (one[1]["state"], one[1]["error"], one[1]["recover"]) != ("healthy", 0, 0)]
    task.check("%s: devlink finds nothing unhealthy" % what, not wrong, wrong)


def probe(task, guest, model, profile):
    """Loads the driver and looks at what it made."""
    linux.load(guest, "mlx5_core")
    device = linux.netdev(guest)
    info = guest.run("ethtool -i %s" % device).out
    task.check("%s: a netdev" % profile, "driver: mlx5_core" in info, info)
    healthy(task, guest, "%s: probe" % profile)
    quiet(task, guest, model, profile, "%s: probe" % profile)


def again(task, guest, model, profile):
    """Unbinds and binds, unloads and loads."""
    guest.run("a=%s; echo $a > %s/unbind; echo $a > %s/bind" % (ADDRESS, DRIVER, DRIVER), timeout=120)
    linux.netdev(guest)
    healthy(task, guest, "%s: unbind and bind" % profile)
    quiet(task, guest, model, profile, "%s: unbind and bind" % profile)
    guest.run("rmmod mlx5_core && modprobe mlx5_core", timeout=120)
    linux.netdev(guest)
    healthy(task, guest, "%s: unload and load" % profile)
    quiet(task, guest, model, profile, "%s: unload and load" % profile)


def reboot(task, guest, model, profile):
    """Restarts the guest while it has the driver; the model goes on."""
    guest.reboot()
    task.note("%s has rebooted" % guest.name)
    probe(task, guest, model, profile)


def one_profile(task, profile):
    """All of it on one kind of NIC."""
    model = task.model(profile, options=["--profile", profile])
    guest = task.guest("guest-" + profile, models=model.sockets, cpus=2, reboots=True)
    task.check("%s: lspci knows it" % profile, "Mellanox" in guest.run("lspci -d 15b3:").out)
    probe(task, guest, model, profile)
    again(task, guest, model, profile)
    reboot(task, guest, model, profile)
    guest.run("rmmod mlx5_core", timeout=120)
    quiet(task, guest, model, profile, "%s: unload" % profile)
    guest.stop()


def body(task, arguments):
    """Linux's mlx5_core on the model: probe, unbind and bind, unload and load, reboot; --full: on each kind of NIC."""
    for profile in FAST + (OTHERS if arguments.full else []):
        one_profile(task, profile)


if __name__ == "__main__":
    run.main("linux-probe", body)
