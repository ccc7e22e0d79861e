"""A vfio-user relay between QEMU and a NIC model: the model may die and be started again, QEMU sees neither.

QEMU 11.1 ends with an assertion when the process behind a `vfio-user-pci` device ends, so it is connected here. What it
says is handed on to the model, and what the guest has set up (DMA maps, interrupt eventfds) is remembered. While there
is no model, the device is like one that has left its bus: reads give all ones, writes go nowhere. A model that starts
at the same path gets QEMU's version, its DMA maps and its eventfds, and is otherwise as after power on: BARs and
command register are for the guest's kernel to restore, as they are on a real bus.

Source: vfio-user protocol specification 0.1 (QEMU `docs/interop/vfio-user.rst`).
"""

import array
import collections
import fcntl
import os
import select
import socket
import struct
import threading
import time
import traceback

HEADER = struct.Struct("<HHIII")  # message id, command, size, flags, error
REPLY, TYPE, NO_REPLY, ERROR = 1, 0xf, 1 << 4, 1 << 5
VERSION, DMA_MAP, DMA_UNMAP = 1, 2, 3
GET_REGION_INFO, SET_IRQS, REGION_READ, REGION_WRITE, WRITE_MULTI = 5, 8, 9, 10, 15
MAP = struct.Struct("<IIQQQ")  # argsz, flags, offset in the file, address, size
UNMAP = struct.Struct("<IIQQ")  # argsz, flags, address, size
UNMAP_ALL = 6  # both numbers that are in use for it
REGION_INFO = struct.Struct("<IIIIQQ")  # argsz, flags, index, offset of capabilities, size, offset in the file
MAPPABLE = 1 << 2 | 1 << 3  # with a sparse area capability
IRQS = struct.Struct("<IIIII")  # argsz, flags, index, start, count
IRQ_NONE, IRQ_EVENTFD, IRQ_TRIGGER = 1 << 0, 1 << 2, 1 << 5
ACCESS = struct.Struct("<QII")  # offset, region, count
BAR0 = 0
EIO = 5
PAGE = 4096
LARGEST = 2 << 20
MAX_FDS = 253
# Descriptors that any server takes with one message, and commands of a replay that may be unanswered at a time.
FDS_A_MESSAGE, WINDOW = 8, 32
# How often it looks for a new model, and how long one may take to answer, in seconds.
LOOK, PATIENCE = 0.05, 20


class File:
    """A file descriptor, closed with its last user."""

    def __init__(self, fd):
        self.fd = fd

    def __del__(self):
        os.close(self.fd)

    def identity(self):
        """Equal for descriptors of the same file with the same rights."""
        about = os.fstat(self.fd)
        return about.st_dev, about.st_ino, fcntl.fcntl(self.fd, fcntl.F_GETFL) & os.O_ACCMODE


class Message:
    """A message and the files that came with it."""

    def __init__(self, data, files=()):
        self.data = data
        self.files = list(files)
        self.number, self.command, _, self.flags, self.error = HEADER.unpack_from(data)
        self.body = data[HEADER.size :]

    def is_reply(self):
        return self.flags & TYPE == REPLY

    def answer(self, body=b"", error=0):
        """The answer to a command."""
        flags = REPLY | (ERROR if error else 0)
        return Message(HEADER.pack(self.number, self.command, HEADER.size + len(body), flags, error) + body)


def command(number, what, body, files=()):
    """A command of the relay's own."""
    return Message(HEADER.pack(number, what, HEADER.size + len(body), 0, 0) + body, files)


class Gone(Exception):
    """The other end has closed the connection."""


