"""Guests: a QEMU process, and the agent in it that runs commands."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time

from . import ending, kernels


class GuestError(Exception):
    """A guest, or a command in it, did not do what it should; says which and where it stood."""


class Result:
    """What a command in a guest gave."""

    def __init__(self, command, code, out):
        self.command = command
        self.code = code
        self.out = out

    def __repr__(self):
        return "%r gave %d:\n%s" % (self.command, self.code, self.out)


class Running:
    """A command that is running in a guest."""

    def __init__(self, guest, number, command, timeout):
        self.guest = guest
        self.number = number
        self.command = command
        self.deadline = time.monotonic() + timeout + 10
        self.events = queue.Queue()
        self.out = ""
        self.code = None

    def _take(self, timeout):
        kind, value = self.events.get(timeout=timeout)
        if kind == "out":
            self.out += value
        elif kind == "code":
            self.code = value
        else:
            raise GuestError("%s went away during %r; so far:\n%s" % (self.guest.name, self.command, self.out))

    def _until(self, done, deadline=None):
        deadline = min(deadline or self.deadline, self.deadline)
        while not done():
            left = deadline - time.monotonic()
            try:
                self._take(max(left, 0.001))
            except queue.Empty:
                raise GuestError("%s: %r did not end in time; so far:\n%s" % (self.guest.name, self.command, self.out))

    def wait_for(self, text, within=None):
        """Returns when `text` has been printed, in so many seconds if they are given."""
        deadline = time.monotonic() + within if within else None
        self._until(lambda: text in self.out or self.code is not None, deadline)
        if text not in self.out:
            raise GuestError("%s: ended without printing %r: %r" % (self.guest.name, text, self.result()))

    def so_far(self):
        """What it has printed, without waiting for anything."""
        with contextlib.suppress(queue.Empty, GuestError):
            while True:
                self._take(0)
        return self.out

    def unfinished(self):
        """Whether it has not ended, as far as is known."""
        self.so_far()
        return self.code is None

    def result(self):
        """Waits for its end."""
        self._until(lambda: self.code is not None)
        return Result(self.command, self.code, self.out)


def free_port():
    """A TCP port of the host's that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Control:
    """A second network of a guest, on which programs in it and on the host reach each other by TCP. Nothing leaves the
    machine: only the ports named here lead anywhere.

    `listen` are ports that guest programs listen at: the host reaches them at 127.0.0.1, port `host_port[PORT]`.
    `reach` are ports that host programs shall listen at at 127.0.0.1, port `host_port[PORT]`: the guest reaches them
    at `HOST`, port PORT.
    """

    MAC = "52:54:00:0c:00:01"
    GUEST = "10.0.2.15"
    HOST = "10.0.2.100"

    def __init__(self, listen=(), reach=()):
        self.listen = {port: free_port() for port in listen}
        self.reach = {port: free_port() for port in reach}

    def netdev(self, image):
        """For QEMU's command line."""
        text = "user,id=control,restrict=on"
        for port, host in self.listen.items():
            text += ",hostfwd=tcp:127.0.0.1:%d-:%d" % (host, port)
        for port, host in self.reach.items():
            # A program for each connection, as QEMU would connect only once itself.
            program = "%s nc 127.0.0.1 %d" % (image.root / "usr/bin/busybox", host)
            text += ",guestfwd=tcp:%s:%d-cmd:%s" % (self.HOST, port, program)
        return text

    def set_up(self, guest):
        """Gives the guest's end its address."""
        guest.run("modprobe virtio_net; for n in /sys/class/net/*; do [ \"$(cat $n/address)\" = %s ] && d=${n##*/}; done; "
                  "ip link set $d up && ip addr add %s/24 dev $d" % (self.MAC, self.GUEST))


