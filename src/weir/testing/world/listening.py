"""What a run leaves behind beside its history: errors that the product logs, and coroutines that died half-way."""

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from weir.model.errors import InvariantError, WeirError
from weir.testing.world.world import World


@contextmanager
def quiet_collection() -> Iterator[None]:
    """Collect what is left of a run here and now, and let coroutines that died half-way go without a word: one
    that awaits in a `finally` block complains of its burial."""
    hook = sys.unraisablehook

    def not_of_burials(unraisable: "sys.UnraisableHookArgs") -> None:
        if "coroutine ignored GeneratorExit" not in str(unraisable.exc_value):
            hook(unraisable)

    sys.unraisablehook = not_of_burials
    try:
        yield
    finally:
        gc.collect()
        sys.unraisablehook = hook


class _Listener(logging.Handler):
    """Hears of failures in the background: those that no fault explains are bugs."""

    def __init__(self, world: World, *, tell: bool) -> None:
        super().__init__()
        self._world = world
        self._tell = tell
        self.bugs: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        if failure is not None and (not isinstance(failure, WeirError) or isinstance(failure, InvariantError)):
            self.bugs.append(failure)
        if self._tell:
            self._world.note("log", f"{record.name} {record.getMessage()}")


@contextmanager
def listening(world: World, trace: TextIO | None) -> Iterator[list[BaseException]]:
    """Collect the bugs that the product logs; with a trace, print it in the end, the product's log within."""
    logger = logging.getLogger("weir")
    before = (logger.handlers[:], logger.propagate, logger.level)
    listener = _Listener(world, tell=trace is not None)
    logger.handlers, logger.propagate = [listener], False
    logger.setLevel(logging.ERROR if trace is None else logging.DEBUG)
    try:
        yield listener.bugs
    finally:
        if trace is not None:
            trace.writelines(f"{line}\n" for line in world.trace.lines())
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])
