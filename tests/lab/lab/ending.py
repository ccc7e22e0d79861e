"""How runs end: in time, and with all that they started, also when they are killed."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def with_this_process():
    """In a child, before its program starts: it is killed when the process that started it ends, however that ends.

    Linux means the thread that started it (prctl(2)): children are started by the main thread.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def after(seconds, error):
    """Raises `error` in the main thread when so many seconds have passed, or when a signal asks for the end."""

    def time_is_up(_number, _frame):
        raise error("not at its end after %d s" % seconds)

    def told_to(number, _frame):
        raise error("ended by %s" % signal.Signals(number).name)

    signal.signal(signal.SIGALRM, time_is_up)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told_to)
    signal.alarm(seconds)
