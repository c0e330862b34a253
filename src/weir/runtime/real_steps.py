"""Ends or halts this process at a step that the environment names: how tests learn what a crash there leaves."""

import os
import signal
from collections.abc import Callable

_PAUSE = "pause:"


def stop_at(wanted: str | None) -> Callable[[str], None]:
    """To be told each step. At `STEP` the process ends as by `kill -9`; at `pause:STEP` it stands still, the first
    time that it comes there, until somebody has it go on (SIGCONT)."""
    left = [wanted or ""]

    def reached(step: str) -> None:
        if step == left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        elif f"{_PAUSE}{step}" == left[0]:
            left[0] = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    return reached
