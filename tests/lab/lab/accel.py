"""Which accelerator guests run under: TCG, or KVM where a guest has really booted under it.

/dev/kvm can be there and not carry an ordinary guest (nested virtualisation without all of it), so its being there says
nothing.
"""

import os
import pathlib

from . import qemu

# A guest boots in less, or is stuck.
PATIENCE = 60


def choose(image, wanted, folder, log):
    """`tcg`, or with `auto` as `wanted` `kvm` if a probe guest boots under it."""
    if wanted == "tcg" or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    known = image.boot / "kvm"
    if not known.exists():
        known.write_text("boots" if boots(image, pathlib.Path(folder)) else "does not boot")
    log("a probe guest %s under KVM" % known.read_text())
    return "kvm" if known.read_text() == "boots" else "tcg"


def boots(image, folder):
    """Whether a guest comes up under KVM and runs a command."""
    try:
        with qemu.Guest(image, folder, "kvm-probe", accel="kvm", cpus=1) as guest:
            guest.wait_ready(PATIENCE)
            return guest.run("echo alive", timeout=10).out == "alive\n"
    except (qemu.GuestError, OSError):
        return False
