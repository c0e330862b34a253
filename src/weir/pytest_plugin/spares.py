"""The next test's broker: started while this test runs, so that the next one need not wait for it."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from weir.pytest_plugin.broker import WeirBroker, flat_settings
from weir.pytest_plugin.errors import BrokerFailedError
from weir.pytest_plugin.processes import BrokerProcesses


class SpareBrokers:
    """At most one, with the settings of the last: tests beside each other usually have the same."""

    def __init__(self, processes: BrokerProcesses) -> None:
        self._processes = processes
        self._spare: WeirBroker | None = None

    def take(self, config: Mapping[str, Any]) -> WeirBroker:
        """One that nobody has used, with these settings; it may be starting already."""
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.config == flat_settings(config):
                return spare
            spare.close()
        return WeirBroker(self._processes, config)

    def prepare(self, config: Mapping[str, Any]) -> None:
        """Have one with these settings ready."""
        if self._spare is None:
            with suppress(BrokerFailedError):  # whoever asks for it next is told
                self._spare = WeirBroker(self._processes, config)
                self._spare.prepare()

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None
