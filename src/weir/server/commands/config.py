"""`weir config`: the settings of `weir up`, their values, origins and descriptions."""

import json
import os
from pathlib import Path
from typing import Any

import click

from weir.cli.command import examples
from weir.cli.output import Column, Format, Output
from weir.cli.remote import output_options
from weir.server.config.keys import Key, find_key
from weir.server.config.load import Loaded, config_options, load
from weir.server.config.tree import KEYS


@click.group(
    epilog="""
\b
Examples:
  weir config show                       every setting, its value and its origin
  weir config show --changed --json      only changed settings, for programs
  weir config explain storage.sync       the description of one setting
  weir config show --config weir.toml --set listeners.http=127.0.0.1:0
"""
)
def config() -> None:
    """Show and explain the settings of `weir up`. The environment overrides the file, --set overrides both."""


@config.command(epilog=examples("weir config show", "weir config show --changed -o csv"))
@config_options
@click.option("--changed", is_flag=True, help="Show only changed settings.")
@output_options
def show(config_file: str | None, assignments: tuple[str, ...], changed: bool, out: Output) -> None:
    """Show the effective value and the origin of every setting. Secrets are hidden."""
    loaded = _load(config_file, assignments)
    rows = [key for key in KEYS.values() if not changed or key.name in loaded.origins]
    none = "" if out.format is Format.CSV else "(none)"
    out.table(
        ("setting", Column("value", cut="end"), Column("from", cut="start")),
        [(key.name, key.show(loaded.value(key.name)) or none, loaded.origin(key.name)) for key in rows],
        data={key.name: _json(key, loaded) for key in rows},
    )


@config.command(
    epilog="""
\b
Examples:
  weir config explain listeners.pulsar
  weir config explain                    all settings, as a TOML file
"""
)
@click.argument("name", metavar="[KEY]", required=False)
@config_options
def explain(name: str | None, config_file: str | None, assignments: tuple[str, ...]) -> None:
    """Explain one setting; without KEY, write all of them as a commented TOML file."""
    if name is None:
        click.echo(sample())
        return
    key = find_key(KEYS, name)
    loaded = _load(config_file, assignments)
    lines = {
        "meaning": key.doc,
        "written": key.kind.how,
        "default": key.show(key.default) or "(none)",
        "value": f"{key.show(loaded.value(name)) or '(none)'}, from {loaded.origin(name)}",
        "file": _toml_line(key, in_section=False),
        "environment": f"{key.variable}={key.show(key.default)}",
        "command line": f"--set {key.name}={key.show(key.default)}",
    }
    click.echo(key.name)
    for title, text in lines.items():
        click.echo(f"  {title + ':':<14}{text}")


def sample() -> str:
    """Every setting with its default, as a TOML file that changes nothing."""
    lines: list[str] = []
    section = ""
    for key in KEYS.values():
        here = key.name.rpartition(".")[0]
        if here != section:
            lines += ["", f"[{here}]"]
            section = here
        lines += [f"# {key.doc}", f"# {_toml_line(key, in_section=True)}"]
    return "\n".join(lines)


def _toml_line(key: Key, *, in_section: bool) -> str:
    name = key.name.rpartition(".")[2] if in_section else key.name
    if isinstance(key.default, bool):
        return f"{name} = {'true' if key.default else 'false'}"
    if isinstance(key.default, tuple) and not hasattr(key.default, "port"):
        return f"{name} = {json.dumps(list(key.default))}"
    shown = key.show(key.default)
    plain = isinstance(key.default, int) and shown == str(key.default)
    return f"{name} = {shown if plain else json.dumps(shown)}"


def _json(key: Key, loaded: Loaded) -> dict[str, Any]:
    value = loaded.value(key.name)
    plain = isinstance(value, int | float) and not key.secret
    return {"value": value if plain else key.show(value), "from": loaded.origin(key.name)}


def _load(config_file: str | None, assignments: tuple[str, ...]) -> Loaded:
    file = None if config_file is None else Path(config_file)
    return load(file=file, environment=os.environ, assignments=assignments)
