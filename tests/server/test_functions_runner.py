"""`weir up --functions`: the runner's process is told where the broker is, and is there only if it is wanted."""

from typing import Any, cast

import pytest

from weir.model.errors import ConfigError
from weir.server.addresses import Address
from weir.server.config.load import load
from weir.server.config.tree import Config
from weir.server.runner_processes import WithRunner, functions_spec, with_functions

HTTP = {"http": Address("0.0.0.0", 8080)}


def config(*assignments: str) -> Config:
    return load(assignments=assignments, environment={}).config


def test_the_runner_is_told_where_the_broker_is_and_its_token_by_the_environment() -> None:
    spec = functions_spec(config("data=/var/lib/weir"), HTTP, "s3cret")
    assert spec.command[-7:] == [
        *("functions", "run", "--standby", "--url", "http://127.0.0.1:8080"),
        *("--checkpoints", "/var/lib/weir/functions"),
    ]
    assert spec.environment == {"WEIR_TOKEN": "s3cret"}
    assert "s3cret" not in " ".join(spec.command)
    tls = functions_spec(config("functions.url=https://weir:8443", "functions.ca=/ca.pem"), {}, None)
    assert "https://weir:8443" in tls.command
    assert tls.command[-2:] == ["--ca", "/ca.pem"]
    some = functions_spec(config("functions.deployers=ci,ops"), HTTP, None)
    assert some.command[-4:] == ["--deployed-by", "ci", "--deployed-by", "ops"]
    with pytest.raises(ConfigError, match=r"listeners\.http"):
        functions_spec(config(), {}, None)


def test_it_runs_if_the_command_or_the_configuration_says_so() -> None:
    node = cast(Any, object())
    assert with_functions(node, cast(Any, None), config(), functions=False) is node
    for wanted in (
        with_functions(node, cast(Any, None), config(), functions=True),
        with_functions(node, cast(Any, None), config("functions.run=true"), functions=False),
    ):
        assert isinstance(wanted, WithRunner)