class End:
    """One end of a connection. Nothing is ever waited for, so that neither end can hold the other up."""

    def __init__(self, connection):
        connection.setblocking(False)
        self.socket = connection
        self.coming, self.files, self.size = b"", [], HEADER.size
        self.going = collections.deque()

    def receive(self):
        """The next message, if all of it is there."""
        while len(self.coming) < self.size:
            try:
                # No further than this message: descriptors belong to the message that their bytes begin.
                data, ancillary, _, _ = self.socket.recvmsg(self.size - len(self.coming), socket.CMSG_SPACE(4 * MAX_FDS))
            except BlockingIOError:
                return None
            except OSError as error:
                raise Gone(str(error)) from error
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds = array.array("i", content[: len(content) & ~3])
                    self.files += [File(fd) for fd in fds]
            if not data:
                raise Gone("closed")
            self.coming += data
            if len(self.coming) == HEADER.size:
                self.size = HEADER.unpack(self.coming)[2]
                if not HEADER.size <= self.size <= LARGEST:
                    raise Gone("a message of %d bytes" % self.size)
        message = Message(self.coming, self.files)
        self.coming, self.files, self.size = b"", [], HEADER.size
        return message

    def send(self, message):
        """Sends a message, now or when there is room."""
        self.going.append((message.data, message.files))
        self.flush()

    def flush(self):
        """Sends what there is room for."""
        while self.going:
            data, files = self.going[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fd for file in files]))]
            try:
                sent = self.socket.sendmsg([data], rights if files else [])
            except BlockingIOError:
                return
            except OSError as error:
                raise Gone(str(error)) from error
            if sent == len(data):
                self.going.popleft()
            else:
                self.going[0] = (data[sent:], [])

    def wait(self, deadline):
        """The next message; for an end with which nothing else goes on."""
        while True:
            self.flush()
            message = self.receive()
            if message:
                return message
            left = deadline - time.monotonic()
            if left <= 0:
                raise Gone("it does not answer")
            select.select([self.socket], [self.socket] if self.going else [], [], left)


class Setup:
    """What the guest has set up at the device, as far as it outlives the device: it is the platform's, not the device's."""

    def __init__(self):
        self.version = None
        self.maps = {}  # address: (flags, offset, size, file)
        self.eventfds = {}  # (index, vector): file
        self.files = {}

    def known(self, files):
        """The same files, each open once: QEMU sends the guest's memory with each page of a map."""
        return [self.files.setdefault(file.identity(), file) for file in files]

    def take(self, message):
        """Notes what a command sets up that was accepted."""
        if message.command == VERSION:
            self.version = message.body
        elif message.command == DMA_MAP:
            _, flags, offset, address, size = MAP.unpack_from(message.body)
            self.maps[address] = (flags, offset, size, message.files)
        elif message.command == DMA_UNMAP:
            self._unmap(*UNMAP.unpack_from(message.body)[1:])
        elif message.command == SET_IRQS:
            self._set_irqs(message.files, *IRQS.unpack_from(message.body)[1:])

    def _unmap(self, flags, address, size):
        if flags & UNMAP_ALL:
            self.maps.clear()
        elif size // PAGE < len(self.maps):
            for page in range(address, address + size, PAGE):
                self.maps.pop(page, None)
        else:
            inside = [start for start in self.maps if address <= start < address + size]
            for start in inside:
                del self.maps[start]

    def _set_irqs(self, files, flags, index, start, count):
        if flags == IRQ_NONE | IRQ_TRIGGER and count == 0:
            self.eventfds = {key: file for key, file in self.eventfds.items() if key[0] != index}
        elif flags == IRQ_EVENTFD | IRQ_TRIGGER:
            for vector in range(start, start + min(count, 2048)):
                self.eventfds.pop((index, vector), None)
            for vector, file in enumerate(files, start):
                self.eventfds[index, vector] = file

    def replay(self):
        """The commands, and their files, that set up the same at a new device."""
        yield VERSION, self.version, []
        for address, (flags, offset, size, files) in sorted(self.maps.items()):
            yield DMA_MAP, MAP.pack(MAP.size, flags, offset, address, size), files
        run = []
        for key, file in [*sorted(self.eventfds.items(), key=lambda item: item[0]), (None, None)]:
            if run and (len(run) == FDS_A_MESSAGE or key != (run[-1][0][0], run[-1][0][1] + 1)):
                (index, start), _ = run[0]
                body = IRQS.pack(IRQS.size, IRQ_EVENTFD | IRQ_TRIGGER, index, start, len(run))
                yield SET_IRQS, body, [file for _, file in run]
                run = []
            run.append((key, file))


