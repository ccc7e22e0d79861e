"""The kernels that guests can have beside the image's own: built or fetched when a run first asks for one.

    target/lab/kernel-NAME-HASH/vmlinuz
    target/lab/kernel-NAME-HASH/modules.img   its /lib/modules as an ext4 file system, where it has modules

HASH is of all that the kernel is made from but the versions of the Debian packages, so a change of the recipe or of the
configuration makes it anew.
"""

import fcntl
import os
import pathlib
import shutil

from . import image, packages

CONFIG = image.HERE.parent / "kernel/iommufd.config"
# What builds a kernel, in a Debian of its own.
BUILD_TOOLS = ["gcc", "libc6-dev", "make", "flex", "bison", "bc", "libelf-dev", "xz-utils", "linux-source-6.12"]
BUILD = """
set -e
mkdir /build && cd /build
tar -xf /usr/src/linux-source-6.12.tar.xz --strip-components=1
cp /lab.config lab.config
make -s ARCH=x86_64 KCONFIG_ALLCONFIG=lab.config allnoconfig
# A name that is misspelt, or that lacks what it depends on, is left out without a word.
for line in $(grep '^CONFIG_[A-Z0-9_]*=y' lab.config); do
    grep -qx "$line" .config || { echo "the configuration does not take $line"; exit 1; }
done
make -s -j"$(nproc)" bzImage
make -s kernelrelease >/release
cp arch/x86/boot/bzImage /vmlinuz
"""


class Kernel:
    """What a guest boots: a folder with vmlinuz and initramfs.cpio, and a disk with modules, or None."""

    def __init__(self, folder, modules=None):
        self.folder = folder
        self.modules = modules


def find(built, name, log=print):
    """A kernel by its name: `iommufd`, `backports`, or the first figures of a version of the image's own."""
    if name not in MAKERS:
        return Kernel(built.kernel(name))
    recipe, make = MAKERS[name]
    folder = image.CACHE / ("kernel-%s-%s" % (name, image.digest(repr(recipe()).encode())))
    with open(image.CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            image.start_anew("kernel-%s-*" % name, folder)
            make(built, folder, log)
            (folder / "complete").touch()
        version = (folder / "version").read_text().strip()
        modules = folder / "modules.img"
        boot = built.boot / name
        if not (boot / "initramfs.cpio").exists():
            shutil.rmtree(boot, ignore_errors=True)
            tree = folder / "modules" / version
            image.boot_folder(built.root, folder / "vmlinuz", tree if tree.exists() else None, boot)
    return Kernel(boot, modules if modules.exists() else None)


def _build_iommufd(_built, folder, log):
    log("lab: building a kernel with iommufd in %s, some ten minutes" % folder.name)
    root = folder / "root"
    image.bootstrap(folder, BUILD_TOOLS)
    shutil.copy(CONFIG, root / "lab.config")
    image.run(["nice", "chroot", str(root), "/bin/sh", "-c", BUILD], folder / "build.log")
    shutil.copy(root / "vmlinuz", folder / "vmlinuz")
    shutil.copy(root / "release", folder / "version")
    shutil.rmtree(root)


def _unpack_backports(built, folder, _log):
    tree = packages.backported_kernel(_log)
    (version,) = os.listdir(tree / "usr/lib/modules")
    shutil.copytree(tree / "usr/lib/modules" / version, folder / "modules" / version, symlinks=True)
    shutil.move(folder / "modules" / version / "vmlinuz", folder / "vmlinuz")
    # depmod looks for lib/modules below its folder.
    (folder / "lib").symlink_to(".")
    image.run([*built.program("../sbin/depmod"), "-b", str(folder), version], folder / "depmod.log")
    image.file_system(folder / "modules", folder / "modules.img")
    (folder / "version").write_text(version)


MAKERS = {
    "iommufd": (lambda: (image.SUITE, BUILD_TOOLS, BUILD, CONFIG.read_text()), _build_iommufd),
    "backports": (lambda: (image.SUITE,), _unpack_backports),
}
