"""Debian packages that single runs need beside the image: fetched by apt, kept in target/lab, never in the repository."""

import os
import re
import shutil
import subprocess

from . import image


def source(package, log=print):
    """The unpacked upstream source of a package of the image's suite: a folder, fetched once."""
    return _fetch("source", package, ["source", "--print-uris", package], r"\S+\.orig\.tar\.\S+",
                  lambda archive, tree: ["tar", "-xf", archive, "-C", tree, "--strip-components=1"], log)


def binary(package, log=print):
    """The unpacked files of a package of the image's suite: a folder, fetched once."""
    return _fetch("binary", package, ["download", "--print-uris", package], r"\S+\.deb",
                  lambda archive, tree: ["dpkg-deb", "-x", archive, tree], log)


def _fetch(kind, package, command, wanted, unpack, log):
    folder = image.CACHE / ("%s-%s-%s" % (kind, image.SUITE, package))
    if (folder / "complete").exists():
        return folder / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    state, tree = folder / "apt", folder / "tree"
    for path in (state / "lists/partial", state / "cache/archives/partial", tree):
        path.mkdir(parents=True)
    sources = state / "sources.list"
    sources.write_text("deb {0} {1} main\ndeb-src {0} {1} main\n".format(image.mirror(), image.SUITE))
    log("lab: fetching the %s package %s" % (kind, package))
    options = ["-o", "Dir::Etc::sourcelist=%s" % sources, "-o", "Dir::Etc::sourceparts=-"]
    options += ["-o", "Dir::State::lists=%s" % (state / "lists"), "-o", "Dir::Cache=%s" % (state / "cache")]
    options += ["-o", "APT::Sandbox::User=root"]
    _apt(["apt-get", *options, "update"], folder)
    uris = _apt(["apt-get", *options, *command], folder)
    found = re.search(r"^'(\S+)' (%s) \d+ (\S+)" % wanted, uris, re.M)
    if not found:
        raise image.ImageError("apt names no archive of the %s package %s: %s" % (kind, package, uris[-500:]))
    uri, name, digest = found.groups()
    _apt(["/usr/lib/apt/apt-helper", *options, "download-file", uri, str(folder / name), digest], folder)
    subprocess.run(unpack(str(folder / name), str(tree)), check=True)
    shutil.rmtree(state)
    (folder / "complete").touch()
    return tree


def _apt(command, folder):
    """Runs a program of apt's; its output."""
    done = subprocess.run(command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if done.returncode != 0:
        raise image.ImageError("%s: %s" % (" ".join(command), done.stdout[-2000:]))
    return done.stdout
