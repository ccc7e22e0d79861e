"""The lab's image: a folder with a Debian in it (QEMU, a kernel, the tools), and what guests boot from it.

    target/lab/debian-HASH/root      the Debian, made by mmdebstrap
    target/lab/debian-HASH/disk.img  the same as an ext4 file system: every guest's root, read-only
    target/lab/boot-HASH/KERNEL/     vmlinuz and initramfs.cpio of each kernel

The first HASH is of the list of packages, the second of that, this file and the guest's own scripts, so a change of
any makes anew what hangs on it. QEMU runs out of the folder through its own dynamic linker: nothing is installed on
the host but mmdebstrap.
"""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess

from . import ending

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[2]
CACHE = TOP / "target" / "lab"
GUEST = HERE.parent / "guest"

SUITE = "trixie"
# QEMU has the vfio-user client from 10.1 on; trixie has 10.0. seabios must be as new as QEMU.
BACKPORTS = ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"]
PACKAGES = [
    "linux-image-amd64",
    "rdma-core",
    "ibverbs-utils",
    "ibverbs-providers",
    "perftest",
    "rdmacm-utils",
    "python3-pyverbs",
    "iproute2",
    "iputils-ping",
    "ethtool",
    "pciutils",
    "kmod",
    "busybox-static",
    "e2fsprogs",
]
# What the initramfs loads to find the root disk and the shared folder.
BOOT_MODULES = ["crc32c_generic", "virtio_pci", "virtio_blk", "ext4", "overlay", "9pnet_virtio", "9p", "virtio_console"]

# Part of newer kernels, without a word of it in their list of built-in modules.
NOT_EVERYWHERE = ["crc32c_generic"]


class ImageError(Exception):
    """The image can't be built; says why."""


def digest(*parts):
    """A name for what is made from `parts`."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(b"%d:" % len(part) + part)
    return whole.hexdigest()[:16]


def _names():
    """Folder names of the Debian and of what boots it."""
    debian = digest(repr((SUITE, BACKPORTS, PACKAGES)).encode())
    own = [path.read_bytes() for path in [HERE / "image.py", *sorted(GUEST.iterdir())]]
    return "debian-" + debian, "boot-" + digest(debian.encode(), *own)


def mirror():
    """The Debian mirror that this machine's own apt uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    try:
        uris = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImageError("apt-get can't say where its packages come from: %s" % error) from error
    main = [uri for uri in uris if "security" not in uri]
    if not main:
        raise ImageError("apt has no Debian archive among its sources; run apt-get update?")
    return main[0]


class Image:
    """A built image."""

    def __init__(self, debian, boot):
        self.root = debian / "root"
        self.disk = debian / "disk.img"
        self.boot = boot
        self.kernels = sorted(p.name for p in boot.iterdir() if p.is_dir())

    def kernel(self, prefix="6.12"):
        """The folder of the newest kernel whose version starts with `prefix`."""
        matching = [k for k in self.kernels if k.startswith(prefix)]
        if not matching:
            raise ImageError("no kernel %s* in the image, there are: %s" % (prefix, ", ".join(self.kernels)))
        return self.boot / matching[-1]

    def program(self, name):
        """The command line that runs a program of the image on the host."""
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        return [
            str(self.root / "lib64/ld-linux-x86-64.so.2"),
            "--library-path",
            str(libraries),
            str(self.root / "usr/bin" / name),
        ]

    def environment(self):
        """What QEMU needs in its environment to find its modules."""
        return {**os.environ, "QEMU_MODULE_DIR": str(self.root / "usr/lib/x86_64-linux-gnu/qemu")}


