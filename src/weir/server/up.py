"""A process that serves until a signal ends it."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from weir.cli.found import folder_id
from weir.model.errors import DiskError
from weir.server.addresses import Address
from weir.server.reloading import Reloading


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
    instance: str = "",
    reload: Callable[[], None] | None = None,
) -> None:
    """Start, say so (where it listens, or `ready_content`), and wait for SIGTERM, SIGINT or the disk's failure;
    then end in order. `listening_file`: where commands that are given no address find it, with the `instance`
    that the admin REST confirms to them. `reload`: done at a SIGHUP."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _heed_hangups(loop, reload or Reloading(None), stopping.set)
    stop = asyncio.create_task(stopping.wait())
    # A signal while it starts is obeyed, too: a replay may take long.
    if not await _finished_first(asyncio.create_task(node.start()), stop):
        return
    try:
        where = {name: str(address) for name, address in node.addresses.items()}
        if listening_file is not None:
            known = {"pid": os.getpid(), "instance": instance, "folder": folder_id(listening_file.parent)}
            say_ready(listening_file, {**known, **where})
        say_ready(ready_file, where if ready_content is None else ready_content())
        on_ready()
        await _finished_first(asyncio.create_task(node.failed()), stop)
    finally:
        say_gone(ready_file)
        say_gone(listening_file)
        await node.close()
    if not stopping.is_set():
        raise DiskError("the disk failed, so nothing more can be stored", hint="see the log, then start it again")


def _heed_hangups(loop: asyncio.AbstractEventLoop, reload: Callable[[], None], end: Callable[[], None]) -> None:
    """SIGHUP reloads, and never kills. One that comes because the terminal is gone ends it in order, as a closed
    window should; who began it with nohup wants neither."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    at_terminal = _has_terminal()

    def hung_up() -> None:
        if at_terminal and not _has_terminal():
            end()
        else:
            reload()

    loop.add_signal_handler(signal.SIGHUP, hung_up)


def _has_terminal() -> bool:
    """Whether there is a terminal that controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


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
