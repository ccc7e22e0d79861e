#!/usr/bin/env python3
"""ferroce on real VFIO: two NIC models behind an emulated Intel IOMMU in one guest, by group or by iommufd.

doctor, devices, bind, info, the demo, unbind; as root and as a user; normal and huge pages; what the device sees of
memory; asynchronous events; SIGKILL under traffic; unbind under the driver's feet; function reset.
"""

import re
import time

from lab import linux
from lab.run import as_json, main

# The addresses that the guest gives the two NICs: behind a root port each.
A, B = "0000:01:00.0", "0000:02:00.0"
FERROCE = "/share/ferroce"
MIB = 1 << 20
# What the kernel says of a user's limit on locked memory that is too low, and of an unbind under a user's feet.
KERNEL_SAYS = [
    r"vfio_pin_pages_remote: RLIMIT_MEMLOCK \(8388608\) exceeded$",
    r"vfio-pci \S+: Relaying device request to user \(#\d+\)$",
]
# The interrupt vector of commands and asynchronous events.
ASYNC = 0
# It may be built into the kernel.
LOAD = "[ -d /sys/bus/pci/drivers/vfio-pci ] || modprobe vfio-pci"
# A user who may use the group files, and whose limit on locked memory is given in KiB.
USER = "ulimit -l %d && setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs "
# From a kill to the NIC being up again, in seconds. On a machine that has its processors to itself it is about one, and the full
# run holds each to the first. The short run has to do on any machine: it holds the quickest to that, and each to the other.
REOPEN, REOPEN_BUSY = 2.0, 20.0


class Way:
    """A way through VFIO: how the NICs are named, and the files that it needs."""

    def __init__(self, name):
        prefix = "" if name == "any" else name + ":"
        self.a, self.b = prefix + A, prefix + B
        self.demo = "%s demo --json --device %s --device %s --size " % (FERROCE, self.a, self.b)
        device = "/sys/bus/pci/devices/$d"
        own = "/dev/vfio/devices/$(ls %s/vfio-dev)" % device
        group = "/dev/vfio/$(basename $(readlink %s/iommu_group))" % device
        give = "for d in %s %s; do chown 1000 %s; done" % (A, B, own if name == "iommufd" else group)
        self.give = give + ("; chown 1000 /dev/iommu" if name == "iommufd" else "")
        # Linux's type 1 maps two pages at 0 for a moment when a group is attached, to learn what the IOMMU can do.
        self.kernels_own = set() if name == "iommufd" else {0, 1}


class Maps:
    """What the models' log says of DMA maps from here on. Of both NICs together: only one is open where it matters."""

    LINE = re.compile(r"(?:^|\] )DMA (?:(map|unmap) 0x([0-9a-f]+) \+ 0x([0-9a-f]+)|maps all gone)", re.M)

    def __init__(self, model):
        self.model = model
        self.start = model.log.stat().st_size

    def read(self):
        """Pages mapped now, pages that were ever mapped, and the number of maps made."""
        with open(self.model.log, "rb") as log:
            log.seek(self.start)
            text = log.read().decode(errors="replace")
        now, ever, count = set(), set(), 0
        for kind, iova, length in self.LINE.findall(text):
            if not kind:
                now.clear()
                continue
            pages = range(int(iova, 16) >> 12, (int(iova, 16) + int(length, 16)) >> 12)
            if kind == "map":
                now.update(pages)
                ever.update(pages)
                count += 1
            else:
                now.difference_update(pages)
        return now, ever, count


def fired(guest, vector):
    """Interrupts that a vector of the first NIC has raised."""
    return int(guest.run("awk '/vfio-msix\\[%d\\].*%s/ {for (i = 2; i <= 3; i++) n += $i} END {print n + 0}' /proc/interrupts"
                         % (vector, A)).out)


def driver_maps(out):
    """The same of the driver's log: pages that it ever mapped."""
    ever = set()
    for iova, length in re.findall(r"DMA map 0x([0-9a-f]+) \+ 0x([0-9a-f]+)", out):
        ever.update(range(int(iova, 16) >> 12, (int(iova, 16) + int(length, 16)) >> 12))
    return ever


