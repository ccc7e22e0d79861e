#!/usr/bin/env python3
"""A NIC's process is killed under ferroce in a guest, and started again: programs are told, and open the NIC again.

QEMU is connected by a relay (lab/relay.py), as it does not survive the end of its device's process. To the guest the
NIC is like one that has left its bus for a while: its registers read as ones.
"""

import re
import time

from lab import linux, wire
from lab.run import Failed, as_json, main

A, B = "0000:01:00.0", "0000:02:00.0"
FERROCE = "/share/ferroce"
EXERCISE = "%s exercise %s " % (FERROCE, A)
# The demo's sides, a process each.
LISTEN = "%s demo --listen 7000 --device %s" % (FERROCE, B)
CONNECT = "%s demo -v --json --connect 127.0.0.1:7000 --device %s --size " % (FERROCE, A)
GONE = "device is gone"
# The same as the exercise's step `gone` says it when it has tried all kinds of verbs.
NOTHING_WORKS = GONE + ".*completions: 0"
# Within which a program is told, in seconds: health is looked at every two.
TOLD = 20
# Until its process has ended after the NIC is back: the kernel looks for the NIC at ever longer intervals.
ENDED = 60
# The same while the NIC stays away: the kernel waits 60 s for its reset and resets the bus then (Linux
# PCIE_RESET_READY_POLL_MS).
ENDED_WITHOUT = 200
# For this long the demo's sides wait for what the other one has to tell.
DEMO_WAITS = 60
# What QEMU says where the guest's kernel resets the bus of a NIC that is away.
QEMU_SAYS = "Unable to power on device, stuck in D3|reset reply error 5|invalid PCI interrupt pin 255"
# What the guest's kernel says of a NIC that is away, or comes back without its BARs.
KERNEL_SAYS = [
    r"vfio_bar_restore: reset recovery - restoring BARs$",
    r"Device config space inaccessible; unable to save state$",
    r"timed out waiting for pending transaction; performing function level reset anyway$",
    r": (not )?ready \d+ms after (FLR|bus reset)(; waiting|; giving up)?$",
    r"Unable to change power state from D0 to D3hot, device inaccessible$",
    r"Unable to change power state from D3cold to D0, device inaccessible$",
]
# In the middle of which of a bring-up's writes to registers the model is killed: commands, most of them.
BRING_UP = (1, 8, 40)


class Nics:
    """Two NICs on a cable, a process each; the first is behind a relay."""

    def __init__(self, run):
        self.run = run
        ends = wire.pair(run.folder, "cable")
        self.a, self.b = (run.model(name, options=["--wire", "dgram:%s,%s" % end, "--mac", "02:fe:44:0c:e0:0%d" % n])
                          for n, (name, end) in enumerate(zip("ab", ends), 1))
        self.relay = run.relay("relay", self.a.sockets[0])
        self.sockets = [self.relay.socket, self.b.sockets[0]]
        self.killed = 0

    def kill(self):
        """The first NIC's process is killed."""
        self.killed = time.monotonic()
        self.a.kill()
        if not self.relay.wait(False, 10):
            raise Failed("the relay has not noticed the model's end")

    def again(self):
        """It is started again, and has what QEMU gave the last one."""
        self.a.start()
        if not self.relay.wait(True, 30):
            raise Failed("the new model has not what the guest has set up:\n" + self.relay.tail())
        self.run.note("a new model, with %d DMA maps and %d eventfds of before" % self.relay.replayed)

    def since(self):
        """Seconds since the kill."""
        return time.monotonic() - self.killed


def works(run, guest):
    """The demo's transfer between the two NICs."""
    listening = listen(guest)
    sent = guest.run(CONNECT + "4MiB", check=False)
    run.check("the demo's transfer", sent.code == 0 and as_json(sent)["ok"], sent)
    heard = listening.result()
    run.check("the other side found all right", heard.code == 0 and "all right" in heard.out, heard)


def listen(guest):
    """The demo's side on the NIC that stays."""
    listening = guest.run_in_background(LISTEN)
    listening.wait_for("listening at TCP port")
    return listening


def told(run, nics, program, what):
    """A program says in time that the device is gone."""
    program.wait_for(GONE, within=TOLD)
    run.note("told after %.1f s" % nics.since())
    run.check("%s: told that the device is gone" % what, GONE in program.out, program.out)


def ends(run, nics, program, what, limit):
    """A program ends by itself, with an error and in time."""
    back = time.monotonic()
    result = program.result()
    took = time.monotonic() - back
    run.check("%s: ends with an error" % what, result.code == 1 and GONE in result.out and "panicked" not in result.out, result)
    run.check("%s: ends in time" % what, took < limit, "%.0f s" % took)
    run.note("ended %.1f s after the kill" % nics.since())


def under_traffic(run, guest, nics):
    """Queue pairs are busy."""
    program = guest.run_in_background(EXERCISE + "open traffic=8", timeout=300)
    program.wait_for("queue pairs are busy")
    nics.kill()
    told(run, nics, program, "traffic")
    nics.again()
    ends(run, nics, program, "traffic", ENDED)
    works(run, guest)


