#!/usr/bin/env python3
"""The commands that Linux's mlx5_core prints with debugging on, against the model's trace, line by line."""

import re

from lab import linux, run

# Room for all of it: what does not fit the kernel's log is lost.
APPEND = "log_buf_len=64M loglevel=3"
LINUX = re.compile(r"(?:dump_command.*|\] )(cmd\[(\d+)\]: .*)$")
# The model adds a line with the fields by name.
MODEL = re.compile(r"(cmd\[(\d+)\]: (?:start dump|end dump|dump command data .*|[0-9a-f]{3,}: .*))$")


def dumps(text, pattern):
    """The dumps of commands, each as a list of lines, in the order of their ends: slots are at work side by side."""
    begun, ended = {}, []
    for line in text.splitlines():
        found = pattern.search(line)
        if not found:
            continue
        line, slot = found.group(1).rstrip(), found.group(2)
        if line.endswith("start dump"):
            begun[slot] = []
        begun.setdefault(slot, []).append(line)
        if line.endswith("end dump"):
            ended.append(begun.pop(slot))
    return ended


def body(task, arguments):
    """mlx5_core's own dump of its commands is line for line the model's trace, from probe to unload."""
    for profile in ("minimal", "connectx5") if arguments.full else ("minimal",):
        model = task.model(profile, options=["--profile", profile])
        guest = task.guest("guest-" + profile, models=model.sockets, append=APPEND)
        guest.run("modprobe mlx5_core dyndbg=+p debug_mask=1", timeout=linux.PATIENCE)
        linux.netdev(guest)
        guest.run("rmmod mlx5_core && dmesg >/share/%s.txt" % profile, timeout=linux.PATIENCE)
        guest.stop()
        model.stop()
        printed = dumps((guest.share / (profile + ".txt")).read_text(errors="replace"), LINUX)
        traced = dumps(model.trace.read_text(), MODEL)
        # Two slots may end in either order.
        different = [one for one in printed if one not in traced] + [one for one in traced if one not in printed]
        task.check("%s: %d dumps of Linux's are the model's" % (profile, len(printed)),
                   len(printed) > 100 and len(printed) == len(traced) and not different,
                   "%d and %d; first: %s" % (len(printed), len(traced), [one[:20] for one in different[:1]]))


if __name__ == "__main__":
    run.main("linux-dump", body)