def tools(run, guest):
    """doctor, bind and devices from a guest in which nothing is prepared."""
    result = guest.run(FERROCE + " doctor --json", check=False)
    failed = {c["name"]: c for c in as_json(result)["checks"] if c["outcome"] == "failed"}
    if run.kernel != "iommufd":
        run.check("doctor fails before vfio-pci is loaded", result.code == 1 and "vfio-pci" in failed, failed)
    run.check("doctor fails before the NIC is bound", result.code == 1 and "driver" in failed, failed)
    run.check("each failed check has its mend", all(c["mend"] for c in failed.values()), failed)
    if run.kernel != "iommufd":
        result = guest.run("%s bind %s" % (FERROCE, A), check=False)
        run.check("V17 bind says what to load", result.code == 1 and "modprobe vfio-pci" in result.out, result)
    guest.run(LOAD)
    for address in (A, B):
        done = as_json(guest.run("%s bind --json %s" % (FERROCE, address)))
        run.check("V17 bind %s" % address, done["changed"] and done["after"] == "vfio-pci", done)
        done = as_json(guest.run("%s bind --json %s" % (FERROCE, address)))
        run.check("V17 bind again changes nothing", not done["changed"], done)
    result = guest.run("%s bind 0000:00:1f.2" % FERROCE, check=False)
    run.check("V17 a wrong address is told", result.code == 1 and "not a NIC" in result.out, result)
    devices = as_json(guest.run(FERROCE + " devices --json"))["devices"]
    run.check("devices lists both as ready", [d["address"] for d in devices if not d["missing"]] == [A, B], devices)
    result = guest.run(FERROCE + " doctor --json", check=False)
    run.check("doctor is content", result.code == 0, result)


