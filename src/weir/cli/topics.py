"""`weir topics`: list, create, inspect and delete topics."""

import sys
from typing import Any

import click

from weir.cli import topic_views
from weir.cli.arguments import complete_namespace, complete_topic, parse_pairs, short_topic
from weir.cli.command import examples
from weir.cli.groups import message_types
from weir.cli.namespaces import add_message_policies, retention_body, retention_options, retention_text
from weir.cli.output import Column, Format, Output, done, print_json
from weir.cli.remote import Remote, remote_options
from weir.cli.topic_views import overviews, partitions_of, stats_of, topic_names, topic_stats
from weir.client.admin import AdminClient, topic_path
from weir.model.errors import NotAllowedError
from weir.model.topics import Domain, NamespaceName, TopicName

#: The most topics with sizes by default: each costs a request.
_SIZES_OF = 200


@click.group(
    epilog="""
\b
A topic is persistent://tenant/namespace/name; a bare name is in public/default.

\b
Examples:
  weir topics list
  weir topics create orders -p 4
  weir topics stats orders
  weir topics set-retention orders --time 30d --size 50G
  weir topics delete orders --force
"""
)
def topics() -> None:
    """List, create, inspect and delete topics."""


@topics.command(
    "list",
    epilog="""
\b
Examples:
  weir topics list                        names, partitions; messages, sizes and rates of the first 200
  weir topics list acme/orders --sizes    with sizes of all topics
  weir topics list -o wide                with producers, consumers, and backlogs
  weir topics list -o csv --sizes > topics.csv

Partitions: 0 if a topic is not partitioned.
""",
)
@click.argument("namespace", default="public/default", shell_complete=complete_namespace)
@click.option("--non-persistent", is_flag=True, help="List non-persistent topics.")
@click.option(
    "--sizes/--no-sizes",
    default=None,
    help="Messages, sizes and rates of every topic; by default of up to 200, in tables only.",
)
@remote_options
def list_(namespace: str, non_persistent: bool, sizes: bool | None, remote: Remote, out: Output) -> None:
    """List the topics of a namespace: partitions, messages, sizes and rates."""
    name = NamespaceName.parse(namespace)
    domain = Domain.NON_PERSISTENT if non_persistent else Domain.PERSISTENT

    async def work(admin: AdminClient) -> tuple[dict[str, int], dict[str, Any] | None]:
        found = await topic_names(admin, name, domain)
        people = out.format in (Format.TABLE, Format.WIDE)
        wanted = sizes if sizes is not None else out.wide or (people and len(found) <= _SIZES_OF)
        if not wanted:
            return found, None
        return found, await (overviews(admin, name) if domain is Domain.PERSISTENT else stats_of(admin, found))

    found, stats = remote.admin(work)
    # Short names for a terminal; full names for programs.
    shown = short_topic if out.format is Format.TABLE and sys.stdout.isatty() else str
    if stats is None:
        rows = [(shown(topic), count) for topic, count in found.items()]
        out.table((Column("topic", cut="start"), "partitions"), rows)
        if sizes is None and len(found) > _SIZES_OF:
            click.echo(f"sizes of {len(found)} topics: weir topics list {namespace} --sizes", err=True)
    else:
        out.table(
            topic_views.TOPIC_COLUMNS,
            [topic_views.topic_row(shown(topic), count, stats.get(topic)) for topic, count in found.items()],
        )


