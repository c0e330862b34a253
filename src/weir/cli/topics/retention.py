"""Retention as commands take it and show it: the same for namespaces and topics."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from weir.cli.values import parse_size, parse_span_ms

_F = TypeVar("_F", bound=Callable[..., Any])


def retention_options(command: _F) -> _F:
    """`--time` and `--size`."""
    command = click.option(
        "--size",
        default="-1",
        show_default=True,
        metavar="SIZE",
        help="As in 500M or 10G; 0: none; -1: without end.",
    )(command)
    return click.option(
        "--time", "time_", required=True, metavar="SPAN", help="As in 12h or 7d; 0: none; -1: without end."
    )(command)


def retention_body(time_: str, size: str) -> dict[str, int]:
    """As the admin API takes it: whole minutes and megabytes, rounded up."""
    minutes = -1 if time_ == "-1" else -(-parse_span_ms(time_) // 60_000)
    whole = parse_size(size)
    megabytes = -1 if whole == -1 else -(-whole // 1024**2)
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def retention_text(body: Mapping[str, int]) -> str:
    minutes, megabytes = body["retentionTimeInMinutes"], body["retentionSizeInMB"]
    if minutes == 0 or megabytes == 0:
        return "not at all"
    time_text = "for ever" if minutes < 0 else f"for {minutes} min"
    return time_text + ("" if megabytes < 0 else f", up to {megabytes} MB")
