#!/usr/bin/env python3
"""What runs commands in a lab guest on behalf of the host, over a virtio-serial port.

One JSON object a line, both ways. From the host: {"id": n, "run": command, "timeout": seconds} or {"end": true}.
To the host: {"ready": true, ...} once, then {"id": n, "out": text} as it comes and {"id": n, "code": status}.
Commands run at the same time, each in a process group of its own.
"""

import glob
import json
import os
import signal
import subprocess
import threading


def port():
    for name in glob.glob("/sys/class/virtio-ports/*/name"):
        with open(name) as file:
            if file.read().strip() == "lab.agent":
                return "/dev/" + name.split("/")[-2]
    raise SystemExit("lab agent: no virtio-serial port named lab.agent")


class Agent:
    def __init__(self):
        fd = os.open(port(), os.O_RDWR)
        self.requests = os.fdopen(fd, "rb", buffering=0)
        self.fd = fd
        self.lock = threading.Lock()

    def say(self, **what):
        line = (json.dumps(what) + "\n").encode()
        with self.lock:
            while line:
                line = line[os.write(self.fd, line) :]

    def run(self, request):
        number = request["id"]
        process = subprocess.Popen(
            ["/bin/sh", "-c", request["run"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timer = threading.Timer(request["timeout"], os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        for chunk in iter(lambda: os.read(process.stdout.fileno(), 65536), b""):
            self.say(id=number, out=chunk.decode(errors="replace"))
        code = process.wait()
        timer.cancel()
        self.say(id=number, code=code)

    def serve(self):
        self.say(ready=True, kernel=os.uname().release)
        pending = b""
        while True:
            data = os.read(self.fd, 65536)
            if not data:
                # The host has not connected yet, or is gone for a moment.
                threading.Event().wait(0.05)
                continue
            pending += data
            while b"\n" in pending:
                line, pending = pending.split(b"\n", 1)
                request = json.loads(line)
                if request.get("end"):
                    return
                threading.Thread(target=self.run, args=(request,), daemon=True).start()


if __name__ == "__main__":
    Agent().serve()
