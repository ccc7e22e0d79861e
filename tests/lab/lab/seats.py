"""Where ferroce runs, at the other end of the wire of a guest with Soft-RoCE: beside the host's in-process model (`rxe.Peer`),
over vfio-user, or in another guest over VFIO."""

import shutil

from . import linux, rxe, wire
from .run import Failed, as_json

NIC = "0000:01:00.0"
FERROCE = "/share/ferroce"
# The network on which programs of the two guests reach each other by TCP: ferroce's, the peer's.
TALK = ("10.9.1.1", "10.9.1.2")


class Slice:
    """A program whose frames are a part of what QEMU writes of the guest's netdev, from its start until they are first
    asked for."""

    def _begin(self):
        self.begun = self.peer.capture.stat().st_size
        self.part = None

    @property
    def pcap(self):
        """Its frames."""
        if not self.part:
            self.part = self.peer.task.folder / (self.name + ".pcap")
            with open(self.peer.capture, "rb") as whole, open(self.part, "wb") as out:
                out.write(whole.read(rxe.PCAP_HEADER))
                whole.seek(self.begun)
                shutil.copyfileobj(whole, out)
        return self.part


class OnHost(Slice, rxe.Program):
    """`ferroce` on the host, with a NIC that a model serves over vfio-user."""

    def start(self):
        """Starts it."""
        self._begin()
        return super().start()

    def _nic(self):
        return ["--device", "vfio-user:%s" % self.peer.model.sockets[0], "--mac", rxe.NIC_MAC]


class InGuest(Slice):
    """`ferroce` in the other guest."""

    def __init__(self, peer, name, arguments, options=()):
        self.peer = peer
        self.name = name
        nic = ["--device", NIC, "--mac", rxe.NIC_MAC]
        self.line = [FERROCE, *arguments, *nic, *options, *rxe.own_addresses(options)]

    def start(self):
        """Starts it."""
        self._begin()
        self.running = self.peer.other.run_in_background("RUST_LOG=warn " + " ".join(self.line), timeout=600)
        return self

    def listening(self, port):
        """Returns when it listens at a TCP port."""
        self.peer.other.run("for i in $(seq 300); do ss -tln | grep -q ':%d ' && exit 0; sleep 0.1; done; exit 1" % port)

    def says(self, text):
        """Returns when it has said `text`."""
        self.running.wait_for(text)

    def interrupt(self):
        """Asks it to end."""
        self.peer.other.run("busybox killall -INT ferroce")

    def result(self, timeout=120):
        """Waits for its end: exit status, and the JSON object that it printed."""
        del timeout
        result = self.running.result()
        try:
            return result.code, as_json(result)
        except Failed:
            return result.code, {"output": result.out}

    def tail(self, *_):
        """What it said."""
        return "\n".join(self.running.out.splitlines()[-20:])


class OverVfioUser(rxe.Peer):
    """The peer, and a model process with ferroce's NIC on the host."""

    PROGRAM = OnHost

    def __init__(self, task, **options):
        super().__init__(task, capture="wire.pcap", **options)
        self.model = task.model("nic", options=["--wire", "dgram:%s,%s" % self.end, "--mac", rxe.NIC_MAC])


class TwoGuests(rxe.Peer):
    """The peer, and another guest in which ferroce has its NIC by vfio-pci, behind an emulated IOMMU."""

    PROGRAM = InGuest
    host = TALK[0]

    def __init__(self, task):
        near, far = wire.pair(task.folder, "talk")
        self.talk = ("52:54:00:09:01:02", *far)
        super().__init__(task, capture="wire.pcap", listen=(), reach=())
        self.model = task.model("nic", options=["--wire", "dgram:%s,%s" % self.end, "--mac", rxe.NIC_MAC])
        talk = ("52:54:00:09:01:01", *near)
        self.other = task.guest("ferroce", models=self.model.sockets, nics=[talk], iommu=True, cpus=1)
        self.other.run("modprobe vfio-pci; modprobe virtio_net; %s bind %s" % (FERROCE, NIC))
        linux.address(self.other, linux.netdev(self.other, "virtio_net"), TALK[0] + "/24")
        self.guest.run("for n in /sys/class/net/*; do [ \"$(cat $n/address)\" = %s ] && ip link set ${n##*/} name talk; done; "
                       "ip link set talk up && ip addr add %s/24 dev talk" % (self.talk[0], TALK[1]))

    def _nics(self, end):
        return [*super()._nics(end), self.talk]

    def server_at(self, port):
        """Options with which ferroce finds a program in the guest."""
        return ["--port", str(port), TALK[1]]

    def own_port(self, port):
        """Where ferroce listens, for the guest to find it at `port`."""
        return port
