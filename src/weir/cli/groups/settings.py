"""`weir groups settings` and `weir topics types`: what RocketMQ's consumer groups and topics are told."""

from typing import Any

import click

from weir.cli.completing import complete_namespace, complete_topic
from weir.cli.output import Output, done
from weir.cli.remote import Remote, remote_options
from weir.client.admin import join
from weir.model.errors import ConfigError
from weir.model.topics import TopicName

_GROUPS = "group-settings"
_TYPES = "message-types"
_COLUMNS = ("group", "fifo", "attempts", "retry", "lite")


@click.command(
    "settings",
    epilog="""
\b
Examples:
  weir groups settings                               all of public/default of which something is said
  weir groups settings billing                       what holds for one
  weir groups settings billing --fifo --max-attempts 5
  weir groups settings billing --retry '1s 10s 1m'   or '1s..10m x2'
  weir groups settings viewers --lite-exclusive      who subscribes last to a lite topic has it alone
  weir groups settings billing --reset

What fails as often as that is a dead letter, in the topic %DLQ% and the group's name.
""",
)
@click.argument("group", required=False)
@click.option("--fifo/--no-fifo", default=None, help="Messages of one message group one after the other.")
@click.option("--max-attempts", type=click.IntRange(1, 1000), help="How often a message is delivered at the most.")
@click.option("--retry", metavar="SCHEDULE", help="What is waited between attempts.")
@click.option("--lite-exclusive/--lite-shared", default=None, help="One client at a time has a lite topic.")
@click.option("--reset", is_flag=True, help="Back to the usual.")
@click.option("--namespace", default="public/default", show_default=True, shell_complete=complete_namespace)
@remote_options
def group_settings(
    *,
    group: str | None,
    fifo: bool | None,
    max_attempts: int | None,
    retry: str | None,
    lite_exclusive: bool | None,
    reset: bool,
    namespace: str,
    remote: Remote,
    out: Output,
) -> None:
    """Show or set whether consumer groups are FIFO, their attempts and what is waited between these."""
    said = {"fifo": fifo, "maxAttempts": max_attempts, "schedule": retry, "liteExclusive": lite_exclusive}
    change = {name: value for name, value in said.items() if value is not None}
    if group is None:
        if change or reset:
            raise ConfigError("which consumer group?", hint="name it: weir groups settings GROUP ...")
        found = remote.admin(lambda admin: admin.own("GET", f"{_GROUPS}/{join(*namespace.split('/'))}"))
        rows = [_row(one) for one in found]
        out.table(_COLUMNS, rows, data=found)
        return
    path = f"{_GROUPS}/{join(*namespace.split('/'), group)}"
    if reset:
        remote.admin(lambda admin: admin.own("DELETE", path))
        done(f"{group} has the usual settings", as_json=out.json)
        return
    one = remote.admin(lambda admin: admin.own("PUT", path, change) if change else admin.own("GET", path))
    out.table(_COLUMNS, [_row(one)], data=one)


def _row(one: Any) -> tuple[Any, ...]:
    lite = "exclusive" if one["liteExclusive"] else "shared"
    return one["name"], "yes" if one["fifo"] else "no", one["maxAttempts"], one["schedule"], lite


@click.command(
    "types",
    epilog="""
\b
Examples:
  weir topics types orders                  the types of messages that it takes
  weir topics types orders fifo delay       no others from now on, of RocketMQ's clients
  weir topics types orders normal fifo delay transaction lite priority     all of them again
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("types", nargs=-1)
@remote_options
def message_types(*, topic: str, types: tuple[str, ...], remote: Remote, out: Output) -> None:
    """Show or set the types of messages that a topic takes from RocketMQ's clients."""
    name = TopicName.parse(topic)
    path = f"{_TYPES}/{join('persistent', name.namespace.tenant, name.namespace.name, name.local)}"
    found = remote.admin(
        lambda admin: admin.own("PUT", path, {"types": list(types)}) if types else admin.own("GET", path)
    )
    out.table(("types",), [(one,) for one in found["types"]], data=found)
