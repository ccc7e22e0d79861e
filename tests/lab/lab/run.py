"""A lab run: a folder, the models and guests that were started, what was checked, and their end whatever happens."""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback

from . import accel, ending, image, linux, qemu, relay

RUNS = image.CACHE / "runs"


class Failed(Exception):
    """What was checked is not so."""


class TimeIsUp(Exception):
    """The run took too long."""


class Asked(Exception):
    """A signal asked the run to end."""


def as_json(result):
    """The JSON object that a command printed."""
    for line in result.out.splitlines():
        if line.startswith("{"):
            return json.loads(line)
    raise Failed("no JSON in %r" % result)


class Model:
    """A `ferroce model` process: one NIC, or two on a cable. Its log tells each DMA map."""

    def __init__(self, ferroce, folder, name, nics=1, options=(), log="info,ferroce_nic_model::host=trace"):
        self.name = name
        self.sockets = [folder / ("%s%d.sock" % (name, n)) for n in range(nics)]
        self.log = folder / (name + ".log")
        self.trace = folder / (name + ".trace")
        line = [str(ferroce), "model", "--trace", str(self.trace)]
        for path in self.sockets:
            path.unlink(missing_ok=True)
            line += ["--socket", str(path)]
        self.line = line + list(options)
        named = self.line[self.line.index("--profile") + 1] if "--profile" in self.line else None
        self.profile = named or "connectx4"
        self.environment = {**os.environ, "RUST_LOG": log}
        self.process = None
        self.starts = 0
        # Its exit status, unless it was killed.
        self.code = None
        # Parts of the log, from and to, from while a guest went down.
        self.going_down = []

    def start(self):
        """Starts it; returns when it listens. What one that was killed has logged and traced stays."""
        if self.trace.exists():
            self.trace.rename(self.trace.with_suffix(".trace.%d" % self.starts))
        self.starts += 1
        self.stderr = open(self.log, "ab")
        self.process = subprocess.Popen(self.line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self.stderr, env=self.environment, start_new_session=True,
                                        preexec_fn=ending.with_this_process)
        lines = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        for _ in self.sockets:
            try:
                line = lines.get(timeout=20)
            except queue.Empty:
                line = ""
            if not line.startswith("serving"):
                raise Failed("model %s did not start: %s" % (self.name, self.tail()))

    def _read(self, lines):
        for line in self.process.stdout:
            lines.put(line.decode(errors="replace"))
        lines.put("")

    def tail(self, lines=20):
        """The last lines of its log, without DMA maps."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([line for line in text.splitlines() if " TRACE " not in line][-lines:])

    def said(self):
        """Its log, without what it said while a guest went down: Linux's mlx5_core tears the NIC down then without a word to its
        netdev, which may ring doorbells that are gone."""
        data, begin, parts = self.log.read_bytes() if self.log.exists() else b"", 0, []
        for start, end in self.going_down:
            parts.append(data[begin:start])
            begin = end
        return b"".join([*parts, data[begin:]]).decode(errors="replace")

    @contextlib.contextmanager
    def while_a_guest_goes_down(self):
        """What it says meanwhile is not held against anybody."""
        start = self.log.stat().st_size
        try:
            yield
        finally:
            self.going_down.append((start, self.log.stat().st_size))

    def kill(self):
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait()
        self.stderr.close()

    def stop(self):
        """Ends it; its exit status."""
        if self.process is None or self.stderr.closed:
            return self.code
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.code = self.process.wait()
        self.stderr.close()
        return self.code


class Run:
    """One run. A context manager, so that all that was started ends."""

    def __init__(self, name, ferroce, folder=None, kernel="6.12", accel="tcg"):
        self.name = name
        self.accel = accel
        self.kernel = kernel
        self.ferroce = pathlib.Path(ferroce).resolve()
        self.folder = pathlib.Path(folder) if folder else RUNS / name
        self.lock = self.alone()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.started = time.monotonic()
        self.parts = []
        self.results = []
        self.image = None
        self.hurry = False
        self.expected = {"kernel": [], "model": []}

    def alone(self):
        """What keeps another run out of the folder for as long as it is open: wires have their sockets there."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open(self.folder.with_name(self.folder.name + ".lock"), "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("%s: another run is at work in %s; wait for it, or name another place with --folder" % (self.name, self.folder))
        return lock

    def note(self, text):
        """Says where the run stands."""
        print("%6.1f s  %s" % (time.monotonic() - self.started, text), flush=True)

    def model(self, name, nics=1, options=()):
        """Starts a model."""
        model = Model(self.ferroce, self.folder, name, nics, options)
        self.parts.append(model)
        model.start()
        return model

    def relay(self, name, path):
        """Starts a relay for the model that serves at `path`: a guest at its `socket` outlives the model."""
        part = relay.Relay(self.folder, name, path)
        self.parts.append(part)
        return part

    def guest(self, name, **options):
        """Boots a guest with the ferroce program in its shared folder, and waits until it is ready."""
        if not self.image:
            self.image = image.build(self.note)
            self.accel = accel.choose(self.image, self.accel, self.folder, self.note)
        options.setdefault("accel", self.accel)
        options.setdefault("kernel", self.kernel)
        guest = qemu.Guest(self.image, self.folder, name, **options)
        if not (guest.share / "ferroce").exists():
            shutil.copy(self.ferroce, guest.share / "ferroce")
        guest.nic_models = [part for part in self.models() if set(part.sockets) & set(guest.models)]
        self.parts.append(guest)
        guest.start()
        guest.wait_ready()
        self.note("%s is up (%s)" % (name, guest.kernel_version))
        return guest

    def check(self, what, right, found=""):
        """Notes whether something is so. A run goes on after what is not, to see more."""
        self.results.append({"what": what, "ok": bool(right), "found": str(found)})
        self.note("%s  %s%s" % ("ok   " if right else "WRONG", what, "" if right or not found else ": %s" % (found,)))
        return bool(right)

    def models(self):
        """All models that were started."""
        return [part for part in self.parts if isinstance(part, Model)]

    def expect(self, kernel=(), model=()):
        """What kernels, or models, will say in this run that they don't in others: regular expressions."""
        self.expected["kernel"] += kernel
        self.expected["model"] += model

    def last_words(self):
        """Checks, when all has ended, what kernels and models had to say from start to end, and how the models ended."""
        for guest in self.parts:
            if isinstance(guest, qemu.Guest):
                profiles = [model.profile for model in guest.nic_models if not model.profile.startswith("minimal")]
                wrong = linux.complaints(guest.kernel_said(), (profiles or ["minimal"])[0], self.expected["kernel"])
                self.check("%s: its kernel has nothing to complain of" % guest.name, not wrong, "\n".join(wrong[:10]))
        for model in self.models():
            wrong = linux.refusals(model, self.expected["model"])
            self.check("%s: the model has nothing to complain of" % model.name, not wrong, "\n".join(wrong[:10]))
            self.check("%s: the model ends in order" % model.name, model.code in (0, None), "%s; %s" % (model.code, model.tail(5)))

    def where(self):
        """Where each part stands, for a run that failed."""
        for part in self.parts:
            process = getattr(part, "process", None)
            state = "" if process is None else " (running)" if process.poll() is None else " (ended)"
            print("---- %s%s, where it stands:" % (part.name, state))
            try:
                print(part.standing() if isinstance(part, qemu.Guest) else part.tail())
            except Exception as error:  # noqa: BLE001 (the others are to be shown all the same)
                print("can't be told: %r" % error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for part in reversed(self.parts):
            try:
                if self.hurry and isinstance(part, qemu.Guest):
                    part.kill()
                part.stop()
            except Exception as error:  # noqa: BLE001 (the others have to end all the same)
                self.check("%s ends" % part.name, False, repr(error))
                traceback.print_exc()

    def write(self):
        """Writes the results down; which of them are wrong."""
        (self.folder / "results.json").write_text(json.dumps(self.results, indent=1))
        return [result for result in self.results if not result["ok"]]


def main(name, body, options=lambda parser: None):
    """Runs `body(run, arguments)` as a program; exits with 0 when every check was right.

    `options` may add arguments of the program's own to the parser.
    """
    parser = argparse.ArgumentParser(prog=name, description=body.__doc__)
    parser.add_argument("--ferroce", default=str(image.TOP / "target/release/ferroce"), help="the program to test")
    parser.add_argument("--folder", help="where logs go, target/lab/runs/%s by default" % name)
    parser.add_argument("--full", action="store_true", help="the long version")
    parser.add_argument("--kernel", default="6.12", help="the guests' kernel: 6.12 (Debian's own), backports, iommufd")
    parser.add_argument("--accel", choices=["tcg", "auto"], default="tcg",
                        help="auto: KVM if a probe guest boots under it, once for each image")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds after which it ends and shows where it stood")
    options(parser)
    arguments = parser.parse_args()
    if not os.access(arguments.ferroce, os.X_OK):
        sys.exit("%s: no program %s (cargo build --release)" % (name, arguments.ferroce))
    ending.when_asked(Asked)
    ending.after(arguments.timeout, TimeIsUp)
    with Run(name, arguments.ferroce, arguments.folder, arguments.kernel, arguments.accel) as run:
        try:
            body(run, arguments)
        except Exception as error:  # noqa: BLE001 (whatever it is, where the parts stand tells why)
            # Whoever asks does not want to wait for guests that shut down.
            run.hurry = isinstance(error, Asked)
            run.check("the run came to its end", False, repr(error))
            traceback.print_exc()
            run.where()
    if not run.hurry:
        run.last_words()
    wrong = run.write()
    print("%s: %d checks, %d wrong, %.0f s; logs in %s"
          % (name, len(run.results), len(wrong), time.monotonic() - run.started, run.folder))
    sys.exit(1 if wrong else 0)
