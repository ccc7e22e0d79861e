"""What runs with Linux's own mlx5 drivers have in common."""

import re
import socket

# What the driver says of any card.
ORDINARY = [
    r"firmware version: ",
    r"Gb/s available PCIe bandwidth",
    r"PTM is not supported by PCIe",
    # The 7.3 kernel makes the buffer at the first counter, with that word.
    r"Flow counters bulk query buffer size increased",
    r"MLX5E: StrdRq\(",
    r": Link (up|down)$",
    r": renamed from ",
    r": Port: \d+ Link (ACTIVE|DOWN)",
    # Registers of a vfio-user device are written word by word, so this is right.
    r"mlx5_core_test_wc.*Write combining is not supported",
    r"E-Switch: ",
    r"enabling device",
    r"(entered|left) promiscuous mode",
    r"S-tagged traffic will be dropped while C-tag vlan stripping is enabled",
]
# What it says where the capabilities are those of the recorded ConnectX-4 (firmware of 2016).
OLD_FIRMWARE = [
    r"Self loop back prevention is not supported",
    r"invalid device_frequency_khz, aborting HW clock init",
]
PATIENCE = 120


def complaints(dmesg, profile, expected=()):
    """Lines of mlx5 that a real card would not cause, and whatever warns of the kernel itself.

    `expected` is what it says of a real card when such a thing happens to it.
    """
    known = ORDINARY + list(expected) + (OLD_FIRMWARE if profile != "minimal" else [])
    wrong = []
    for line in dmesg.splitlines():
        if re.search(r"WARNING:|BUG:|Oops|Call Trace|hw csum failure|soft lockup|hung task", line):
            wrong.append(line)
        elif re.search(r"mlx5|infiniband", line) and not any(re.search(known_line, line) for known_line in known):
            wrong.append(line)
    return wrong


def refusals(model):
    """Commands that the model refused, and rules that the host broke, by its log."""
    text = model.log.read_text(errors="replace")
    return [line for line in text.splitlines() if " WARN " in line or " ERROR " in line]


def tell(path, command):
    """Tells the models something by their control socket; what they answer."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(path))
        control.sendall((command + "\n").encode())
        return control.makefile().readline().strip()


def load(guest, *modules):
    """Loads Linux's drivers."""
    for module in modules or ("mlx5_core", "mlx5_ib"):
        guest.run("modprobe " + module, timeout=PATIENCE)


def netdev(guest, driver="mlx5_core"):
    """Name of the guest's network device of that driver; waits for it."""
    command = (
        "for i in $(seq 100); do for n in /sys/class/net/*; do d=$(readlink $n/device/driver); "
        "[ \"${d##*/}\" = %s ] && echo ${n##*/} && exit 0; done; sleep 0.1; done; exit 1" % driver
    )
    return guest.run(command, timeout=PATIENCE).out.strip()


def address(guest, device, ip):
    """Brings a network device up with an address; returns when its link is up."""
    guest.run("ip link set %s up && ip addr add %s dev %s" % (device, ip, device))
    guest.run("for i in $(seq 100); do grep -q 1 /sys/class/net/%s/carrier && exit 0; sleep 0.1; done; exit 1" % device)


def statistics(guest, device):
    """`ethtool -S` as a dictionary."""
    text = guest.run("ethtool -S %s" % device).out
    pairs = (line.strip().split(": ") for line in text.splitlines() if ": " in line)
    return {pair[0]: int(pair[1]) for pair in pairs if pair[-1].isdigit()}
