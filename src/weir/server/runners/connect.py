"""The runner of connectors beside a broker: `weir up --connect`."""

from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config.tree import Config
from weir.server.runners.beside import WithRunner, runner_token, tls_words, token_environment, url_from_here
from weir.server.supervisor import ChildSpec, weir_command
from weir.server.up import Served

_RUNS, _SECTION = "connectors", "connect"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


def connectors_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    connect = config.connect
    url = connect.url or url_from_here(addresses, runs=_RUNS, section=_SECTION)
    command = weir_command("-v", "connect", "run", "--standby", "--url", url)
    command += tls_words(connect)
    return ChildSpec(
        "connect",
        "connect",
        command,
        environment=token_environment(token),
        first_pause_s=_FIRST_PAUSE_S,
        pause_s=_LONGEST_PAUSE_S,
    )


def with_connectors(node: Served, runtime: Runtime, config: Config, *, connect: bool) -> Served:
    """The node, with the runner of connectors if that is wanted."""

    async def spec(addresses: dict[str, Address]) -> ChildSpec:
        token = await runner_token(config, config.connect, runtime, runs=_RUNS, section=_SECTION)
        return connectors_spec(config, addresses, token)

    return WithRunner(node, runtime, spec) if connect or config.connect.run else node
