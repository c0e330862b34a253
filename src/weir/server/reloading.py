"""What SIGHUP does: settings that can change are taken from the configuration, TLS files are looked at.

The log says all of it. What needs a restart is named; what is wrong leaves everything as it was.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from weir.model.errors import ConfigError
from weir.runtime.real_tls import look_at_files
from weir.server.config.load import Loaded, load
from weir.server.config.tree import KEYS, Config
from weir.server.logs import set_up_logs

log = logging.getLogger(__name__)

#: Settings that hold at once.
RELOADED = ("log.level", "log.format")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where a command has its configuration from. `level`: what is logged; options of the command may say it."""

    file: Path | None
    assignments: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    level: Callable[[Config], str] = lambda config: config.log.level

    def load(self) -> Loaded:
        return load(file=self.file, environment=os.environ, assignments=self.assignments, options=self.options)


class Reloading:
    """`source`: None where there is no configuration. `pass_on`: have the processes below do the same; answers to
    how many that was said."""

    def __init__(self, source: ConfigSource | None, *, pass_on: Callable[[], int] = lambda: 0) -> None:
        self._source = source
        self._pass_on = pass_on
        self._now = None if source is None else source.load()

    def __call__(self) -> None:
        said = [*self._settings(), *self._files()]
        below = self._pass_on()
        if below:
            said.append(f"{below} processes below do the same")
        # Whoever asks for it looks for the answer: it is said at every level that a server may have by default.
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
            # What needs a restart is as it was when this process began, and is named again the next time.
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