def under_the_demo(run, guest, nics):
    """A transfer between the two NICs."""
    listening = listen(guest)
    program = guest.run_in_background(CONNECT + "1GiB", timeout=300)
    program.wait_for("%s: ConnectX-4 with firmware" % A)
    # Somewhere in the transfer.
    time.sleep(1)
    nics.kill()
    told(run, nics, program, "the demo")
    nics.again()
    ends(run, nics, program, "the demo", ENDED + DEMO_WAITS)
    heard = listening.result()
    run.check("the demo: the other side ends with an error", heard.code == 1 and "panicked" not in heard.out, heard)
    works(run, guest)


def the_same_process(run, guest, nics):
    """A process that looks for events is told, goes on, and opens the NIC again when it is back."""
    steps = "open region=1048576 gone file=/share/back let-go open region=1048576 close"
    program = guest.run_in_background(EXERCISE + steps, timeout=300)
    program.wait_for("Region")
    nics.kill()
    told(run, nics, program, "a process that waits for events")
    seen = guest.run("setpci -s %s VENDOR_ID; %s info %s" % (A, FERROCE, B)).out
    run.check("the NIC has left its bus, and the other works on", seen.startswith("ffff") and "PORT_ACTIVE" in seen, seen)
    nics.again()
    run.check("the new model has the memory that the process holds", nics.relay.replayed[0] > 256, nics.relay.replayed)
    guest.run("touch /share/back")
    result = program.result()
    run.check("verbs fail, and nothing completes", re.search(NOTHING_WORKS, result.out), result)
    run.check("the same process opens it again", result.code == 0 and "Close: " in result.out, result)
    guest.run("rm /share/back")


def unnoticed(run, guest, nics):
    """The NIC is back before anybody looked: it is not the one that was brought up. The process sleeps meanwhile, and the NIC
    answers at its addresses again."""
    steps = "open region=1048576 gone let-go open close"
    program = guest.run_in_background(EXERCISE + steps, timeout=300)
    program.wait_for("Region")
    command = guest.run("kill -STOP $(pidof ferroce); setpci -s %s COMMAND" % A).out.strip()
    nics.kill()
    nics.again()
    guest.run("setpci -s %s COMMAND=%s; kill -CONT $(pidof ferroce)" % (A, command))
    told(run, nics, program, "back before anybody looked")
    result = program.result()
    run.check("back before anybody looked: the process sees that it is another", "reset behind our back" in result.out, result)
    run.check("back before anybody looked: the same process opens it again", result.code == 0, result)


def bring_up(run, guest, nics):
    """The model is killed in the middle of a bring-up."""
    for count in BRING_UP:
        what = "killed at write %d of a bring-up" % count
        nics.killed = 0
        nics.relay.after_writes(count, nics.a.kill)
        program = guest.run_in_background(EXERCISE + "open close", timeout=300)
        if not nics.relay.wait(False, 60):
            raise Failed("%s: it was not" % what)
        nics.killed = time.monotonic()
        time.sleep(TOLD / 4)
        nics.again()
        ends(run, nics, program, what, ENDED)
    works(run, guest)


def stays_away(run, guest, nics):
    """The NIC does not come back: the process ends all the same, and the next one is told."""
    program = guest.run_in_background(EXERCISE + "open traffic=8", timeout=300)
    program.wait_for("queue pairs are busy")
    nics.kill()
    told(run, nics, program, "for good")
    ends(run, nics, program, "for good", ENDED_WITHOUT)
    started = time.monotonic()
    result = guest.run("%s info %s" % (FERROCE, A), check=False, timeout=300)
    run.check("a NIC that is away can't be opened, with an error", result.code == 1, result)
    run.note("%s (%.1f s)" % (result.out.strip(), time.monotonic() - started))
    nics.again()
    works(run, guest)


def body(run, _arguments):
    """A NIC's process is killed under traffic, while it is held and in bring-up, and started again."""
    run.expect(kernel=KERNEL_SAYS, model=[linux.FORGOTTEN])
    nics = Nics(run)
    guest = run.guest("g0", models=nics.sockets, iommu=True, cpus=2, memory="2G")
    # It may be built into the kernel.
    guest.run("[ -d /sys/bus/pci/drivers/vfio-pci ] || modprobe vfio-pci; %s bind %s; %s bind %s" % (FERROCE, A, FERROCE, B))
    works(run, guest)
    the_same_process(run, guest, nics)
    unnoticed(run, guest, nics)
    under_traffic(run, guest, nics)
    under_the_demo(run, guest, nics)
    bring_up(run, guest, nics)
    stays_away(run, guest, nics)
    said = [line for line in guest.tail("qemu.log", 1000).splitlines() if not re.search(QEMU_SAYS, line)]
    run.check("QEMU lives and has nothing else to complain of", guest.process.poll() is None and not said, said[:5])


if __name__ == "__main__":
    main("vfio_model_killed", body)
