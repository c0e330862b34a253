"""The runner of functions beside a broker: `weir up --functions`."""

import os
from pathlib import Path

from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config.tree import Config
from weir.server.runners.beside import WithRunner, runner_token, tls_words, token_environment, url_from_here
from weir.server.supervisor import ChildSpec, weir_command
from weir.server.up import Served

_RUNS = "functions"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


def functions_spec(config: Config, addresses: dict[str, Address], token: str | None) -> ChildSpec:
    """ConfigError unless the runner can reach the node."""
    functions, data = config.functions, Path(os.path.abspath(config.data))
    url = functions.url or url_from_here(addresses, runs=_RUNS, section=_RUNS)
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
        first_pause_s=_FIRST_PAUSE_S,
        pause_s=_LONGEST_PAUSE_S,
    )


def with_functions(node: Served, runtime: Runtime, config: Config, *, functions: bool) -> Served:
    """The node, with the runner of its functions if that is wanted."""

    async def spec(addresses: dict[str, Address]) -> ChildSpec:
        token = await runner_token(config, config.functions, runtime, runs=_RUNS, section=_RUNS)
        return functions_spec(config, addresses, token)

    return WithRunner(node, runtime, spec) if functions or config.functions.run else node