def transfer(run, guest, model, way):
    """info, and the demo's transfer between the two NICs."""
    info = as_json(guest.run("%s info --json %s" % (FERROCE, way.a)))
    run.check("info", info["port"]["state"] == "PORT_ACTIVE" and info["product"] == "ConnectX-4", info)
    result = guest.run("%s report %s /share/report.json" % (FERROCE, way.a), check=False)
    report = (guest.share / "report.json").read_text()
    run.check("report tells of each command, and not of the MAC address",
              result.code == 0 and "INIT_HCA" in report and info["port"]["mac"].replace(":", "") not in report, result)
    maps = Maps(model)
    demo = as_json(guest.run(way.demo + "4MiB"))
    run.check("demo on normal pages", demo["ok"], demo)
    many = maps.read()[2]
    run.note("both up in %.0f ms, %s" % (demo["bring_up_ms"], demo["bandwidth"]))
    command = guest.run("setpci -s %s COMMAND" % A).out
    run.check("bus mastering is off while nobody owns the NIC", int(command, 16) & 4 == 0, command)
    guest.run("echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    maps = Maps(model)
    demo = as_json(guest.run(way.demo + "16MiB"))
    run.check("demo on transparent huge pages", demo["ok"], demo)
    few = maps.read()[2]
    run.check("transparent huge pages take few maps", 0 < few < many / 4, "%d, and %d on normal pages" % (few, many))
    run.note("both up in %.0f ms, %s" % (demo["bring_up_ms"], demo["bandwidth"]))


def user(run, guest, way):
    """A user with the device files and a limit on locked memory."""
    info = "%s info %s" % (FERROCE, way.a)
    result = guest.run(USER % (1 << 18) + info, check=False)
    run.check("a user without permission is told", "no permission for /dev/" in result.out, result)
    result = guest.run(USER % (1 << 18) + "%s doctor %s" % (FERROCE, A), check=False)
    run.check("doctor tells him the mend", result.code == 1 and "chown" in result.out, result)
    guest.run(way.give)
    result = guest.run(USER % 8192 + info, check=False)
    run.check("M17 a limit that is too low is told", result.code == 1 and "limit on locked memory" in result.out, result)
    result = guest.run(USER % (1 << 18) + info, check=False)
    run.check("a user with the device file opens the NIC", result.code == 0, result)
    result = guest.run(USER % (1 << 19) + way.demo + "4MiB", check=False)
    run.check("demo as that user", result.code == 0 and as_json(result)["ok"], result)


def isolation(run, guest, model, way):
    """The device sees what the driver has mapped, and no more."""
    maps = Maps(model)
    steps = "open region=%d file=/share/first drop file=/share/second close" % (8 * MIB)
    holder = guest.run_in_background("RUST_LOG=ferroce::mem=trace %s exercise %s %s" % (FERROCE, way.a, steps))
    holder.wait_for("Region")
    iova, length = (int(n, 16) for n in re.search(r"iova (0x\w+) len (0x\w+)", holder.out).groups())
    region = set(range(iova >> 12, (iova + length) >> 12))
    now, _, count = maps.read()
    run.check("the device reaches the region", region <= now, "%d of %d pages" % (len(region & now), len(region)))
    run.note("%d pages mapped by %d messages" % (len(now), count))
    irqs = guest.run("grep -c 'vfio-msix.*%s' /proc/interrupts" % A, check=False).out
    vectors = guest.run("nproc").out
    run.check("V05 one vector for each processor and one for async events", int(irqs) == int(vectors) + 1, irqs)
    count = fired(guest, ASYNC)
    run.check("commands complete by interrupt", count > 0, count)
    command = guest.run("setpci -s %s COMMAND" % A).out
    run.check("bus mastering is on while the NIC is owned", int(command, 16) & 4, command)
    guest.run("touch /share/first")
    holder.wait_for("Drop")
    now = maps.read()[0]
    run.check("after a region is dropped the device finds no mapping there", not region & now, len(region & now))
    run.check("the rest stays mapped", now)
    guest.run("touch /share/second")
    result = holder.result()
    now, ever, _ = maps.read()
    ours = driver_maps(result.out)
    foreign = ever - ours - way.kernels_own
    run.check("nothing was mapped that the driver did not map", not foreign, sorted(foreign)[:8])
    run.check("all that the driver mapped reached the device", ours <= ever, sorted(ours - ever)[:8])
    run.check("nothing is mapped after the close", result.code == 0 and not now, (result, len(now)))


def all_vectors(run, guest, way):
    """Each interrupt vector that the NIC has announces completions."""
    count = int(re.search(r"MSI-X: Enable. Count=(\d+)", guest.run("lspci -vvs %s" % A).out).group(1))
    steps = "open-wide vectors file=/share/counted close"
    holder = guest.run_in_background("%s exercise %s %s" % (FERROCE, way.a, steps))
    holder.wait_for("announced")
    lines = guest.run("awk '/vfio-msix.*%s/ {n = 0; for (i = 2; i <= 3; i++) n += $i; print n}' /proc/interrupts" % A).out
    fired = [int(line) for line in lines.split()]
    run.check("as many vectors as the NIC has, and each has fired", len(fired) == count and all(fired), fired)
    guest.run("touch /share/counted")
    result = holder.result()
    run.check("completions come by the event of each", "%d announced" % (count - 1) in result.out and result.code == 0, result)


def events(run, guest, way, control):
    """The wire is pulled out of the NIC and put back while a program waits for events."""
    holder = guest.run_in_background("%s exercise %s open event event file=/share/heard close" % (FERROCE, way.a))
    holder.wait_for("Open: is up")
    for order, words in (("down", "port down"), ("up", "port active")):
        before = fired(guest, ASYNC)
        said = linux.tell(control, "port 0 " + order)
        holder.wait_for("Event: port 1: " + words, within=20)
        more = fired(guest, ASYNC) - before
        run.check("a program is told that the wire is %s, by the interrupt for it" % order, said == "ok" and more > 0, (said, more))
    # Its vectors are counted only as long as it has them.
    guest.run("touch /share/heard")
    result = holder.result()
    run.check("and closes the NIC in order", result.code == 0, result)


def huge_pages(run, guest, model, way):
    """Reserved huge pages take few maps."""
    guest.run("echo 48 >/proc/sys/vm/nr_hugepages")
    maps = Maps(model)
    steps = "open huge-region=%d close" % (8 * MIB)
    result = guest.run("%s exercise --huge-firmware-pages %s %s" % (FERROCE, way.a, steps), check=False)
    _, ever, count = maps.read()
    run.check("huge pages", result.code == 0, result)
    run.check("few maps", 0 < count < 700, "%d maps for %d pages" % (count, len(ever)))
    guest.run("echo 0 >/proc/sys/vm/nr_hugepages")


def kill(run, guest, model, way, full):
    """SIGKILL with 100 queue pairs busy, then the NIC is opened again."""
    times = 20 if full else 4
    maps, took, opened = Maps(model), [], []
    for n in range(times):
        busy = guest.run_in_background("exec %s exercise %s open traffic=100" % (FERROCE, way.a))
        busy.wait_for("queue pairs are busy")
        # At another moment of the traffic each time.
        time.sleep(0.05 * (n % 8))
        # The clock is the guest's: what the host needs to hear of it does not count.
        again = guest.run("t0=$(date +%%s%%N); kill -9 $(pidof ferroce); while pidof ferroce >/dev/null; do :; done; "
                          "t1=$(date +%%s%%N); %s exercise %s open close | while read l; do echo $(date +%%s%%N) $l; done; "
                          "echo times $t0 $t1" % (FERROCE, way.a), check=False)
        if busy.result().code != -9:
            run.check("V01 it was killed under traffic", False, busy.result())
        up = re.search(r"^(\d+) Open: is up; (\d+) ms", again.out, re.M)
        start = re.search(r"^times (\d+) (\d+)", again.out, re.M)
        if not run.check("V01 opened again (%d)" % (n + 1), up and start and " pages back" in again.out, again):
            continue
        took.append((int(up.group(1)) - int(start.group(1))) / 1e9)
        opened.append(int(up.group(2)) / 1e3)
    run.check("V01 no memory of the killed processes stays mapped", not maps.read()[0], len(maps.read()[0]))
    run.check("V01 %d kills with 100 queue pairs busy, each opened again in time" % times,
              len(took) == times and min(took) < REOPEN and max(took) < (REOPEN if full else REOPEN_BUSY), took)
    run.note("from the kill to the NIC up: %.2f to %.2f s, median %.2f; of it the opening: %.2f to %.2f s"
             % (min(took), max(took), sorted(took)[times // 2], min(opened), max(opened)))
    demo = as_json(guest.run(way.demo + "16MiB"))
    run.check("V01 demo after the kills", demo["ok"], demo)


def unbind_in_use(run, guest, way):
    """vfio-pci is unbound while a program has the NIC: the program lives, and opens it again later."""
    steps = "open region=65536 gone let-go file=/share/bound open close"
    holder = guest.run_in_background("%s exercise %s %s" % (FERROCE, way.a, steps))
    holder.wait_for("Region")
    done = as_json(guest.run("%s unbind --json %s" % (FERROCE, A), timeout=60))
    run.check("the unbind completes", done["changed"] and done["after"] != "vfio-pci", done)
    holder.wait_for("LetGo")
    run.check("verbs fail with 'device is gone'", re.search(r"Gone: .*device is gone", holder.out), holder.out)
    guest.run("%s bind %s; touch /share/bound" % (FERROCE, A))
    result = holder.result()
    run.check("the same process opens it again", result.code == 0, result)


def unbind_under_traffic(run, guest, way):
    """The same while queue pairs are busy: the program ends by itself, with an error."""
    holder = guest.run_in_background("%s exercise %s open traffic=8" % (FERROCE, way.a))
    holder.wait_for("queue pairs are busy")
    done = as_json(guest.run("%s unbind --json %s" % (FERROCE, A), timeout=60))
    run.check("the unbind under traffic completes", done["changed"] and done["after"] != "vfio-pci", done)
    result = holder.result()
    run.check("the program says that the device is gone, and ends",
              result.code == 1 and "device is gone" in result.out and "panicked" not in result.out, result)
    guest.run("%s bind %s" % (FERROCE, A))


def reset(run, guest, way, control):
    """A function reset under an open NIC: the NIC has forgotten all, the program notices, and opens it again."""
    steps = "open region=65536 reset file=/share/reset gone let-go open region=65536 close"
    holder = guest.run_in_background("%s exercise %s %s" % (FERROCE, way.a, steps))
    holder.wait_for("Reset: ")
    left = linux.tell(control, "state 0")
    run.check("the reset has left nothing in the NIC", "hca=Disabled pages=0" in left, left)
    guest.run("touch /share/reset")
    result = holder.result()
    noticed = re.search(r"Gone: .*reset behind.*completions: 0", result.out)
    run.check("the program notices the reset, and nothing completes any more", noticed, result)
    run.check("and opens the NIC again", result.code == 0, result)


def unbind(run, guest):
    """Back to what it was."""
    for address in (A, B):
        done = as_json(guest.run("%s unbind --json %s" % (FERROCE, address)))
        run.check("unbind %s" % address, done["changed"] and done["after"] is None, done)
        override = guest.run("cat /sys/bus/pci/devices/%s/driver_override" % address).out.strip()
        run.check("driver_override is as it was", override == "(null)", override)
        done = as_json(guest.run("%s unbind --json %s" % (FERROCE, address)))
        run.check("unbind again changes nothing", not done["changed"], done)


def body(run, arguments):
    """ferroce on real VFIO in one guest with two NIC models."""
    way = Way(arguments.way)
    control = run.folder / "control.sock"
    # When a driver is unbound, its user's memory goes while firmware still has it: see below. Who does not know yet that the NIC
    # was reset rings doorbells that it has forgotten.
    run.expect(kernel=KERNEL_SAYS, model=[linux.UNMAPPED, linux.FORGOTTEN])
    model = run.model("nics", nics=2, options=["--control", str(control)])
    guest = run.guest("g0", models=model.sockets, iommu=True, cpus=2, memory="2G")
    tools(run, guest)
    transfer(run, guest, model, way)
    user(run, guest, way)
    isolation(run, guest, model, way)
    all_vectors(run, guest, way)
    events(run, guest, way, control)
    huge_pages(run, guest, model, way)
    kill(run, guest, model, way, arguments.full)
    warnings = linux.refusals(model)
    run.check("the models have nothing to complain of so far", not warnings, warnings[:5])
    # From here on firmware loses memory: Linux lets nobody reset a function that it is about to unbind.
    unbind_in_use(run, guest, way)
    unbind_under_traffic(run, guest, way)
    reset(run, guest, way, control)
    unbind(run, guest)
    complaints = guest.tail("qemu.log", 5)
    run.check("QEMU has nothing to complain of", not complaints, complaints)


def options(parser):
    """What this run can be told."""
    parser.add_argument("--way", choices=["any", "group", "iommufd"], default="any",
                        help="the way through VFIO: by iommufd only where the kernel has it (--kernel iommufd)")


if __name__ == "__main__":
    main("vfio_one_guest", body, options)
