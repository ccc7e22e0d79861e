"""ferroce's test lab: guests under QEMU, NIC models and the wires between them.

Nothing here needs more than Python's standard library. `image` builds what guests boot from; `qemu` runs them;
`models` runs NIC models; `run` is what a lab run is written with.
"""
