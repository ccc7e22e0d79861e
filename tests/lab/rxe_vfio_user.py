#!/usr/bin/env python3
"""Soft-RoCE in a guest, and ferroce on the host with a NIC that a model serves over vfio-user: all that rxe_two_guests does."""

import rxe_operations
import rxe_two_guests
from lab import run, rxe, seats


def body(task, arguments):
    """Soft-RoCE in a guest, ferroce on the host over vfio-user: ping, pingpong, connections, operations, each side first."""
    peer = seats.OverVfioUser(task, listen=(rxe.PORT, rxe_operations.PORT))
    rxe_two_guests.session(task, arguments, peer)


if __name__ == "__main__":
    run.main("rxe_vfio_user", body)
