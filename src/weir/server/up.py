"""A process that serves until a signal ends it."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from weir.model.errors import DiskError
from weir.server.addresses import Address


class Served(Protocol):
    """What runs: a node of some kind."""

    @property
    def addresses(self) -> dict[str, Address]: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def failed(self) -> None: ...


async def serve_until_signal(
    node: Served,
    *,
    ready_file: Path | None,
    on_ready: Callable[[], None],
    ready_content: Callable[[], Mapping[str, Any]] | None = None,
    listening_file: Path | None = None,
) -> None:
    """Start, say so (where it listens, or `ready_content`), and wait for SIGTERM, SIGINT or the disk's failure;
    then end in order. `listening_file`: where commands that are given no address find it."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    stop = asyncio.create_task(stopping.wait())
    # A signal while it starts is obeyed, too: a replay may take long.
    if not await _finished_first(asyncio.create_task(node.start()), stop):
        return
    try:
        where = {name: str(address) for name, address in node.addresses.items()}
        say_ready(listening_file, {"pid": os.getpid(), **where})
        say_ready(ready_file, where if ready_content is None else ready_content())
        on_ready()
        await _finished_first(asyncio.create_task(node.failed()), stop)
    finally:
        say_gone(ready_file)
        say_gone(listening_file)
        await node.close()
    if not stopping.is_set():
        raise DiskError(
            "the journal failed, so nothing more can be stored", hint="see the log, then start it again"
        )


async def _finished_first(work: "asyncio.Task[None]", stop: "asyncio.Task[bool]") -> bool:
    """Wait for either; whether the work was done. If not, it is cancelled and waited for."""
    await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return False


def say_ready(path: Path | None, content: Mapping[str, Any]) -> None:
    """Written aside and renamed: who sees the file sees all of it."""
    if path is not None:
        aside = path.with_name(path.name + ".new")
        aside.write_text(json.dumps(dict(content)) + "\n")
        aside.replace(path)


def say_gone(path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)
