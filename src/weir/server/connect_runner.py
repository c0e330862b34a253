"""The runner of connectors beside a broker: a process that `weir up --connect` keeps alive, and ends first."""

import os

from weir.broker.access.tokens import create_token, load_secret, read_key
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config import Config
from weir.server.streams_runner import reached
from weir.server.supervisor import Child, ChildSpec, weir_command
from weir.server.up import Served

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class WithConnectors:
    """A node, and the runner of its connectors."""

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
            spec = connectors_spec(self._config, self._node.addresses, await self._token())
            self._child = Child(spec, self._runtime.clock, lambda: None, _died)
            await self._child.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """The runner goes first, and lets go of its lease where it is kept."""
        if self._child is not None:
            await self._child.stop()
        await self._node.close()

    async def failed(self) -> None:
        await self._node.failed()

    async def _token(self) -> str | None:
        """As it was given; or one that is made here, where the secret is at hand."""
        config, auth = self._config, self._config.auth
        if config.connect.token:
            return config.connect.token
        if not auth.authenticate or "WEIR_TOKEN" in os.environ:
            return None
        if not auth.token_secret or not auth.superusers or auth.role_claim != "sub":
            raise ConfigError(
                "the runner of connectors needs a token of a superuser",
                hint="set connect.token=file:/path, made by weir token create",
            )
        secret = load_secret(await read_key(auth.token_secret, self._runtime.disk))
        return create_token(secret, auth.superusers[0], audience=auth.audience or None)


async def _died(name: str) -> None:
    """Nobody else has to know: its lease runs out by itself."""


def connectors_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    url = config.connect.url
    if not url:
        scheme = next((one for one in ("http", "https") if one in addresses), None)
        if scheme is None:
            raise ConfigError("the runner of connectors needs listeners.http", hint="set it, or connect.url")
        url = f"{scheme}://{reached(addresses[scheme])}"
    command = weir_command("-v", "connect", "run", "--standby", "--url", url)
    command += ["--ca", config.connect.ca] if config.connect.ca else []
    # The token goes by the environment: a command line can be seen by everybody on the machine.
    environment = {} if token is None else {"WEIR_TOKEN": token}
    return ChildSpec(
        "connect",
        "connect",
        command,
        environment=environment,
        first_pause_s=_FIRST_PAUSE_S,
        pause_s=_LONGEST_PAUSE_S,
    )


def with_connectors(node: Served, runtime: Runtime, config: Config, *, connect: bool) -> Served:
    """The node, with the runner of connectors if that is wanted."""
    return WithConnectors(node, runtime, config) if connect or config.connect.run else node
