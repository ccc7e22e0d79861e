#!/usr/bin/env python3
"""A guest restarts, or is switched off, while ferroce uses its NIC; it, or the next guest, opens the same NIC.

The other way round, the model's process killed and started again, is vfio_model_killed.
"""

from lab import linux
from lab.run import as_json, main

NIC = "0000:01:00.0"
FERROCE = "/share/ferroce"
PREPARE = "modprobe vfio-pci && %s bind %s" % (FERROCE, NIC)


def body(run, _arguments):
    """Guests come and go, the model stays."""
    control = run.folder / "control.sock"
    model = run.model("nic", options=["--control", str(control)])
    guest = run.guest("g0", models=model.sockets, iommu=True, cpus=1, reboots=True)
    guest.run(PREPARE)
    holder = guest.run_in_background("%s exercise %s open traffic=8" % (FERROCE, NIC))
    holder.wait_for("queue pairs are busy")
    guest.reboot()
    run.note("the guest has restarted under a busy NIC")
    left = linux.tell(control, "state 0")
    run.check("the reset has left nothing in the NIC", left == "ok bus_master=false hca=Disabled pages=0", left)
    guest.run(PREPARE)
    info = as_json(guest.run("%s info --json %s" % (FERROCE, NIC)))
    run.check("the restarted guest opens it", info["port"]["state"] == "PORT_ACTIVE", info)

    holder = guest.run_in_background("%s exercise %s open region=1048576 file=/share/never" % (FERROCE, NIC))
    holder.wait_for("Region")
    guest.process.kill()
    guest.process.wait()
    run.check("the model outlives the guest", model.process.poll() is None)

    guest = run.guest("g1", models=model.sockets, iommu=True, cpus=1)
    guest.run(PREPARE)
    info = as_json(guest.run("%s info --json %s" % (FERROCE, NIC)))
    run.check("the next guest opens the NIC that the last left open", info["port"]["state"] == "PORT_ACTIVE", info)
    result = guest.run("%s exercise %s open region=1048576 drop close" % (FERROCE, NIC), check=False)
    run.check("and uses it", result.code == 0, result)


if __name__ == "__main__":
    main("vfio_restarts", body)
