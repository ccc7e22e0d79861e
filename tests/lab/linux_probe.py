#!/usr/bin/env python3
"""Linux's mlx5_core probes the model, lets go of it, and probes it again."""

from lab import linux, run

FAST = ["minimal", "connectx4"]
OTHERS = ["connectx5", "connectx6dx", "vf"]
ADDRESS = "$(basename $(dirname $(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor)))"
DRIVER = "/sys/bus/pci/drivers/mlx5_core"


def quiet(task, guest, model, profile, what):
    """Checks that neither the kernel nor the model has anything to say against the other."""
    dmesg = guest.run("dmesg").out
    wrong = linux.complaints(dmesg, profile)
    task.check("%s: no complaint of Linux's" % what, not wrong, "\n".join(wrong))
    refused = linux.refusals(model)
    task.check("%s: no complaint of the model's" % what, not refused, "\n".join(refused[:10]))
    guest.run("dmesg -C")


def probe(task, guest, model, profile):
    """Loads the driver and looks at what it made."""
    linux.load(guest, "mlx5_core")
    device = linux.netdev(guest)
    info = guest.run("ethtool -i %s" % device).out
    task.check("%s: a netdev" % profile, "driver: mlx5_core" in info, info)
    quiet(task, guest, model, profile, "%s: probe" % profile)


def again(task, guest, model, profile):
    """Unbinds and binds, unloads and loads."""
    guest.run("a=%s; echo $a > %s/unbind; echo $a > %s/bind" % (ADDRESS, DRIVER, DRIVER), timeout=120)
    linux.netdev(guest)
    quiet(task, guest, model, profile, "%s: unbind and bind" % profile)
    guest.run("rmmod mlx5_core && modprobe mlx5_core", timeout=120)
    linux.netdev(guest)
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