@topics.command(epilog=examples("weir topics create orders", "weir topics create orders -p 4 --property owner=me"))
@click.argument("topic", shell_complete=complete_topic)
@click.option("-p", "--partitions", type=click.IntRange(min=0), default=0, help="0: not partitioned.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@remote_options
def create(topic: str, partitions: int, properties: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Create a topic."""
    name = TopicName.parse(topic)
    pairs = parse_pairs(properties)

    async def work(admin: AdminClient) -> None:
        if partitions:
            await admin.put(topic_path(name, "partitions"), partitions)
        else:
            await admin.put(topic_path(name), pairs)
        if partitions and pairs:
            await admin.put(topic_path(name, "properties"), pairs)

    remote.admin(work)
    done(f"topic {name} created", as_json=as_json, partitions=partitions)


@topics.command("set-retention", epilog=examples("weir topics set-retention orders --time 30d --size 50G"))
@click.argument("topic", shell_complete=complete_topic)
@retention_options
@remote_options
def set_retention(topic: str, time_: str, size: str, remote: Remote, as_json: bool) -> None:
    """Retain a topic's acknowledged messages up to a time and a size, whichever limit comes first.

    Unacknowledged messages of a subscription stay in any case. A topic without its own retention has that of its
    namespace, or else a week.
    """
    name, body = TopicName.parse(topic), retention_body(time_, size)
    remote.admin(lambda admin: admin.post(topic_path(name, "retention"), body))
    done(f"{name} keeps acknowledged messages {retention_text(body)}", as_json=as_json, **body)


@topics.command(epilog=examples("weir topics delete orders", "weir topics delete orders --force"))
@click.argument("topic", shell_complete=complete_topic)
@click.option("--force", is_flag=True, help="Also with producers, consumers or subscriptions.")
@remote_options
def delete(topic: str, force: bool, remote: Remote, as_json: bool) -> None:
    """Delete a topic with all its messages; with --force also while clients use it."""
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> None:
        partitions = await partitions_of(admin, name)
        if not force:
            users = topic_views.users_of(await topic_stats(admin, name))
            if users:
                raise NotAllowedError(
                    f"{name} has {users}", hint="give --force to delete it with all of them and its messages"
                )
        path = topic_path(name, "partitions") if partitions else topic_path(name)
        await admin.delete(path, {"force": force})

    remote.admin(work)
    done(f"topic {name} deleted", as_json=as_json)


@topics.command("update-partitions", epilog=examples("weir topics update-partitions orders 8"))
@click.argument("topic", shell_complete=complete_topic)
@click.argument("partitions", type=click.IntRange(min=1))
@remote_options
def update_partitions(topic: str, partitions: int, remote: Remote, as_json: bool) -> None:
    """Increase the number of partitions of a topic."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.post(topic_path(name, "partitions"), partitions))
    done(f"topic {name} has {partitions} partitions", as_json=as_json)


@topics.command(epilog=examples("weir topics stats orders", "weir topics stats orders -o json"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def stats(topic: str, remote: Remote, out: Output) -> None:
    """Show rates, sizes, and the position and backlog of each subscription."""
    name = TopicName.parse(topic)
    found = remote.admin(lambda admin: topic_stats(admin, name))
    if out.json:
        print_json(found)
        return
    out.fields(topic_views.topic_fields(str(name), found))
    out.gap()
    out.table(topic_views.SUBSCRIPTION_COLUMNS, [*topic_views.subscription_rows(found)], title="subscriptions")


@topics.command("internal-stats", epilog=examples("weir topics internal-stats orders"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def internal_stats(topic: str, remote: Remote, out: Output) -> None:
    """Show the ledgers of a topic and the cursors of its subscriptions."""
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> Any:
        partitioned = await partitions_of(admin, name)
        return await admin.get(topic_path(name, "partitioned-internalStats" if partitioned else "internalStats"))

    found = remote.admin(work)
    if out.json:
        print_json(found)
        return
    parts = {str(name): found} if "ledgers" in found else found.get("partitions") or {}
    for number, (part, one) in enumerate(parts.items()):
        if number:
            out.gap()
        plain = ((title, value) for title, value in one.items() if not isinstance(value, dict | list))
        out.fields([("topic", part), *plain])
        out.gap()
        out.table(topic_views.LEDGER_COLUMNS, [*topic_views.ledger_rows(one)], title="ledgers")
        out.gap()
        out.table(topic_views.CURSOR_COLUMNS, [*topic_views.cursor_rows(one)], title="cursors")


@topics.command(epilog=examples("weir topics lookup orders"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def lookup(topic: str, remote: Remote, out: Output) -> None:
    """Show the broker that owns a topic."""
    name = TopicName.parse(topic)
    url = remote.admin(lambda admin: admin.broker_url(name, secure=False))
    if out.format is Format.TABLE:
        click.echo(url)
    else:
        out.fields([("topic", str(name)), ("broker", url)])


@topics.command(epilog=examples("weir topics terminate orders"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def terminate(topic: str, remote: Remote, as_json: bool) -> None:
    """Terminate a topic: it accepts no more messages, for good."""
    name = TopicName.parse(topic)
    last = remote.admin(lambda admin: admin.post(topic_path(name, "terminate")))
    done(f"topic {name} is terminated", as_json=as_json, last=last)


@topics.command(epilog=examples("weir topics compact orders", "weir consume orders --compacted    reads the rest"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def compact(topic: str, remote: Remote, as_json: bool) -> None:
    """Start a compaction: keep the last message of each key, for readers that request it."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.put(topic_path(name, "compaction")))
    done(f"compaction of {name} has begun", as_json=as_json)


@topics.command(epilog=examples("weir topics unload orders"))
@click.argument("topic", shell_complete=complete_topic)
@remote_options
def unload(topic: str, remote: Remote, as_json: bool) -> None:
    """Unload a topic from its broker; the next use loads it again."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.put(topic_path(name, "unload")))
    done(f"topic {name} is unloaded", as_json=as_json)


@topics.command(epilog=examples("weir topics properties orders", "weir topics properties orders owner=me"))
@click.argument("topic", shell_complete=complete_topic)
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE]...")
@remote_options
def properties(topic: str, pairs: tuple[str, ...], remote: Remote, out: Output) -> None:
    """Show the properties of a topic, after setting the given ones."""
    name = TopicName.parse(topic)
    given = parse_pairs(pairs)

    async def work(admin: AdminClient) -> dict[str, str]:
        if given:
            await admin.put(topic_path(name, "properties"), given)
        return dict(await admin.get(topic_path(name, "properties")) or {})

    found = remote.admin(work)
    out.fields(found.items(), data=found)


@topics.command(epilog=examples("weir topics grant orders alice produce consume"))
@click.argument("topic", shell_complete=complete_topic)
@click.argument("role")
@click.argument("actions", nargs=-1, required=True, type=click.Choice(["produce", "consume"]))
@remote_options
def grant(topic: str, role: str, actions: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Allow ROLE to produce to or consume from a topic."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.post(topic_path(name, "permissions", role), list(actions)))
    done(f"{role} may {' and '.join(actions)} on {name}", as_json=as_json)


@topics.command(epilog=examples("weir topics revoke orders alice"))
@click.argument("topic", shell_complete=complete_topic)
@click.argument("role")
@remote_options
def revoke(topic: str, role: str, remote: Remote, as_json: bool) -> None:
    """Revoke all grants of ROLE on a topic."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.delete(topic_path(name, "permissions", role)))
    done(f"{role} has no grant on {name}", as_json=as_json)


topics.add_command(message_types)
add_message_policies(topics, "topic", "orders", lambda name, word: topic_path(TopicName.parse(name), word))
