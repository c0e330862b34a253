"""The options by which a command takes a configuration."""

from collections.abc import Callable
from typing import Any

import click

#: `--port-offset N`, as `port_offset`: None if it is not given.
port_offset_option = click.option(
    "--port-offset",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="Add N to the port of each listener: with 100, Pulsar 6750, Kafka 9192, HTTP 8180, and so on.",
)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--config FILE` and `--set key=value`, as `config_file` and `assignments`."""
    command = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one value; may be repeated. See weir config show.",
    )(command)
    return click.option(
        "--config", "config_file", envvar="WEIR_CONFIG", metavar="FILE", help="Read settings from a TOML file."
    )(command)
