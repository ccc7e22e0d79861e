"""Runs rdma-core's VFIO tests, which know InfiniBand ports only, on an Ethernet port.

What they ask of a subnet manager (GID, port state by MAD) is answered here: a RoCE v2 GID is put into the NIC's table
by a raw command, and the two queue pairs of the test talk to each other over it.
"""

import sys
import unittest

from args_parser import parser
from tests import test_mlx5_vfio as upstream
import pyverbs.enums as e

MAC, TEST = sys.argv.pop(1), sys.argv.pop(1)
GID = bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 1])
SET_ROCE_ADDRESS = 0x761
PORT_ACTIVE = 4
PORT_DOWN = 2
EQE_BYTES = 64


def set_roce_address():
    """The command's input: entry 0, RoCE v2 over IPv4."""
    mac = bytes.fromhex(MAC.replace(":", ""))
    header = SET_ROCE_ADDRESS.to_bytes(2, "big") + bytes(14)
    return header + GID + bytes(2) + mac + bytes([0, 0, 0, 2]) + bytes(4)


class EthernetContext(upstream.Mlx5VfioContext):
    """A context that knows what its GID is for."""

    def query_gid_type(self, *_):
        return e.IBV_GID_TYPE_SYSFS_ROCE_V2


class EthernetResources(upstream.Mlx5VfioResources):
    """The tests' resources with a GID."""

    def __init__(self, ib_port, pci_name, gid_index=None, ctx=None, activate_port_state=False):
        super().__init__(ib_port, pci_name, 0, ctx, activate_port_state)

    def query_gid(self):
        out = self.ctx.devx_general_cmd(set_roce_address(), 16)
        if bytes(out)[0]:
            raise upstream.PyverbsRDMAError("SET_ROCE_ADDRESS: status %#x" % bytes(out)[0])
        self.gid = [int.from_bytes(GID[at:at + 4], "big") for at in range(0, 16, 4)]

    def query_port_state_with_mads(self, ib_port):
        return PORT_ACTIVE

    def is_eth(self):
        """To the tests themselves, which would skip: no."""
        return 0 if sys._getframe(1).f_code.co_name.startswith("test_") else 1


class EthernetEqResources(upstream.Mlx5VfioEqResources, EthernetResources):
    """The same for the test of events."""

    def __init__(self, ib_port, pci_name, gid_index=None, ctx=None):
        self.cons_index = 0
        self.logger = upstream.logging.getLogger(self.__class__.__name__)
        EthernetResources.__init__(self, ib_port, pci_name, 0, ctx)
        # The test waits for the event of a port that comes up.
        self.change_port_state_with_registers(PORT_DOWN)

    def init_dveq_buff(self):
        """libmlx5 has set the entries up; theirs takes 8 bytes for an entry, which newer scapy refuses to read."""
        self.update_ci(0)

    def get_eqe(self, cc):
        from tests.mlx5_prm_structs import SwEqe

        ci = self.cons_index + cc
        at = self.eq.vaddr + (ci & (self.nent - 1)) * EQE_BYTES
        words = [upstream.mem.read64(at + word).to_bytes(8, "little") for word in range(0, EQE_BYTES, 8)]
        eqe = SwEqe(b"".join(words))
        return None if eqe.owner != (1 if ci & self.nent else 0) else eqe


class OnEthernet(upstream.Mlx5VfioTrafficTest):
    """The tests."""

    def pre_run(self):
        self.mac_addr = MAC
        super().pre_run()


upstream.Mlx5VfioContext = EthernetContext
upstream.Mlx5VfioResources = EthernetResources
upstream.Mlx5VfioEqResources = EthernetEqResources

if __name__ == "__main__":
    parser.parse_args()
    unittest.main(module=None, argv=[sys.argv[0], "-v", "__main__.OnEthernet." + TEST])
