#!/usr/bin/env python3
"""ferroce in two guests, each with a NIC behind an emulated IOMMU, on one wire: the demo's transfer between them."""

import re

from lab import linux, wire
from lab.run import as_json, main

NIC = "0000:01:00.0"
FERROCE = "/share/ferroce"
PREPARE = "modprobe vfio-pci; modprobe virtio_net; %s bind %s" % (FERROCE, NIC)


def two_ends(run, options=()):
    """Two models on a cable, and a guest with each, which reach one another by TCP at 10.9.1.1 and 10.9.1.2, too."""
    talk = wire.pair(run.folder, "talk")
    models, guests = [], []
    for number, (cable, ends) in enumerate(zip(wire.pair(run.folder, "cable"), talk)):
        wired = ["--wire", "dgram:%s,%s" % cable, "--mac", "02:fe:44:0c:e0:0%d" % (number + 1)]
        models.append(run.model("nic%d" % number, options=wired + list(options if number == 0 else ())))
        nics = [("52:54:00:09:01:0%d" % (number + 1),) + ends]
        guests.append(run.guest("guest%d" % number, models=models[-1].sockets, nics=nics, iommu=True, cpus=1))
        guests[-1].run(PREPARE)
        linux.address(guests[-1], linux.netdev(guests[-1], "virtio_net"), "10.9.1.%d/24" % (number + 1))
    return models, guests


def body(run, arguments):
    """The demo between two guests; what the sides tell each other goes over virtio-net."""
    _, (sender, receiver) = two_ends(run)
    for gid in ("roce-v2-ipv4", "roce-v2-ipv6", "roce-v1") if arguments.full else ("roce-v2-ipv4",):
        listening = receiver.run_in_background("%s demo --listen 7000 --device %s --gid %s --out /tmp/copy; sha256sum /tmp/copy"
                                               % (FERROCE, NIC, gid), timeout=180)
        listening.wait_for("listening at TCP port")
        size = 64 if arguments.full else 16
        sent = as_json(sender.run("%s demo --json --connect 10.9.1.2:7000 --device %s --gid %s --size %dMiB"
                                  % (FERROCE, NIC, gid, size), timeout=180))
        run.check("%s: %d MiB there and back" % (gid, size), sent["ok"] and sent["bytes"] == size << 20, sent)
        heard = listening.result()
        run.check("%s: the listening side found all right" % gid, heard.code == 0 and "all right" in heard.out, heard)
        copy = re.search(r"([0-9a-f]{64})  /tmp/copy", heard.out)
        run.check("%s: the copy is the file" % gid, copy and copy.group(1) == sent["sha256"], heard)
        run.note("%s, %s" % (sent["bandwidth"], {k: v for k, v in sent["counters"].items() if v}))


if __name__ == "__main__":
    main("vfio_two_guests", body)