def build(log=print):
    """The image of the current recipe, built if it is not there. Only one process builds at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    debian, boot = (CACHE / name for name in _names())
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (debian / "complete").exists():
            log("lab: building %s, a minute or two" % debian.name)
            start_anew("debian-*", debian)
            bootstrap(debian, [p + "/" + SUITE + "-backports" for p in BACKPORTS] + PACKAGES)
            for path in ["var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"]:
                shutil.rmtree(debian / "root" / path, ignore_errors=True)
            file_system(debian / "root", debian / "disk.img")
            (debian / "complete").touch()
        if not (boot / "complete").exists():
            start_anew("boot-*", boot)
            for modules in sorted((debian / "root/lib/modules").iterdir()):
                vmlinuz = debian / "root/boot" / ("vmlinuz-" + modules.name)
                boot_folder(debian / "root", vmlinuz, modules, boot / modules.name)
            (boot / "complete").touch()
    return Image(debian, boot)


def start_anew(old, folder):
    """An empty folder in place of those that match."""
    for path in CACHE.glob(old):
        _unmount_below(path)
        shutil.rmtree(path)
    folder.mkdir()


def bootstrap(folder, packages):
    """Makes a Debian with these packages in `folder/root`."""
    if not shutil.which("mmdebstrap"):
        raise ImageError("mmdebstrap is not installed (Debian package mmdebstrap; scripts/setup installs it)")
    uri = mirror()
    command = ["mmdebstrap", "--variant=minbase", "--include=" + ",".join(packages), SUITE, str(folder / "root")]
    command += ["deb %s %s main" % (uri, SUITE), "deb %s %s-backports main" % (uri, SUITE)]
    run(command, folder / "bootstrap.log")
    # Where it may not unmount what it mounted (some containers), it leaves /proc behind.
    _unmount_below(folder)


def _unmount_below(folder):
    with open("/proc/self/mountinfo") as mounts:
        points = [line.split()[4] for line in mounts]
    for point in sorted((p for p in points if p.startswith(str(folder) + "/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=True)


def file_system(tree, out):
    """Makes an ext4 file system of a folder's content."""
    used = int(subprocess.run(["du", "-sm", str(tree)], check=True, capture_output=True, text=True).stdout.split()[0])
    size = "%dM" % (used * 5 // 4 + 128)
    run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(out), size], out.with_suffix(".log"))


def boot_folder(root, vmlinuz, modules, out):
    """What boots a kernel: vmlinuz, and an initramfs of busybox, the boot modules, and the guest's own scripts.

    `modules` is the kernel's /lib/modules/VERSION, or None where it has no modules.
    """
    out.mkdir()
    shutil.copy(vmlinuz, out / "vmlinuz")
    tree = out / "tree"
    for sub in ["bin", "modules", "lab"]:
        (tree / sub).mkdir(parents=True)
    shutil.copy(root / "usr/bin/busybox", tree / "bin/busybox")
    order = []
    for module in BOOT_MODULES if modules else []:
        for path in _module_files(modules, module):
            if path.name not in order:
                order.append(path.name)
                shutil.copy(path, tree / "modules" / path.name)
    (tree / "modules.list").write_text("".join(name + "\n" for name in order))
    for script in GUEST.iterdir():
        shutil.copy(script, tree / "lab" / script.name)
        (tree / "lab" / script.name).chmod(0o755)
    (tree / "init").symlink_to("lab/init")
    archive = "find . | %s cpio -o -H newc >../initramfs.cpio" % (root / "usr/bin/busybox")
    run(["sh", "-c", archive], out / "initramfs.log", cwd=tree)
    shutil.rmtree(tree)


def _module_files(folder, module):
    """The module's file and those that it depends on, in the order in which they load."""
    builtin = {pathlib.Path(line).stem.replace("-", "_") for line in (folder / "modules.builtin").read_text().split()}
    if module.replace("-", "_") in builtin:
        return []
    for line in (folder / "modules.dep").read_text().splitlines():
        name, _, needs = line.partition(":")
        if re.sub(r"\.ko(\.\w+)?$", "", pathlib.Path(name).name).replace("-", "_") == module.replace("-", "_"):
            return [folder / n for n in reversed(needs.split())] + [folder / name]
    if module in NOT_EVERYWHERE:
        return []
    raise ImageError("kernel %s has no module %s" % (folder.name, module))


def run(command, log, cwd=None):
    """Runs a program, its output into a file.

    # Errors
    ImageError with the end of that output.
    """
    with open(log, "wb") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                              preexec_fn=ending.with_this_process).returncode
    if code != 0:
        tail = log.read_text(errors="replace").splitlines()[-20:]
        raise ImageError("%s failed (%s):\n%s" % (command[0], log, "\n".join(tail)))
