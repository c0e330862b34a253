"""`weir schemas`: the schemas of a topic's messages."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from weir.cli.arguments import complete_topic, parse_pairs, show_moment
from weir.cli.command import examples
from weir.cli.output import Column, Format, Output, done, print_json
from weir.cli.remote import Remote, remote_options
from weir.client.admin import join
from weir.model.errors import ConfigError
from weir.model.json_schema import is_json_schema, to_avro
from weir.model.topics import TopicName


@click.group(
    epilog="""
\b
Examples:
  weir schemas get orders
  weir schemas upload orders --type AVRO --file order.avsc
  weir schemas check orders --type AVRO --file order-v2.avsc
  weir schemas versions orders
"""
)
def schemas() -> None:
    """Show, upload, check and delete the schemas of a topic."""


@schemas.command(epilog=examples("weir schemas get orders", "weir schemas get orders --version 0 --json"))
@click.argument("topic", shell_complete=complete_topic)
@click.option("--version", type=click.IntRange(min=0), help="By default the newest.")
@remote_options
def get(topic: str, version: int | None, remote: Remote, out: Output) -> None:
    """Show a schema."""
    rest = () if version is None else (str(version),)
    found = remote.admin(lambda admin: admin.get(_path(topic, "schema", *rest)))
    fields = [(name, _field(found, name)) for name in ("version", "type", "timestamp", "properties")]
    if out.format in (Format.TABLE, Format.WIDE):
        out.fields(fields)
        click.echo(found.get("data", ""))  # unchanged: it may have several lines
    else:
        out.fields([*fields, ("data", found.get("data", ""))], data=found)


@schemas.command(epilog=examples("weir schemas versions orders"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def versions(topic: str, remote: Remote, out: Output) -> None:
    """List every version of a topic's schema."""
    found = remote.admin(lambda admin: admin.get(_path(topic, "schemas")))
    listed = found.get("getSchemaResponses", found) if isinstance(found, dict) else found
    columns = ("version", "type", "timestamp", Column("properties", wide=True), Column("data", cut="end"))
    names = ("version", "type", "timestamp", "properties", "data")
    out.table(columns, [[_field(item, name) for name in names] for item in listed], data=listed)


_TYPE = click.option("--type", "kind", required=True, metavar="TYPE", help="AVRO, JSON, PROTOBUF, STRING, ...")
_FILE = click.option("--file", "file", metavar="FILE", help="The definition; - reads standard input.")
_PROPERTY = click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")


@schemas.command(epilog=examples("weir schemas upload orders --type AVRO --file order.avsc"))
@click.argument("topic", shell_complete=complete_topic)
@_TYPE
@_FILE
@_PROPERTY
@remote_options
def upload(
    *, topic: str, kind: str, file: str | None, properties: tuple[str, ...], remote: Remote, as_json: bool
) -> None:
    """Upload a new schema version, if the topic's policy allows. JSON: a JSON Schema or an Avro record."""
    body = _body(kind, file, properties)
    answer = remote.admin(lambda admin: admin.post(_path(topic, "schema"), body))
    done(f"schema of {topic} uploaded", as_json=as_json, answer=answer)


@schemas.command(
    epilog=examples("weir schemas check orders --type AVRO --file order-v2.avsc && echo it may be uploaded")
)
@click.argument("topic", shell_complete=complete_topic)
@_TYPE
@_FILE
@_PROPERTY
@remote_options
@click.pass_context
def check(
    ctx: click.Context,
    *,
    topic: str,
    kind: str,
    file: str | None,
    properties: tuple[str, ...],
    remote: Remote,
    as_json: bool,
) -> None:
    """Check whether a schema could be uploaded. Exits with 1 if not."""
    body = _body(kind, file, properties)
    answer = remote.admin(lambda admin: admin.post(_path(topic, "compatibility"), body), reads=True)
    good = bool(answer.get("isCompatibility", answer.get("compatibility")))
    strategy = answer.get("schemaCompatibilityStrategy", "")
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{'compatible' if good else 'not compatible'} ({strategy})")
    ctx.exit(0 if good else 1)


@schemas.command(epilog=examples("weir schemas delete orders"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def delete(topic: str, remote: Remote, as_json: bool) -> None:
    """Delete every version of a topic's schema."""
    remote.admin(lambda admin: admin.delete(_path(topic, "schema")))
    done(f"schema of {topic} deleted", as_json=as_json)


def _path(topic: str, *rest: str) -> str:
    name = TopicName.parse(topic)
    return join("schemas", name.namespace.tenant, name.namespace.name, name.local_with_partition, *rest)


def _body(kind: str, file: str | None, properties: tuple[str, ...]) -> dict[str, Any]:
    if file is None:
        text = ""
    elif file == "-":
        text = sys.stdin.read()
    else:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failure:
            raise ConfigError(f"cannot read {file}: {failure}", hint="check --file") from None
    if kind.upper() == "JSON":
        text = _avro_of(text)
    return {"type": kind.upper(), "schema": text, "properties": parse_pairs(properties)}


def _avro_of(text: str) -> str:
    """The Avro definition of a JSON Schema, as Pulsar clients need it; other text unchanged."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return text  # the server reports the error
    return json.dumps(to_avro(said)) if is_json_schema(said) else text


def _field(found: dict[str, Any], name: str) -> object:
    return show_moment(found.get(name) or 0) if name == "timestamp" else found.get(name)
