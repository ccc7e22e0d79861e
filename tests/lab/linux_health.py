#!/usr/bin/env python3
"""A fatal firmware error under Linux's mlx5_core: its recovery runs to its end, and the netdev works again."""

from lab import linux, run

# Where the guest sees the two NICs, which are on one cable.
A, B = "0000:01:00.0", "0000:02:00.0"
HEALTH = "devlink health %s pci/{} reporter fw_fatal".format(A)
NETDEV = "$(basename $(ls -d /sys/bus/pci/devices/%s/net/*))"
# What the driver says of a real card whose firmware fails and starts again.
RECOVERY = [
    r"mlx5_fw_fatal_reporter_err_work|mlx5_health_try_recover|mlx5_error_sw_reset|mlx5_handle_bad_state|reset_fw_if_needed",
    r"print_health_info|Health issue observed, firmware internal error",
    r"assert_var\[\d\]|assert_exit_ptr|assert_callra|fw_ver|time \d|hw_id|irisc_index|synd 0x1|ext_synd|raw fw_ver",
    r"poll_health.*Fatal error 5 detected|device's health compromised - reached miss count",
    r"handling bad device here|starting health recovery flow|health recovery succeeded",
    r"starting teardown|Expected to see disabled NIC but it is full driver|Issuing FW Reset|Skipping wait for vf pages stage|interface is down, NOP",
    r"mlx5_pci_slot_reset|wait vital counter value",
]
# Within a minute of a recovery the kernel does not start another by itself.
DONE = "for i in $(seq 200); do dmesg | grep -qE '%s' && break; sleep 0.2; done"


def connect(guest):
    """The second netdev gets a network namespace of its own and an address."""
    guest.run("ip netns add other; ip link set %s netns other" % (NETDEV % B))
    guest.run("ip netns exec other sh -c 'mount -t sysfs none /sys; n=%s; ip link set $n up; ip addr add 10.9.0.2/24 dev $n'"
              % (NETDEV % B))


def ping(task, guest, what):
    """The first netdev, which is as after a probe, reaches the second."""
    guest.run("for i in $(seq 100); do [ -d /sys/bus/pci/devices/%s/net ] && break; sleep 0.1; done" % A)
    linux.address(guest, guest.run("echo " + NETDEV % A).out.strip(), "10.9.0.1/24")
    out = guest.run("for i in $(seq 20); do ping -c 1 -W 1 10.9.0.2 && break; sleep 0.5; done; ping -c 5 -i 0.2 10.9.0.2",
                    check=False).out
    task.check(what, "5 received, 0% packet loss" in out, out)


def spoken(task, guest, what):
    """The kernel says what it says of a real card."""
    wrong = linux.complaints(guest.run("dmesg").out, "connectx5", RECOVERY)
    task.check("%s: it says what it says of a real card" % what, not wrong, "\n".join(wrong))
    guest.run("dmesg -C")


def body(task, _arguments):
    """A fatal firmware error injected into the model, and mlx5_core's recovery."""
    control = task.folder / "control.sock"
    task.expect(kernel=RECOVERY)
    model = task.model("nics", nics=2, options=["--profile", "connectx5", "--control", str(control)])
    guest = task.guest("guest", models=model.sockets)
    linux.load(guest, "mlx5_core")
    linux.netdev(guest)
    connect(guest)
    ping(task, guest, "ping before")
    wrong = linux.complaints(guest.run("dmesg").out, "connectx5")
    task.check("no complaint before", not wrong, "\n".join(wrong))
    guest.run("dmesg -C")

    task.check("a fatal error", linux.tell(control, "fatal 0").startswith("ok"))
    guest.run(DONE % "health recovery (succeeded|failed)", timeout=60)
    task.check("mlx5_core recovers by itself", "health recovery succeeded" in guest.run("dmesg").out)
    spoken(task, guest, "recovery")
    ping(task, guest, "ping after it")
    shown = guest.run(HEALTH % "show").out
    task.check("devlink: healthy, recovered once", "state healthy" in shown and "recover 1" in shown, shown)

    task.check("another fatal error", linux.tell(control, "fatal 0").startswith("ok"))
    guest.run(DONE % "Driver is in error state", timeout=60)
    shown = guest.run(HEALTH % "show").out
    task.check("devlink: an error, no second recovery within a minute", "state error" in shown, shown)
    guest.run(HEALTH % "recover", timeout=60)
    spoken(task, guest, "recovery by devlink")
    ping(task, guest, "ping after that")
    shown = guest.run(HEALTH % "show").out
    task.check("devlink: healthy, recovered twice", "state healthy" in shown and "recover 2" in shown, shown)

    shown = guest.run(HEALTH % "dump show" + " >/tmp/dump; wc -c </tmp/dump; grep -c crdump /tmp/dump", check=False)
    task.check("devlink: a dump of the device's registers", shown.code == 0, shown)
    guest.run("rmmod mlx5_core", timeout=120)


if __name__ == "__main__":
    run.main("linux_health", body)