class Guest:
    """One virtual machine. Use it as a context manager, so that it always ends."""

    def __init__(self, image, folder, name, nics=(), models=(), memory="1G", cpus=2, kernel="6.12", share=None,
                 iommu=False, accel="tcg", append="", reboots=False, control=None, capture=None):
        self.image = image
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.nics = nics
        self.models = models
        self.memory = memory
        self.cpus = cpus
        self.kernel = kernels.find(image, kernel)
        self.share = share or folder / "share"
        self.share.mkdir(exist_ok=True)
        self.iommu = iommu
        self.accel = accel
        self.append = append
        self.reboots = reboots
        self.control = control
        # A file to which QEMU writes the frames of the first netdev.
        self.capture = capture
        # The models (run.Model) behind `models`.
        self.nic_models = []
        # Bytes of the console before it was told to end.
        self.console_end = None
        self.process = None
        self.numbers = iter(range(1, 1 << 30))
        self.running = {}
        self.ready = threading.Event()
        self.kernel_version = None

    def command(self):
        """QEMU's command line."""
        agent = self.folder / "agent.sock"
        line = ["-nodefaults", "-no-user-config", "-display", "none"]
        line += [] if self.reboots else ["-no-reboot"]
        line += ["-L", str(self.image.root / "usr/share/qemu"), "-L", str(self.image.root / "usr/share/seabios")]
        line += ["-machine", "q35,accel=%s,kernel-irqchip=%s,memory-backend=ram"
                 % (self.accel, "split" if self.iommu else "on") if self.accel == "kvm"
                 else "q35,accel=%s,memory-backend=ram" % self.accel]
        line += ["-cpu", "max", "-smp", str(self.cpus), "-m", self.memory]
        line += ["-object", "memory-backend-memfd,id=ram,size=%s,share=on" % self.memory]
        if self.iommu:
            line += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
        line += ["-kernel", str(self.kernel.folder / "vmlinuz"), "-initrd",
                 str(self.kernel.folder / "initramfs.cpio")]
        # A busy host may not run the guest in time for Linux's check of the timer interrupt, whose failure is a panic.
        line += ["-append", "console=ttyS0 panic=-1 no_timer_check lab.name=%s intel_iommu=%s %s"
                 % (self.name, "on" if self.iommu else "off", self.append)]
        line += ["-serial", "file:" + str(self.folder / "console.log")]
        line += ["-drive", "if=none,id=root,format=raw,readonly=on,file=" + str(self.image.disk)]
        line += ["-device", "virtio-blk-pci,drive=root"]
        if self.kernel.modules:
            line += ["-drive", "if=none,id=modules,format=raw,readonly=on,file=" + str(self.kernel.modules)]
            line += ["-device", "virtio-blk-pci,drive=modules"]
        line += ["-fsdev", "local,id=share,security_model=none,path=" + str(self.share)]
        line += ["-device", "virtio-9p-pci,fsdev=share,mount_tag=share"]
        line += ["-chardev", "socket,id=agent,path=%s,server=on,wait=off" % agent]
        line += ["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=lab.agent"]
        line += ["-device", "virtio-rng-pci"]
        for number, (mac, local, remote) in enumerate(self.nics):
            line += ["-netdev", "dgram,id=n%d,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s"
                     % (number, local, remote)]
            line += ["-device", "virtio-net-pci,netdev=n%d,mac=%s,romfile=" % (number, mac)]
        if self.capture:
            line += ["-object", "filter-dump,id=capture,netdev=n0,file=%s" % self.capture]
        if self.control:
            line += ["-netdev", self.control.netdev(self.image)]
            line += ["-device", "virtio-net-pci,netdev=control,mac=%s,romfile=" % Control.MAC]
        for number, path in enumerate(self.models):
            # Behind a root port of its own, so that it is a PCIe endpoint with a link.
            line += ["-device", "pcie-root-port,id=port%d,chassis=%d,slot=%d" % (number, number + 1, number)]
            device = {"driver": "vfio-user-pci", "socket": {"path": str(path), "type": "unix"},
                      "bus": "port%d" % number}
            line += ["-device", json.dumps(device)]
        return self.image.program("qemu-system-x86_64") + line

    def start(self):
        """Starts QEMU and the thread that listens to the agent."""
        self.stderr = open(self.folder / "qemu.log", "wb")
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=self.stderr, stderr=subprocess.STDOUT,
            env=self.image.environment(), start_new_session=True, preexec_fn=ending.with_this_process)
        threading.Thread(target=self._listen, daemon=True).start()

    def _connect(self):
        path = str(self.folder / "agent.sock")
        while self.process.poll() is None:
            try:
                agent = socket.socket(socket.AF_UNIX)
                agent.connect(path)
                return agent
            except OSError:
                agent.close()
                time.sleep(0.05)
        return None

    def _listen(self):
        self.agent = self._connect()
        stream = self.agent.makefile("rb") if self.agent else []
        try:
            for line in stream:
                message = json.loads(line)
                if message.get("ready"):
                    self.kernel_version = message["kernel"]
                    self.ready.set()
                elif message["id"] in self.running:
                    kind = "out" if "out" in message else "code"
                    self.running[message["id"]].events.put((kind, message[kind]))
        except (OSError, ValueError):
            pass
        for running in list(self.running.values()):
            running.events.put(("gone", None))

    def wait_ready(self, timeout=180):
        """Returns when the agent answers."""
        deadline = time.monotonic() + timeout
        while not self.ready.wait(0.2):
            if self.process.poll() is not None:
                raise GuestError("%s: QEMU ended with %d:\n%s" % (self.name, self.process.returncode, self.tail("qemu.log")))
            if time.monotonic() > deadline:
                raise GuestError("%s did not boot in %d s; console:\n%s" % (self.name, timeout, self.tail("console.log")))

    def run_in_background(self, command, timeout=120):
        """Starts a shell command in the guest."""
        self.wait_ready()
        number = next(self.numbers)
        running = Running(self, number, command, timeout)
        self.running[number] = running
        request = json.dumps({"id": number, "run": command, "timeout": timeout}) + "\n"
        self.agent.sendall(request.encode())
        return running

    def run(self, command, timeout=120, check=True):
        """Runs a shell command in the guest and returns its Result; with `check`, a failure is an error."""
        result = self.run_in_background(command, timeout).result()
        with open(self.folder / "commands.log", "a") as log:
            log.write("$ %s\n%s[%d]\n" % (command, result.out, result.code))
        if check and result.code != 0:
            raise GuestError("%s: %r" % (self.name, result))
        return result

    def reboot(self, timeout=180):
        """Restarts the guest without a word to its drivers; returns when the agent answers again."""
        self.ready.clear()
        request = {"id": 0, "run": "echo b >/proc/sysrq-trigger", "timeout": 20}
        self.agent.sendall((json.dumps(request) + "\n").encode())
        self.wait_ready(timeout)

    def tail(self, log, lines=30):
        path = self.folder / log
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def kernel_said(self):
        """The kernel's messages on the console, since QEMU was started, until the guest was told to end."""
        path = self.folder / "console.log"
        data = path.read_bytes() if path.exists() else b""
        return data[:self.console_end].decode(errors="replace")

    def standing(self):
        """What it has done last and what it is doing, for `Run.where`."""
        now = ["$ %s\n%s[still running]" % (running.command, running.so_far()[-4000:])
               for running in list(self.running.values()) if running.unfinished()]
        return "\n".join([self.tail("commands.log"), *now, self.tail("qemu.log", 10), self.tail("console.log", 15)])

    def kill(self):
        """Ends the guest as if its power were cut."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self):
        """Ends the guest, the hard way if it does not go by itself."""
        if self.process is None:
            return
        try:
            if self.ready.is_set() and self.process.poll() is None:
                (self.folder / "dmesg.log").write_text(self.run("dmesg", timeout=20, check=False).out)
                self._end()
        except (GuestError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.stderr.close()

    def _end(self):
        """Asks it to end. A kernel that goes down under its init panics, which is no complaint."""
        self.console_end = (self.folder / "console.log").stat().st_size
        with contextlib.ExitStack() as stack:
            for model in self.nic_models:
                stack.enter_context(model.while_a_guest_goes_down())
            self.agent.sendall(b'{"end": true}\n')
            self.process.wait(timeout=15)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
