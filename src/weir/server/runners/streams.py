"""The runner of SQL's streams beside a broker: `weir up --streams`."""

import os
from pathlib import Path

from weir.cli.spark.common import need_spark
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config.tree import Config
from weir.server.runners.beside import WithRunner, runner_token, tls_words, token_environment, url_from_here
from weir.server.supervisor import ChildSpec, weir_command
from weir.server.up import Served

_RUNS = "streams"
#: Spark takes seconds of all cores to start: one that cannot is not started again at once.
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
    """The node, with the runner of its streams if that is wanted."""

    async def spec(addresses: dict[str, Address]) -> ChildSpec:
        token = await runner_token(config, config.streams, runtime, runs=_RUNS, section=_RUNS)
        return runner_spec(config, addresses, token)

    return WithRunner(node, runtime, spec, check=need_spark) if streams or config.streams.run else node
