"""A worker does not outlive its runner."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """SIGTERM when the runner is gone, and at once if it was gone before this."""
    if sys.platform == "linux":
        before = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != before:
            os.kill(os.getpid(), signal.SIGTERM)
