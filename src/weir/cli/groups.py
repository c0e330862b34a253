"""`weir groups`: list, describe and reset Kafka consumer groups, Pulsar subscriptions and AMQP queues.

`weir groups settings` and `weir topics types` configure consumer groups and topics of RocketMQ.
"""

from typing import Any

import click

from weir.cli.arguments import complete_namespace, complete_topic
from weir.cli.group_lookup import Found, Part, Target, all_groups, find_group, move, new_group, planned
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient, join
from weir.model.errors import ConfigError, SubscriptionNotFoundError
from weir.model.topics import NamespaceName, TopicName

_GROUPS = "group-settings"
_TYPES = "message-types"
_COLUMNS = ("group", "fifo", "attempts", "retry", "lite")


@click.command(
    "settings",
    epilog="""
\b
Examples:
  weir groups settings                               all groups with settings in public/default
  weir groups settings billing                       the settings of one group
  weir groups settings billing --fifo --max-attempts 5
  weir groups settings billing --retry '1s 10s 1m'   or '1s..10m x2'
  weir groups settings viewers --lite-exclusive      the last subscriber of a lite topic owns it
  weir groups settings billing --reset

After that many attempts a message becomes a dead letter, in the topic %DLQ%GROUP.
""",
)
@click.argument("group", required=False)
@click.option("--fifo/--no-fifo", default=None, help="Deliver the messages of a message group in order.")
@click.option("--max-attempts", type=click.IntRange(1, 1000), help="Most deliveries of a message.")
@click.option("--retry", metavar="SCHEDULE", help="Delays between attempts.")
@click.option("--lite-exclusive/--lite-shared", default=None, help="One client at a time owns a lite topic.")
@click.option("--reset", is_flag=True, help="Restore the defaults.")
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
    """Show or set whether consumer groups are FIFO, their attempts and the delays between them."""
    said = {"fifo": fifo, "maxAttempts": max_attempts, "schedule": retry, "liteExclusive": lite_exclusive}
    change = {name: value for name, value in said.items() if value is not None}
    if group is None:
        if change or reset:
            raise ConfigError("no consumer group named", hint="name it: weir groups settings GROUP ...")
        found = remote.admin(lambda admin: admin.own("GET", f"{_GROUPS}/{join(*namespace.split('/'))}"))
        rows = [_row(one) for one in found]
        out.table(_COLUMNS, rows, data=found)
        return
    path = f"{_GROUPS}/{join(*namespace.split('/'), group)}"
    if reset:
        remote.admin(lambda admin: admin.own("DELETE", path))
        done(f"{group} has the default settings", as_json=out.json)
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
  weir topics types orders                  the message types that it accepts
  weir topics types orders fifo delay       accept only these from RocketMQ clients
  weir topics types orders normal fifo delay transaction lite priority     accept all types again
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("types", nargs=-1)
@remote_options
def message_types(*, topic: str, types: tuple[str, ...], remote: Remote, out: Output) -> None:
    """Show or set the message types that a topic accepts from RocketMQ clients."""
    name = TopicName.parse(topic)
    path = f"{_TYPES}/{join('persistent', name.namespace.tenant, name.namespace.name, name.local)}"
    found = remote.admin(
        lambda admin: admin.own("PUT", path, {"types": list(types)}) if types else admin.own("GET", path)
    )
    out.table(("types",), [(one,) for one in found["types"]], data=found)


_KINDS = ("kafka", "pulsar", "amqp")


@click.group(
    epilog="""
\b
Examples:
  weir groups list
  weir groups describe billing
  weir groups reset billing --to earliest --dry-run
  weir groups reset billing --to -1h --topic orders
  weir groups settings billing --fifo --max-attempts 5

Here a consumer group of Kafka, a subscription of Pulsar and a queue of AMQP are the same: a name with members and
a position on each partition.
"""
)
def groups() -> None:
    """List, describe and reset consumer groups and subscriptions."""


@groups.command(
    "list",
    epilog="""
\b
Examples:
  weir groups list                       of public/default
  weir groups list acme/orders --kind kafka
  weir groups list -o csv
""",
)
@click.argument("namespace", default="public/default", shell_complete=complete_namespace)
@click.option("--kind", type=click.Choice(_KINDS), help="Only those of this protocol.")
@click.option("--topic", shell_complete=complete_topic, help="Only those that read this topic.")
@remote_options
def list_(*, namespace: str, kind: str | None, topic: str | None, remote: Remote, out: Output) -> None:
    """List the consumer groups, subscriptions and queues of a namespace, with their backlogs."""
    space = TopicName.parse(topic).namespace if topic else NamespaceName.parse(namespace)
    only = TopicName.parse(topic) if topic else None
    found = [one for one in remote.admin(lambda admin: all_groups(admin, space, only)) if kind in (None, one.kind)]
    columns = (
        Column("group", cut="end"),
        "kind",
        "state",
        "members",
        "lag",
        Column("topics", cut="end"),
    )
    rows = [(one.name, one.kind, one.state, one.members, one.lag, one.topics) for one in found]
    out.table(columns, rows, data=[_summary(one) for one in found])


