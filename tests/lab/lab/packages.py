"""Debian packages that single runs need beside the image: fetched by apt, kept in target/lab, never in the repository."""

import os
import re
import shutil
import subprocess

from . import image


def source(package, log=print):
    """The unpacked upstream source of a package of the image's suite: a folder, fetched once."""
    return _fetch("source", package, lambda apt: apt("source", "--print-uris", package), r"\S+\.orig\.tar\.\S+",
                  lambda archive, tree: ["tar", "-xf", archive, "-C", tree, "--strip-components=1"], log)


def binary(package, log=print):
    """The unpacked files of a package of the image's suite: a folder, fetched once."""
    return _fetch("binary", package, lambda apt: apt("download", "--print-uris", package), r"\S+\.deb", _unpack_deb, log)


def backported_kernel(log=print):
    """The unpacked files of the newest kernel of the suite's backports, which are spread over several packages."""
    def uris(apt):
        needed = apt("install", "--simulate", "--no-install-recommends", "linux-image-amd64/%s-backports" % image.SUITE)
        return apt("download", "--print-uris", *re.findall(r"^Inst (linux-(?:image|binary|modules|base)-\d\S+)", needed, re.M))

    return _fetch("binary", "linux-backported", uris, r"\S+\.deb", _unpack_deb, log)


def _unpack_deb(archive, tree):
    return ["dpkg-deb", "-x", archive, tree]


def _fetch(kind, package, ask, wanted, unpack, log):
    """Fetches and unpacks the archives with names as `wanted` of those that `ask` makes apt-get name."""
    folder = image.CACHE / ("%s-%s-%s" % (kind, image.SUITE, package))
    if (folder / "complete").exists():
        return folder / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    state, tree = folder / "apt", folder / "tree"
    for path in (state / "lists/partial", state / "cache/archives/partial", tree):
        path.mkdir(parents=True)
    suites = [image.SUITE, image.SUITE + "-backports"]
    sources = state / "sources.list"
    sources.write_text("".join("deb {0} {1} main\ndeb-src {0} {1} main\n".format(image.mirror(), s) for s in suites))
    # As if nothing were installed, so that nothing is left out for being there.
    (state / "status").touch()
    log("lab: fetching the %s package %s" % (kind, package))
    options = ["-o", "Dir::Etc::sourcelist=%s" % sources, "-o", "Dir::Etc::sourceparts=-"]
    options += ["-o", "Dir::State::lists=%s" % (state / "lists"), "-o", "Dir::Cache=%s" % (state / "cache")]
    options += ["-o", "Dir::State::status=%s" % (state / "status"), "-o", "APT::Sandbox::User=root"]
    _run(["apt-get", *options, "update"], folder)
    uris = ask(lambda *command: _run(["apt-get", *options, *command], folder))
    found = re.findall(r"^'(\S+)' (%s) \d+ (\S+)" % wanted, uris, re.M)
    if not found:
        raise image.ImageError("apt names no archive of the %s package %s: %s" % (kind, package, uris[-500:]))
    for uri, name, digest in found:
        _run(["/usr/lib/apt/apt-helper", *options, "download-file", uri, str(folder / name), digest], folder)
        subprocess.run(unpack(str(folder / name), str(tree)), check=True)
        (folder / name).unlink()
    shutil.rmtree(state)
    (folder / "complete").touch()
    return tree


def _run(command, folder):
    """Runs a program of apt's; its output."""
    done = subprocess.run(command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if done.returncode != 0:
        raise image.ImageError("%s: %s" % (" ".join(command), done.stdout[-2000:]))
    return done.stdout
