"""How runs end: in time, and with all that they started, also when they are killed."""

import ctypes
import signal
import subprocess

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def with_this_process():
    """In a child, before its program starts: it is killed when the process that started it ends, however that ends.

    Linux means the thread that started it (prctl(2)): children are started by the main thread.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# Signals that ask for the end.
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _from_now_on_undisturbed():
    """The first reason to end is enough: what ends then must not be interrupted."""
    signal.alarm(0)
    for number in ASKED:
        signal.signal(number, signal.SIG_IGN)


def when_asked(error):
    """Raises `error` in the main thread when a signal asks for the end."""

    def asked(number, _frame):
        _from_now_on_undisturbed()
        raise error("ended by %s" % signal.Signals(number).name)

    for number in ASKED:
        signal.signal(number, asked)


def after(seconds, error):
    """Raises `error` in the main thread when so many seconds have passed."""

    def time_is_up(_number, _frame):
        _from_now_on_undisturbed()
        raise error("not at its end after %d s" % seconds)

    signal.signal(signal.SIGALRM, time_is_up)
    signal.alarm(seconds)


def ended(process, patience):
    """Asks a process to end, and ends it if it does not within `patience` seconds; what it has started goes with it."""
    process.terminate()
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
