"""A guest with Linux's mlx5_ib on a NIC model, as a peer of ferroce on the host."""

from . import linux, qemu, rxe, wire

GUEST_MAC = "02:fe:44:0c:e0:02"
# What mlx5_ib counts of things that should not happen on a good wire; what it counts where an answer was late is not among them
# (duplicate_request, local_ack_timeout_err).
FAULTS = ["out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "resp_local_length_error", "resp_remote_access_errors",
          "req_remote_access_errors", "req_remote_invalid_request"]


class Peer(rxe.Peer):
    """The guest and its NIC."""

    DEVICE = "mlx5_0"
    MAC = GUEST_MAC
    FELT = ["duplicate_request", "out_of_sequence"]

    def __init__(self, task, profile="connectx5", listen=(rxe.PORT,), reach=(rxe.PORT,)):
        self.task = task
        end, self.end = wire.pair(task.folder, "ib")
        self.model = task.model("nic", options=["--profile", profile, "--wire", "dgram:%s,%s" % end, "--mac", GUEST_MAC])
        self.profile = profile
        self.control = qemu.Control(listen, reach)
        self.capture = None
        self.guest = task.guest("ib", models=self.model.sockets, control=self.control, cpus=1)
        self.control.set_up(self.guest)
        linux.load(self.guest, "mlx5_core", "mlx5_ib")
        device = linux.netdev(self.guest)
        self.guest.run("ip link set %s name wire && ip link set wire mtu %d && ip link set wire up" % (device, self.port_mtu))
        for family, (_, own) in rxe.ADDRESSES.items():
            self.guest.run("ip addr add %s/%d dev wire %s"
                           % (own, rxe.PREFIXES[family], "nodad" if family == "ipv6" else ""))
        self.guest.run("ip link add link wire name wire.{0} type vlan id {0} && ip link set wire.{0} up && "
                       "ip addr add {1}/24 dev wire.{0}; sleep 3".format(rxe.VLAN, rxe.VLAN_ADDRESSES[1]))
        self.gids = self._gids()

    def all_accepted(self, what, before, pcap, late=0):
        """Checks that mlx5_ib has counted nothing that should not be since `before`, and that there were packets."""
        del late  # No counter of mlx5_ib's tells each packet.
        now = self.counters()
        grown = {name: now[name] - before[name] for name in FAULTS if now[name] != before[name]}
        ours, theirs = rxe.packets(pcap)
        self.task.check("%s: mlx5_ib counts no fault" % what, not grown and ours > 0 and theirs > 0,
                        "%r; %d packets of ours, %d of theirs" % (grown, ours, theirs))

    def no_complaints(self):
        """Checks what Linux and the model of its NIC have to say at the end."""
        wrong = linux.complaints(self.guest.run("dmesg").out, self.profile)
        self.task.check("no complaint of Linux's", not wrong, "\n".join(wrong))
        refused = linux.refusals(self.model)
        self.task.check("no complaint of its NIC's", not refused, "\n".join(refused[:10]))
