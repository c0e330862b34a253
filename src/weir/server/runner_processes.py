"""Runners beside a broker: supervised processes of `weir up` for streams, functions and connectors.

`weir up --streams`, `--functions` and `--connect` start them; they end before the node.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from weir.broker.security.tokens import create_token, load_secret, read_key
from weir.cli.spark_session import need_spark
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config.tree import Config, RunnerConfig
from weir.server.serve import Served
from weir.server.supervisor import Child, ChildSpec, weir_command

_LOOPBACK = "127.0.0.1"


class WithRunner:
    """A node and a runner. `spec`: the process, given the node's addresses; `check`: raises before the node starts
    if the runner cannot run."""

    def __init__(
        self,
        node: Served,
        runtime: Runtime,
        spec: Callable[[dict[str, Address]], Awaitable[ChildSpec]],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._runtime = runtime
        self._spec = spec
        self._check = check
        #: Set by `start`.
        self.child: Child | None = None

    @property
    def addresses(self) -> dict[str, Address]:
        return self._node.addresses

    async def start(self) -> None:
        """Start without waiting for the runner, which logs its own progress."""
        self._check()
        await self._node.start()
        try:
            self.child = Child(await self._spec(self._node.addresses), self._runtime.clock, lambda: None, _died)
            await self.child.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the runner first: it finishes its work while the node serves it, and releases its lease in the
        metadata."""
        if self.child is not None:
            await self.child.stop()
        await self._node.close()

    async def failed(self) -> None:
        await self._node.failed()


async def _died(name: str) -> None:
    """Needs no action: the runner's lease expires, and the next runner fences its workers."""


async def runner_token(
    config: Config, given: RunnerConfig, runtime: Runtime, *, runs: str, section: str
) -> str | None:
    """The configured token; else a new one, if the secret is available; none with a certificate. `runs`: what the
    runner runs, in words; `section`: its settings section."""
    auth = config.auth
    if given.token:
        return given.token
    if (
        not auth.authenticate
        or given.certificate
        or "WEIR_TOKEN" in os.environ
        or "WEIR_CERTIFICATE" in os.environ
    ):
        return None
    if not auth.token_secret or not auth.superusers or auth.role_claim != "sub":
        raise ConfigError(
            f"the runner of the {runs} needs a token of a superuser",
            hint=f"set {section}.token=file:/path, made by weir token create, or {section}.certificate",
        )
    secret = load_secret(await read_key(auth.token_secret, runtime.disk)).key
    return create_token(secret, auth.superusers[0], audience=auth.audience or None)


def url_from_here(addresses: dict[str, Address], *, runs: str, section: str) -> str:
    """The node's URL for the runner; ConfigError if it has none."""
    scheme = next((one for one in ("http", "https") if one in addresses), None)
    if scheme is None:
        raise ConfigError(f"the runner of the {runs} needs listeners.http", hint=f"set it, or {section}.url")
    address = addresses[scheme]
    host = _LOOPBACK if address.host in ("", "0.0.0.0", "::") else address.host
    return f"{scheme}://{Address(host, address.port)}"


def tls_words(given: RunnerConfig) -> list[str]:
    """Command-line options for the TLS files."""
    named = (("--ca", given.ca), ("--cert", given.certificate), ("--cert-key", given.key))
    return [word for name, file in named if file for word in (name, file)]


def token_environment(token: str | None) -> dict[str, str]:
    """Pass the token in the environment: every user of the machine can read a command line."""
    return {} if token is None else {"WEIR_TOKEN": token}


_CONNECT_RUNS, _SECTION = "connectors", "connect"
_CONNECT_FIRST_PAUSE_S, _CONNECT_LONGEST_PAUSE_S = 1.0, 60.0


def connectors_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    connect = config.connect
    url = connect.url or url_from_here(addresses, runs=_CONNECT_RUNS, section=_SECTION)
    command = weir_command("-v", "connect", "run", "--standby", "--url", url)
    command += tls_words(connect)
    return ChildSpec(
        "connect",
        "connect",
        command,
        environment=token_environment(token),
        first_pause_s=_CONNECT_FIRST_PAUSE_S,
        pause_s=_CONNECT_LONGEST_PAUSE_S,
    )


def with_connectors(node: Served, runtime: Runtime, config: Config, *, connect: bool) -> Served:
    """The node, with the runner of connectors if wanted."""

    async def spec(addresses: dict[str, Address]) -> ChildSpec:
        token = await runner_token(config, config.connect, runtime, runs=_CONNECT_RUNS, section=_SECTION)
        return connectors_spec(config, addresses, token)

    return WithRunner(node, runtime, spec) if connect or config.connect.run else node


_FUNCTIONS_RUNS = "functions"
_FUNCTIONS_FIRST_PAUSE_S, _FUNCTIONS_LONGEST_PAUSE_S = 1.0, 30.0


def functions_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    functions, data = config.functions, Path(os.path.abspath(config.data))
    url = functions.url or url_from_here(addresses, runs=_FUNCTIONS_RUNS, section=_FUNCTIONS_RUNS)
    command = weir_command("-v", "functions", "run", "--standby", "--url", url)
    command += ["--checkpoints", functions.checkpoints or str(data / "functions")]
    command += tls_words(functions)
    for role in functions.deployers:
        command += ["--deployed-by", role]
    return ChildSpec(
        "functions",
        "functions",
        command,
        environment=token_environment(token),
        first_pause_s=_FUNCTIONS_FIRST_PAUSE_S,
        pause_s=_FUNCTIONS_LONGEST_PAUSE_S,
    )


def with_functions(node: Served, runtime: Runtime, config: Config, *, functions: bool) -> Served:
    """The node, with the runner of functions if wanted."""

    async def spec(addresses: dict[str, Address]) -> ChildSpec:
        token = await runner_token(
            config, config.functions, runtime, runs=_FUNCTIONS_RUNS, section=_FUNCTIONS_RUNS
        )
        return functions_spec(config, addresses, token)

    return WithRunner(node, runtime, spec) if functions or config.functions.run else node


_RUNS = "streams"
#: Spark's start uses all cores for seconds, so a failed one waits before the next attempt.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


def runner_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    streams, data = config.streams, Path(os.path.abspath(config.data))
    url = streams.url or url_from_here(addresses, runs=_RUNS, section=_RUNS)
    command = weir_command("-v", "streams", "run", "--standby", "--url", url, "--master", streams.master)
    command += ["--memory", streams.memory, "--checkpoints", streams.checkpoints or str(data / "sql")]
    command += tls_words(streams)
    return ChildSpec(
        "streams",
        "streams",
        command,
        environment=token_environment(token),
        first_pause_s=_FIRST_PAUSE_S,
        pause_s=_LONGEST_PAUSE_S,
    )


def with_streams(node: Served, runtime: Runtime, config: Config, *, streams: bool) -> Served:
    """The node, with the runner of streams if wanted."""

    async def spec(addresses: dict[str, Address]) -> ChildSpec:
        token = await runner_token(config, config.streams, runtime, runs=_RUNS, section=_RUNS)
        return runner_spec(config, addresses, token)

    return WithRunner(node, runtime, spec, check=need_spark) if streams or config.streams.run else node
