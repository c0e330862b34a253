"""The runner of functions beside a broker: a process that `weir up --functions` keeps alive, and ends first."""

import os
from pathlib import Path

from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config import Config
from weir.server.streams_runner import reached, runner_token
from weir.server.supervisor import Child, ChildSpec, weir_command
from weir.server.up import Served

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class WithFunctions:
    """A node, and the runner of its functions."""

    def __init__(self, node: Served, runtime: Runtime, config: Config) -> None:
        self._node = node
        self._runtime = runtime
        self._config = config
        self._child: Child | None = None

    @property
    def addresses(self) -> dict[str, Address]:
        return self._node.addresses

    async def start(self) -> None:
        """The runner is not waited for: it says itself, in the same log, how it goes."""
        await self._node.start()
        try:
            token = await runner_token(self._config, self._config.functions.token, self._runtime, "functions")
            spec = functions_spec(self._config, self._node.addresses, token)
            self._child = Child(spec, self._runtime.clock, lambda: None, _died)
            await self._child.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """The runner goes first: functions finish what they have while there is somebody to take it."""
        if self._child is not None:
            await self._child.stop()
        await self._node.close()

    async def failed(self) -> None:
        await self._node.failed()


async def _died(name: str) -> None:
    """Nobody else has to know: its lease runs out by itself, and its workers are fenced by the next."""


def functions_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    functions, data = config.functions, Path(os.path.abspath(config.data))
    url = functions.url
    if not url:
        scheme = next((one for one in ("http", "https") if one in addresses), None)
        if scheme is None:
            raise ConfigError("the runner of the functions needs listeners.http", hint="set it, or functions.url")
        url = f"{scheme}://{reached(addresses[scheme])}"
    command = weir_command("-v", "functions", "run", "--standby", "--url", url)
    command += ["--checkpoints", functions.checkpoints or str(data / "functions")]
    command += ["--ca", functions.ca] if functions.ca else []
    # The token goes by the environment: a command line can be seen by everybody on the machine.
    environment = {} if token is None else {"WEIR_TOKEN": token}
    return ChildSpec(
        "functions",
        "functions",
        command,
        environment=environment,
        first_pause_s=_FIRST_PAUSE_S,
        pause_s=_LONGEST_PAUSE_S,
    )


def with_functions(node: Served, runtime: Runtime, config: Config, *, functions: bool) -> Served:
    """The node, with the runner of its functions if that is wanted."""
    return WithFunctions(node, runtime, config) if functions or config.functions.run else node
