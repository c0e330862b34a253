"""`weir topics`: list, create, look into, and end topics."""

from typing import Any

import click

from weir.cli import topic_views as views
from weir.cli.output import done, print_fields, print_json, print_table
from weir.cli.remote import Remote, remote_options
from weir.cli.retention import retention_body, retention_options, retention_text
from weir.cli.values import parse_pairs
from weir.client.admin import AdminClient, join, topic_path
from weir.model.topics import Domain, NamespaceName, TopicName

_PAGE = 5000


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
    """List, create, look into, and delete topics."""


@topics.command("list")
@click.argument("namespace", default="public/default")
@click.option("--non-persistent", is_flag=True, help="Those whose messages are not stored.")
@remote_options
def list_(namespace: str, non_persistent: bool, remote: Remote, as_json: bool) -> None:
    """List the topics of a namespace, and how many partitions each has (0: not partitioned)."""
    name = NamespaceName.parse(namespace)
    domain = Domain.NON_PERSISTENT if non_persistent else Domain.PERSISTENT

    async def work(admin: AdminClient) -> dict[str, int]:
        path = join(domain.value, name.tenant, name.name)
        return views.with_partitions(await _all(admin, path), await _all(admin, f"{path}/partitioned"))

    found = remote.admin(work)
    if as_json:
        print_json([{"topic": topic, "partitions": count} for topic, count in found.items()])
    else:
        print_table(("topic", "partitions"), found.items())


async def _all(admin: AdminClient, path: str) -> list[str]:
    """A list of names, asked for in pages: a namespace may have a million topics."""
    found: list[str] = []
    while True:
        after = {"after": found[-1]} if found else {}
        page = await admin.get(path, {"limit": _PAGE, **after})
        found += page
        if len(page) < _PAGE:
            return found


@topics.command()
@click.argument("topic")
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


@topics.command("set-retention")
@click.argument("topic")
@retention_options
@remote_options
def set_retention(topic: str, time_: str, size: str, remote: Remote, as_json: bool) -> None:
    """Keep a topic's acknowledged messages for a time and up to a size, whichever ends first.

    What a subscription has not acknowledged stays in any case. Topics that were told nothing keep theirs as their
    namespace says, and else for a week.
    """
    name, body = TopicName.parse(topic), retention_body(time_, size)
    remote.admin(lambda admin: admin.post(topic_path(name, "retention"), body))
    done(f"{name} keeps acknowledged messages {retention_text(body)}", as_json=as_json, **body)


@topics.command()
@click.argument("topic")
@click.option("--force", is_flag=True, help="Also while it has producers, consumers or subscriptions.")
@remote_options
def delete(topic: str, force: bool, remote: Remote, as_json: bool) -> None:
    """Delete a topic with all its messages and subscriptions."""
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> None:
        partitions = await _partitions(admin, name)
        path = topic_path(name, "partitions") if partitions else topic_path(name)
        await admin.delete(path, {"force": force})

    remote.admin(work)
    done(f"topic {name} deleted", as_json=as_json)


@topics.command("update-partitions")
@click.argument("topic")
@click.argument("partitions", type=click.IntRange(min=1))
@remote_options
def update_partitions(topic: str, partitions: int, remote: Remote, as_json: bool) -> None:
    """Give a partitioned topic more partitions."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.post(topic_path(name, "partitions"), partitions))
    done(f"topic {name} has {partitions} partitions", as_json=as_json)


@topics.command()
@click.argument("topic")
@remote_options
def stats(topic: str, remote: Remote, as_json: bool) -> None:
    """Show rates, sizes, and how far each subscription is."""
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> Any:
        partitioned = await _partitions(admin, name)
        return await admin.get(topic_path(name, "partitioned-stats" if partitioned else "stats"))

    found = remote.admin(work)
    if as_json:
        print_json(found)
        return
    print_fields(views.topic_fields(str(name), found))
    print_table(views.SUBSCRIPTION_COLUMNS, views.subscription_rows(found), title="subscriptions")


@topics.command("internal-stats")
@click.argument("topic")
@remote_options
def internal_stats(topic: str, remote: Remote, as_json: bool) -> None:
    """Show the ledgers of a topic and the cursors of its subscriptions."""
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> Any:
        partitioned = await _partitions(admin, name)
        return await admin.get(topic_path(name, "partitioned-internalStats" if partitioned else "internalStats"))

    found = remote.admin(work)
    if as_json or "ledgers" not in found:
        print_json(found)
        return
    print_fields((title, value) for title, value in found.items() if not isinstance(value, dict | list))
    print_table(views.LEDGER_COLUMNS, views.ledger_rows(found), title="ledgers")
    print_table(views.CURSOR_COLUMNS, views.cursor_rows(found), title="cursors")


@topics.command()
@click.argument("topic")
@remote_options
def lookup(topic: str, remote: Remote, as_json: bool) -> None:
    """Show where a topic is served."""
    name = TopicName.parse(topic)
    url = remote.admin(lambda admin: admin.broker_url(name, secure=False))
    if as_json:
        print_json({"topic": str(name), "broker": url})
    else:
        click.echo(url)


@topics.command()
@click.argument("topic")
@remote_options
def terminate(topic: str, remote: Remote, as_json: bool) -> None:
    """Let a topic take no more messages, for good."""
    name = TopicName.parse(topic)
    last = remote.admin(lambda admin: admin.post(topic_path(name, "terminate")))
    done(f"topic {name} is terminated", as_json=as_json, last=last)


@topics.command()
@click.argument("topic")
@remote_options
def compact(topic: str, remote: Remote, as_json: bool) -> None:
    """Begin to keep only the last message of each key, for readers that ask for that."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.put(topic_path(name, "compaction")))
    done(f"compaction of {name} has begun", as_json=as_json)


@topics.command()
@click.argument("topic")
@remote_options
def unload(topic: str, remote: Remote, as_json: bool) -> None:
    """Let the broker go of a topic; it is loaded again when it is used."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.put(topic_path(name, "unload")))
    done(f"topic {name} is unloaded", as_json=as_json)


@topics.command()
@click.argument("topic")
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE]...")
@remote_options
def properties(topic: str, pairs: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Show the properties of a topic, after setting those that are given."""
    name = TopicName.parse(topic)
    given = parse_pairs(pairs)

    async def work(admin: AdminClient) -> dict[str, str]:
        if given:
            await admin.put(topic_path(name, "properties"), given)
        return dict(await admin.get(topic_path(name, "properties")) or {})

    found = remote.admin(work)
    if as_json:
        print_json(found)
    else:
        print_fields(found.items())


@topics.command()
@click.argument("topic")
@click.argument("role")
@click.argument("actions", nargs=-1, required=True, type=click.Choice(["produce", "consume"]))
@remote_options
def grant(topic: str, role: str, actions: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Let ROLE produce to or consume from a topic."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.post(topic_path(name, "permissions", role), list(actions)))
    done(f"{role} may {' and '.join(actions)} on {name}", as_json=as_json)


@topics.command()
@click.argument("topic")
@click.argument("role")
@remote_options
def revoke(topic: str, role: str, remote: Remote, as_json: bool) -> None:
    """Take everything back that ROLE was granted on a topic."""
    name = TopicName.parse(topic)
    remote.admin(lambda admin: admin.delete(topic_path(name, "permissions", role)))
    done(f"{role} has no grant on {name}", as_json=as_json)


async def _partitions(admin: AdminClient, topic: TopicName) -> int:
    if topic.partition is not None:
        return 0
    return int((await admin.get(topic_path(topic, "partitions")))["partitions"])
