#!/usr/bin/env python3
"""A NIC goes from Linux's mlx5_core to ferroce and back: what bind refuses, what it leaves as it was."""

from lab.run import as_json, main

NIC = "0000:01:00.0"
FERROCE = "/share/ferroce"


def device(guest):
    """What `ferroce devices` says of the NIC."""
    return as_json(guest.run(FERROCE + " devices --json"))["devices"][0]


def body(run, _arguments):
    """bind and unbind between mlx5_core and ferroce."""
    model = run.model("nic")
    guest = run.guest("g0", models=model.sockets, iommu=True, cpus=2)
    guest.run("modprobe vfio-pci; modprobe mlx5_core", timeout=120)
    found = device(guest)
    netdevs = found["netdevs"]
    if not run.check("mlx5_core has the NIC, with an interface", found["driver"] == "mlx5_core" and netdevs, found):
        return
    name = netdevs[0]["name"]
    guest.run("ip link set %s up; ip addr add 192.0.2.5/24 dev %s" % (name, name))
    result = guest.run("%s bind %s" % (FERROCE, NIC), check=False)
    run.check("V17 bind refuses while the interface is up and has an address",
              result.code == 1 and "is up and has addresses (192.0.2.5" in result.out, result)
    guest.run("ip addr flush dev %s" % name)
    result = guest.run("%s bind %s" % (FERROCE, NIC), check=False)
    run.check("V17 bind refuses while it is up", result.code == 1 and "is up" in result.out, result)
    guest.run("ip link set %s down" % name)
    guest.run("ip addr add 192.0.2.6/24 dev %s label %s:vip" % (name, name))
    result = guest.run("%s bind %s" % (FERROCE, NIC), check=False)
    run.check("V17 bind refuses while it has an address with a label",
              result.code == 1 and "has addresses (192.0.2.6" in result.out, result)
    guest.run("ip addr flush dev %s; ip netns add pod; ip link set %s netns pod" % (name, name))
    result = guest.run("%s bind %s" % (FERROCE, NIC), check=False)
    run.check("V17 bind refuses while the interface is in another network namespace",
              result.code == 1 and "is in another network namespace" in result.out, result)
    guest.run("ip -n pod link set %s netns 1; ip netns del pod" % name)
    done = as_json(guest.run("%s bind --json %s" % (FERROCE, NIC)))
    run.check("bind takes it from mlx5_core", (done["before"], done["after"]) == ("mlx5_core", "vfio-pci"), done)
    info = as_json(guest.run("%s info --json %s" % (FERROCE, NIC)))
    run.check("info", info["port"]["state"] == "PORT_ACTIVE", info)
    done = as_json(guest.run("%s unbind --json %s" % (FERROCE, NIC), timeout=120))
    run.check("unbind gives it back to mlx5_core", done["after"] == "mlx5_core", done)
    found = device(guest)
    run.check("its interface is there again", [n["name"] for n in found["netdevs"]] == [name], found)
    guest.run("ip link set %s up" % name)
    done = as_json(guest.run("%s bind --json --force %s" % (FERROCE, NIC)))
    run.check("--force takes it although it is up", done["after"] == "vfio-pci", done)
    done = as_json(guest.run("%s unbind --json %s" % (FERROCE, NIC), timeout=120))
    run.check("and back once more", done["after"] == "mlx5_core", done)
    claimed(run, guest)


def claimed(run, guest):
    """vfio-pci claims the NIC by its ids."""
    device = "/sys/bus/pci/devices/" + NIC
    ids = guest.run("echo $(cut -c3- %s/vendor) $(cut -c3- %s/device)" % (device, device)).out.strip()
    # It was loaded first, so that it is asked before mlx5_core.
    guest.run("echo %s > %s/driver/unbind; echo %s > /sys/bus/pci/drivers/vfio-pci/new_id" % (NIC, device, ids), timeout=120)
    result = guest.run("%s unbind %s" % (FERROCE, NIC), check=False)
    advice = 'echo "%s" > /sys/bus/pci/drivers/vfio-pci/remove_id' % ids
    run.check("unbind says that vfio-pci claims it, and how to end that", result.code == 1 and advice in result.out, result)
    guest.run(advice)
    done = as_json(guest.run("%s unbind --json %s" % (FERROCE, NIC), timeout=120))
    run.check("then it can be unbound", done["changed"] and done["after"] == "mlx5_core", done)


if __name__ == "__main__":
    main("bind_from_kernel", body)
