#!/usr/bin/env python3
"""ferroce on a function that nothing can reset: neither itself nor the bus nor the kernel when a process dies."""

import time

from lab import linux
from lab.run import as_json, main

A, B = "0000:01:00.0", "0000:02:00.0"
FERROCE = "/share/ferroce"
DEMO = "%s demo --json --device %s --device %s --size " % (FERROCE, A, B)


def body(run, _arguments):
    """Open, kill, open again without any reset; bus mastering is off while nobody owns the NIC."""
    control = run.folder / "control.sock"
    # ENABLE_HCA finds the function enabled; the kernel unmaps a killed process's memory under firmware.
    run.expect(model=["ENABLE_HCA of an enabled HCA", linux.UNMAPPED])
    options = ["--profile", "connectx5", "--no-reset", "--control", str(control)]
    model = run.model("nics", nics=2, options=options)
    guest = run.guest("g0", models=model.sockets, iommu=True, memory="2G")
    guest.run("modprobe vfio-pci")
    for address in (A, B):
        methods = "/sys/bus/pci/devices/%s/reset_method" % address
        found = guest.run("cat %s" % methods).out.strip()
        run.check("%s has no reset of its own" % address, found == "bus", found)
        # The bus has no other function: without this, the kernel would reset all of it.
        guest.run("echo >%s; %s bind %s" % (methods, FERROCE, address))
    left = linux.tell(control, "state 0")
    run.check("bus mastering is off before anybody owns it", "bus_master=false hca=Disabled" in left, left)
    result = guest.run("%s exercise %s open region=65536 close" % (FERROCE, A), check=False)
    run.check("open and close in order", result.code == 0, result)
    left = linux.tell(control, "state 0")
    run.check("nothing is left, and bus mastering is off", left == "ok bus_master=false hca=Disabled pages=0", left)
    result = guest.run("%s exercise %s open reset close" % (FERROCE, A), check=False)
    run.check("a reset that is asked for is told to be impossible", "supports no function reset" in result.out, result)
    for n in range(3):
        demo = guest.run_in_background("exec %s demo -v --device %s --device %s --size 64MiB" % (FERROCE, A, B))
        demo.wait_for("%s: ConnectX-5 with firmware" % B)
        time.sleep(0.2 * n)
        guest.run("kill -9 $(pidof ferroce)")
        run.check("V01 killed under traffic", demo.result().code == -9)
        for nic in (0, 1):
            left = linux.tell(control, "state %d" % nic)
            run.check("V01 what it left is still there, without bus mastering",
                      "bus_master=false hca=Initialized" in left, left)
        killed = time.monotonic()
        result = guest.run("%s -v exercise %s open region=65536 close" % (FERROCE, A), check=False)
        run.check("V01 opened again by commands", result.code == 0 and "ending what was left" in result.out, result)
        run.note("after %.1f s" % (time.monotonic() - killed))
        demo = as_json(guest.run(DEMO + "4MiB"))
        run.check("V01 demo after the kill", demo["ok"], demo)


if __name__ == "__main__":
    main("vfio_no_reset", body)