def left_the_bus(message):
    """The answer to a command when no device is there."""
    if message.command == REGION_READ:
        count = min(ACCESS.unpack_from(message.body)[2], LARGEST // 2)
        return message.answer(message.body[: ACCESS.size] + b"\xff" * count)
    if message.command == REGION_WRITE:
        return message.answer(message.body[: ACCESS.size])
    if message.command == WRITE_MULTI:
        return message.answer(message.body[:8])
    # The platform's part goes on without the device.
    if message.command in (DMA_MAP, SET_IRQS):
        return message.answer()
    if message.command == DMA_UNMAP:
        return message.answer(message.body)
    return message.answer(error=EIO)


class Relay:
    """One NIC's relay, in a thread. `socket` is where QEMU connects to; `model` serves at `path`."""

    def __init__(self, folder, name, path):
        self.name = name
        self.process = None
        self.path = str(path)
        self.socket = folder / (name + ".sock")
        self.socket.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.socket))
        self.listener.listen(1)
        self.listener.setblocking(False)
        self.qemu = self.model = None
        # Commands of QEMU's by their numbers, and numbers of a model's, that are not answered yet.
        self.asked, self.questions = {}, set()
        self.setup = Setup()
        self.replayed = (0, 0)
        self.told = collections.deque(maxlen=50)
        self.there = threading.Event()
        self.trap = None
        self.stopping = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def after_writes(self, count, action):
        """Calls `action`, once, in the relay's thread when so many writes to BAR 0 have been handed on from now."""
        self.trap = (count, action)

    def wait(self, there, timeout):
        """Waits until a model is there with all that the guest has set up, or until none is; whether that is so."""
        deadline = time.monotonic() + timeout
        while self.there.is_set() != there:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK)
        return True

    def tail(self, *_):
        """What it has seen, for `Run.where`."""
        return "\n".join(self.told)

    def stop(self):
        """Ends it."""
        self.stopping = True
        self.thread.join(timeout=PATIENCE + 5)
        self.listener.close()

    def _tell(self, text):
        self.told.append("%s %s" % (time.strftime("%H:%M:%S"), text))

    def _run(self):
        try:
            self._serve()
        except Exception:  # of any kind: the guest would wait for ever, and nobody knew why
            self._tell("the relay failed:\n" + traceback.format_exc())
        finally:
            self.there.clear()
            for end in (self.qemu, self.model):
                if end:
                    end.socket.close()

    def _serve(self):
        while not self.stopping:
            if self.qemu and not self.model:
                self._find_model()
            ends = [end for end in (self.qemu, self.model) if end]
            readable, writable, _ = select.select(
                [self.listener, *(end.socket for end in ends)], [end.socket for end in ends if end.going], [], LOOK)
            if self.listener in readable:
                self._accept()
            if self.model and self.model.socket in readable + writable:
                self._from_model()
            if self.qemu and self.qemu.socket in readable + writable:
                self._from_qemu()

    def _accept(self):
        connection, _ = self.listener.accept()
        if self.qemu:
            connection.close()
            return
        self._tell("QEMU is there")
        self.qemu = End(connection)
        self.setup, self.replayed = Setup(), (0, 0)

    def _find_model(self):
        """Connects to the model, if one listens, and sets up what the guest has set up."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(PATIENCE)
            connection.connect(self.path)
        except OSError:
            connection.close()
            return
        model = End(connection)
        try:
            if self.setup.version:
                self._replay(model)
        except Gone as gone:
            self._tell("a model did not take what was set up: %s" % gone)
            connection.close()
            return
        self._tell("a model is there; %d DMA maps and %d eventfds set up again" % self.replayed)
        self.model = model
        self.there.set()

    def _replay(self, model):
        deadline = time.monotonic() + PATIENCE
        waiting = 0
        for number, (what, body, files) in enumerate(self.setup.replay()):
            model.send(command(number & 0xffff, what, body, files))
            waiting += 1
            # Nothing may come before the answer to the version.
            if what == VERSION or waiting == WINDOW:
                self._answers(model, waiting, deadline)
                waiting = 0
        self._answers(model, waiting, deadline)
        self.replayed = (len(self.setup.maps), len(self.setup.eventfds))

    @staticmethod
    def _answers(model, count, deadline):
        for _ in range(count):
            answer = model.wait(deadline)
            if answer.flags & ERROR:
                raise Gone("command %d refused with %d" % (answer.command, answer.error))

    def _from_model(self):
        """Hands on what the model says."""
        try:
            self.model.flush()
            while message := self.model.receive():
                if message.is_reply():
                    asked = self.asked.pop(message.number, None)
                    if asked and not message.flags & ERROR:
                        self.setup.take(asked)
                        message = self._trapped(message)
                else:
                    self.questions.add(message.number)
                self._to_qemu(message)
        except Gone as gone:
            self._model_gone(gone)

    @staticmethod
    def _trapped(message):
        """A region's description: none is mapped, so that each access comes by here and can be given all ones."""
        if message.command != GET_REGION_INFO or len(message.body) < REGION_INFO.size:
            return message
        _, flags, index, _, size, _ = REGION_INFO.unpack_from(message.body)
        return message.answer(REGION_INFO.pack(REGION_INFO.size, flags & ~MAPPABLE, index, 0, size, 0))

    def _model_gone(self, why):
        self._tell("the model is gone: %s" % why)
        self.model.socket.close()
        self.model = None
        asked, self.asked, self.questions = self.asked, {}, set()
        for message in asked.values():
            self._alone(message)
        self.there.clear()

    def _alone(self, message):
        """Answers a command without a model."""
        answer = left_the_bus(message)
        if not answer.flags & ERROR:
            self.setup.take(message)
        if not message.flags & NO_REPLY:
            self._to_qemu(answer)

    def _to_qemu(self, message):
        if self.qemu:
            try:
                self.qemu.send(message)
            except Gone:
                # It is noticed where its messages are read.
                self.qemu.going.clear()

    def _from_qemu(self):
        """Hands on what QEMU says, or answers it where no model is there."""
        try:
            self.qemu.flush()
            while message := self.qemu.receive():
                self._one_of_qemu(message)
        except Gone as gone:
            self._tell("QEMU is gone: %s" % gone)
            self.qemu.socket.close()
            if self.model:
                self.model.socket.close()
            self.qemu = self.model = None
            self.asked, self.questions = {}, set()
            self.there.clear()

    def _one_of_qemu(self, message):
        if message.is_reply() and message.number not in self.questions:
            # The model that asked is gone.
            return
        if message.command == DMA_MAP:
            message.files = self.setup.known(message.files)
        if not self.model:
            self._alone(message)
            return
        if message.is_reply():
            self.questions.discard(message.number)
        elif message.flags & NO_REPLY:
            self.setup.take(message)
        else:
            self.asked[message.number] = message
        try:
            self.model.send(message)
        except Gone as gone:
            self._model_gone(gone)
            return
        self._watch(message)

    def _watch(self, message):
        if self.trap and message.command == REGION_WRITE and ACCESS.unpack_from(message.body)[1] == BAR0:
            count, action = self.trap
            self.trap = (count - 1, action) if count > 1 else None
            if count <= 1:
                action()