@groups.command(
    epilog="""
\b
Examples:
  weir groups describe billing
  weir groups describe shared --topic orders     if several topics have a subscription of that name
  weir groups describe billing -o json
""",
)
@click.argument("group")
@click.option("--topic", shell_complete=complete_topic, help="The topic, if several have one of this name.")
@click.option("--namespace", default="public/default", show_default=True, shell_complete=complete_namespace)
@remote_options
def describe(*, group: str, topic: str | None, namespace: str, remote: Remote, out: Output) -> None:
    """Show the members of a group, and its position and lag on each partition."""
    found = remote.admin(lambda admin: find_group(admin, group, topic, namespace))
    if out.json:
        out.fields((), data={**_summary(found), "partitions": [_part(one) for one in found.parts]})
        return
    out.fields(
        [
            ("group", found.name),
            ("kind", found.kind),
            ("state", found.state),
            ("members", found.members),
            ("lag", found.lag),
            *(("cannot be read", told) for one in found.parts for told in one.unreadable),
        ]
    )
    out.gap()
    columns = (
        Column("topic", cut="start"),
        "partition",
        "position",
        "end",
        "lag",
        Column("member", cut="end"),
        Column("client", wide=True),
        Column("host", wide=True),
    )
    rows = [
        (
            one.topic.local,
            one.topic.partition,
            one.position,
            one.end,
            one.lag,
            [who.name for who in one.members],
            [who.client for who in one.members],
            [who.host for who in one.members],
        )
        for one in found.parts
    ]
    out.table(columns, rows, title="partitions")


@groups.command(
    epilog="""
\b
Examples:
  weir groups reset billing --to earliest --dry-run    show the plan; change nothing
  weir groups reset billing --to latest
  weir groups reset billing --to 2030-01-31T12:00:00   the first message stored then or later (UTC)
  weir groups reset billing --to -1h                   the last hour
  weir groups reset billing --to 1500 --topic orders-partition-0
  weir groups reset billing --shift-by -100            a hundred messages back on each partition
  weir groups reset shipping --to -1h --topic orders --create    the start of a new Kafka group

A Kafka group must have no members: stop them, reset, start them. Weir disconnects the consumers of a Pulsar
subscription; they continue from the new position. A queue of AMQP has no position to reset.
""",
)
@click.argument("group")
@click.option("--to", metavar="WHERE", help="earliest, latest, an offset, a moment, or as in -1h.")
@click.option("--shift-by", type=int, metavar="N", help="Move N messages forward, or back if negative.")
@click.option(
    "--topic",
    shell_complete=complete_topic,
    help="Only on this topic or partition; by default on all of the group's.",
)
@click.option("--namespace", default="public/default", show_default=True, shell_complete=complete_namespace)
@click.option("--create", is_flag=True, help="Create the Kafka group on --topic if it does not exist.")
@click.option("--dry-run", is_flag=True, help="Show the plan; change nothing.")
@remote_options
def reset(
    *,
    group: str,
    to: str | None,
    shift_by: int | None,
    topic: str | None,
    namespace: str,
    create: bool,
    dry_run: bool,
    remote: Remote,
    out: Output,
) -> None:
    """Move a group to another position on its partitions; later messages are delivered again."""
    if (to is None) == (shift_by is None):
        raise ConfigError("no target position", hint="give --to WHERE or --shift-by N")
    target = Target.parse(to, shift_by)

    async def work(admin: AdminClient) -> list[tuple[Part, int]]:
        try:
            found = await find_group(admin, group, topic, namespace)
        except SubscriptionNotFoundError:
            if not create:
                raise
            found = await new_group(admin, group, topic)
        plan = await planned(admin, found, target)
        if not dry_run:
            await move(admin, found, plan)
        return plan

    plan = remote.admin(work)
    columns = (Column("topic", cut="start"), "partition", "before", "after", "lag after")
    rows = [
        (part.topic.local, part.topic.partition, part.position, after, max(0, (part.end or 0) - after))
        for part, after in plan
    ]
    data = {
        "group": group,
        "done": not dry_run,
        "partitions": [
            {"topic": str(part.topic), "before": part.position, "after": after} for part, after in plan
        ],
    }
    out.table(columns, rows, data=data)
    if not out.json:
        click.echo("dry run: nothing changed" if dry_run else f"{group} is moved", err=True)


def _summary(found: Found) -> dict[str, Any]:
    return {
        "group": found.name,
        "kind": found.kind,
        "state": found.state,
        "members": found.members,
        "lag": found.lag,
        "topics": found.topics,
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "topic": str(part.topic.base),
        "partition": part.topic.partition,
        "position": part.position,
        "end": part.end,
        "lag": part.lag,
        "members": [{"name": who.name, "client": who.client, "host": who.host} for who in part.members],
        **({"unreadable": list(part.unreadable)} if part.unreadable else {}),
    }


groups.add_command(group_settings)
