"""What runs with Linux's own mlx5 drivers have in common."""

import re
import socket

# Signs of trouble in any kernel.
TROUBLE = re.compile(r"WARNING:|BUG:|Oops|Call Trace|hw csum failure|soft lockup|hard LOCKUP|blocked for more than|"
                     r"general protection fault|Kernel panic|DMAR: .*[Ff]ault|AER: .*[Ee]rror")
# Whose every line has to be known.
WATCHED = re.compile(r"mlx5|infiniband|vfio", re.IGNORECASE)
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
    r"E-Switch: Total vports \d+, per vport: max uc\(\d+\) max mc\(\d+\)$",
    r"E-Switch: (Unload vfs|Enable|Disable): mode\(LEGACY\), nvfs\(0\), (necvfs\(0\), )?active vports\(\d+\)$",
    r"E-Switch: cleanup$",
    r": enabling device \([0-9a-f]{4} -> [0-9a-f]{4}\)$",
    r"(entered|left) promiscuous mode",
    r"S-tagged traffic will be dropped while C-tag vlan stripping is enabled",
]
# What vfio-pci says of any device, and the kernel of VFIO itself.
VFIO = [
    r"VFIO - User Level meta-driver version: ",
    r"vfio-pci \S+: (resetting|reset done)$",
]
# What Soft-RoCE says.
RXE = [
    r"infiniband rxe\d+: (set (active|down)|added \w+)$",
]
# What it says where the capabilities are those of the recorded ConnectX-4 (firmware of 2016).
OLD_FIRMWARE = [
    r"Self loop back prevention is not supported",
    r"invalid device_frequency_khz, aborting HW clock init",
]
PATIENCE = 120
# What a model says when a process's memory goes before its NIC is reset.
UNMAPPED = "pages that the firmware holds were unmapped"
# What it says of the doorbells of a process that has not noticed a reset.
FORGOTTEN = r"\(UnknownUar\): write to UAR 0x\w+ \+ 0x(20|800)$"


def complaints(text, profile, expected=()):
    """Lines of a kernel's messages that speak of trouble, and those of mlx5 and VFIO that a real card would not cause.

    `expected` is what they say of a real card when such a thing happens to it.
    """
    known = ORDINARY + VFIO + RXE + list(expected) + (OLD_FIRMWARE if not profile.startswith("minimal") else [])
    known = re.compile("|".join(known))
    wrong = []
    for line in text.splitlines():
        if TROUBLE.search(line) or WATCHED.search(line) and not known.search(line):
            wrong.append(line)
    return wrong


def refusals(model, expected=()):
    """Commands that the model refused, and rules that the host broke, by its log, without those that are expected."""
    wrong = [line for line in model.said().splitlines() if re.search(r" WARN | ERROR |panicked at", line)]
    return [line for line in wrong if not any(re.search(known, line) for known in expected)]


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
    carrier(guest, device, True)


def carrier(guest, device, up, check=True):
    """Returns when a network device's link is up, or down."""
    return guest.run("for i in $(seq 100); do grep -q %d /sys/class/net/%s/carrier && exit 0; sleep 0.1; done; exit 1"
                     % (up, device), check=check)


def statistics(guest, device):
    """`ethtool -S` as a dictionary."""
    text = guest.run("ethtool -S %s" % device).out
    pairs = (line.strip().split(": ") for line in text.splitlines() if ": " in line)
    return {pair[0]: int(pair[1]) for pair in pairs if pair[-1].isdigit()}
