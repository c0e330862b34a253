"""The runner of SQL's streams beside a broker: a process that `weir up --streams` keeps alive, and ends first."""

import os
from pathlib import Path

from weir.broker.access.tokens import create_token, load_secret, read_key
from weir.cli.spark_side import need_spark
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config import Config
from weir.server.supervisor import Child, ChildSpec, weir_command
from weir.server.up import Served

_LOOPBACK = "127.0.0.1"
#: Spark takes seconds of all cores to start: one that cannot is not started again at once.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


class WithStreams:
    """A node, and the runner of its streams."""

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
        need_spark()
        await self._node.start()
        try:
            spec = runner_spec(self._config, self._node.addresses, await self._token())
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
        return await runner_token(self._config, self._config.streams.token, self._runtime, "streams")


async def runner_token(config: Config, given: str, runtime: Runtime, what: str) -> str | None:
    """As it was given; or one that is made here, where the secret is at hand. `what`: it runs these."""
    if given:
        return given
    if not config.auth.authenticate or "WEIR_TOKEN" in os.environ:
        return None
    auth = config.auth
    if not auth.token_secret or not auth.superusers or auth.role_claim != "sub":
        raise ConfigError(
            f"the runner of the {what} needs a token of a superuser",
            hint=f"set {what}.token=file:/path, made by weir token create",
        )
    secret = load_secret(await read_key(auth.token_secret, runtime.disk))
    return create_token(secret, auth.superusers[0], audience=auth.audience or None)


async def _died(name: str) -> None:
    """Nobody else has to know: its lease runs out by itself."""


def runner_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    streams, data = config.streams, Path(os.path.abspath(config.data))
    url = streams.url
    if not url:
        scheme = next((one for one in ("http", "https") if one in addresses), None)
        if scheme is None:
            raise ConfigError("the runner of the streams needs listeners.http", hint="set it, or streams.url")
        url = f"{scheme}://{reached(addresses[scheme])}"
    command = weir_command("-v", "streams", "run", "--standby", "--url", url, "--master", streams.master)
    command += ["--memory", streams.memory, "--checkpoints", streams.checkpoints or str(data / "sql")]
    command += ["--ca", streams.ca] if streams.ca else []
    # The token goes by the environment: a command line can be seen by everybody on the machine.
    environment = {} if token is None else {"WEIR_TOKEN": token}
    return ChildSpec(
        "streams",
        "streams",
        command,
        environment=environment,
        first_pause_s=_FIRST_PAUSE_S,
        pause_s=_LONGEST_PAUSE_S,
    )


def reached(address: Address) -> Address:
    """From this machine."""
    return Address(_LOOPBACK if address.host in ("", "0.0.0.0", "::") else address.host, address.port)


def served(node: Served, runtime: Runtime, config: Config, *, streams: bool) -> Served:
    """The node, with the runner of its streams if that is wanted."""
    return WithStreams(node, runtime, config) if streams or config.streams.run else node
