"""Serve until a signal ends the process, and reload settings on SIGHUP.

A reload applies changeable settings and new TLS files, and logs the result. It names settings that need a restart;
an invalid configuration changes nothing.
"""

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from weir.cli.remote import folder_id
from weir.model.errors import ConfigError, DiskError
from weir.runtime.real_tls import look_at_files
from weir.server.addresses import Address
from weir.server.config.load import Loaded, load
from weir.server.config.tree import KEYS, Config
from weir.server.logs import set_up_logs

log = logging.getLogger(__name__)

#: Settings that a reload applies.
RELOADED = ("log.level", "log.format")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The configuration source of a command. `level`: the log level; command options may override it."""

    file: Path | None
    assignments: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    level: Callable[[Config], str] = lambda config: config.log.level

    def load(self) -> Loaded:
        return load(file=self.file, environment=os.environ, assignments=self.assignments, options=self.options)


class Reloading:
    """Handles SIGHUP. `source`: None without a configuration. `pass_on`: reload child processes; returns their
    number."""

    def __init__(self, source: ConfigSource | None, *, pass_on: Callable[[], int] = lambda: 0) -> None:
        self._source = source
        self._pass_on = pass_on
        self._now = None if source is None else source.load()

    def __call__(self) -> None:
        said = [*self._settings(), *self._files()]
        below = self._pass_on()
        if below:
            said.append(f"{below} child processes reload, too")
        # Logged as a warning, so that the answer appears at every default log level.
        log.warning("SIGHUP: %s", "; ".join(said or ["nothing has changed"]))

    def _settings(self) -> list[str]:
        if self._source is None or self._now is None:
            return []
        try:
            new = self._source.load()
        except ConfigError as wrong:
            return [f"the configuration cannot be used, and stays as it was: {wrong}"]
        changed = [name for name in KEYS if new.value(name) != self._now.value(name)]
        taken = [name for name in changed if name in RELOADED]
        others = [name for name in changed if name not in RELOADED]
        if taken:
            set_up_logs(self._source.level(new.config), new.config.log.format)
            # Settings that need a restart keep their old value here, so that the next reload names them again.
            values = {**self._now.values, **{name: new.value(name) for name in taken}}
            self._now = Loaded(self._now.config, values, self._now.origins)
        said = [f"{name} is {KEYS[name].show(new.value(name))} now" for name in taken]
        if others:
            said.append(f"{', '.join(others)} changed, which takes a restart")
        return said

    @staticmethod
    def _files() -> list[str]:
        renewed, wrong = look_at_files()
        said = [f"the TLS files {', '.join(renewed)} are new, and serve from now on"] if renewed else []
        return said + [f"TLS files cannot be used, and the old ones go on: {one}" for one in wrong]


class Served(Protocol):
    """A node of any kind."""

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
    """Start the node, announce its addresses (or `ready_content`), and wait for SIGTERM, SIGINT or the disk's
    failure; then stop in order. `listening_file`: where commands without an address find the node, with the
    `instance` that the admin REST confirms to them. `reload`: called on SIGHUP."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _heed_hangups(loop, reload or Reloading(None), stopping.set)
    stop = asyncio.create_task(stopping.wait())
    # Obey signals during the start, too: a replay may take long.
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
    """SIGHUP reloads, and never kills. If the terminal is gone, it stops the process in order, as for a closed
    window; a process started with nohup ignores it."""
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
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def _finished_first(work: "asyncio.Task[None]", stop: "asyncio.Task[bool]") -> bool:
    """Wait for the first of both; return whether the work finished. If not, cancel it and wait for its end."""
    await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return False


def say_ready(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write to a temporary file and rename it, so that readers see all of it."""
    if path is not None:
        aside = path.with_name(path.name + ".new")
        aside.write_text(json.dumps(dict(content)) + "\n")
        aside.replace(path)


def say_gone(path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)
