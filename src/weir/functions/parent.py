"""A worker does not outlive its runner, nor a process that calls the function its worker."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """This signal when whoever started the process is gone, and at once if that was gone before this."""
    if sys.platform == "linux":
        before = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != before:
            os.kill(os.getpid(), number)
