"""`weir subscriptions`: list, create, move, filter and delete the subscriptions of a topic."""

from typing import Any

import click

from weir.cli import topic_views
from weir.cli.arguments import complete_subscription, complete_topic
from weir.cli.command import examples
from weir.cli.dead_letters import dead_letters, retry
from weir.cli.output import Output, done
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient, topic_path
from weir.model.errors import ConfigError, WireError
from weir.model.moments import parse_moment_ms, parse_span_ms
from weir.model.subscriptions import FIFO_PROPERTY, MessageFilter, is_fifo, with_filter
from weir.model.topics import TopicName
from weir.runtime.real import RealClock
from weir.wire.pulsar.ids import EARLIEST, LATEST, MessageId, parse_id


@click.group(
    epilog="""
\b
Examples:
  weir subscriptions list orders
  weir subscriptions list orders --partitions
  weir subscriptions create orders billing --from earliest
  weir subscriptions reset orders billing --to -1h
  weir subscriptions skip orders billing -n 10
  weir subscriptions redeliver orders billing 1207
  weir subscriptions retry orders billing --schedule 1s..10m --max-deliveries 5
  weir subscriptions dead-letters redrive orders billing
  weir subscriptions filter orders billing --set "amount > 1000"
"""
)
def subscriptions() -> None:
    """List, create, move and delete the subscriptions of a topic; retries and dead letters."""


@subscriptions.command(
    "list", epilog=examples("weir subscriptions list orders", "weir subscriptions list orders --partitions")
)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--partitions", "each", is_flag=True, help="One line per partition, with its position and consumer.")
@remote_options
def list_(*, topic: str, each: bool, remote: Remote, out: Output) -> None:
    """List the subscriptions of a topic, including consumer groups, and their positions."""
    name = TopicName.parse(topic)

    async def work(admin: AdminClient) -> Any:
        partitions = (
            (await admin.get(topic_path(name, "partitions")))["partitions"] if name.partition is None else 0
        )
        return await admin.get(topic_path(name, "partitioned-stats" if partitions else "stats"))

    found = remote.admin(work)
    if each and not out.json:
        out.table(topic_views.PARTITION_COLUMNS, [*topic_views.partition_rows(str(name), found)])
    else:
        rows = [*topic_views.subscription_rows(found)]
        out.table(topic_views.SUBSCRIPTION_COLUMNS, rows, data=topic_views.with_parts(found))


@subscriptions.command(
    epilog=examples(
        "weir subscriptions create orders billing --from earliest",
        "weir subscriptions create orders large --filter \"amount > 1000 AND country IN ('DE', 'FR')\"",
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option("--from", "start", default="latest", show_default=True, help="earliest, latest, or a message id.")
@click.option("--filter", "sql", metavar="SQL", help="Only messages that match this condition.")
@click.option("--tags", metavar="TAGS", help="Only messages with one of these tags: 'a || b'.")
@remote_options
def create(
    *, topic: str, subscription: str, start: str, sql: str | None, tags: str | None, remote: Remote, as_json: bool
) -> None:
    """Create a subscription before its first consumer connects."""
    properties = with_filter({}, MessageFilter(sql or "", tags or ""))
    body: dict[str, object] = {
        **_position(_parse_start(start)),
        **({"properties": properties} if properties else {}),
    }
    remote.admin(lambda admin: admin.put(_path(topic, subscription), body))
    done(f"subscription {subscription} created", as_json=as_json)


@subscriptions.command(
    epilog=examples("weir subscriptions delete orders billing", "weir subscriptions delete orders billing --force")
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option("--force", is_flag=True, help="Also with connected consumers, which are disconnected.")
@remote_options
def delete(topic: str, subscription: str, force: bool, remote: Remote, as_json: bool) -> None:
    """Delete a subscription."""
    remote.admin(lambda admin: admin.delete(_path(topic, subscription), {"force": force}))
    done(f"subscription {subscription} deleted", as_json=as_json)


@subscriptions.command(
    epilog=examples("weir subscriptions skip orders billing -n 10", "weir subscriptions skip orders billing --all")
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option("-n", "count", type=click.IntRange(min=1), help="How many messages.")
@click.option("--all", "everything", is_flag=True, help="The whole backlog.")
@remote_options
def skip(
    *, topic: str, subscription: str, count: int | None, everything: bool, remote: Remote, as_json: bool
) -> None:
    """Acknowledge messages without delivering them."""
    if (count is None) != everything:
        raise ConfigError("say how many messages to skip", hint="give -n NUMBER, or --all")
    rest: tuple[str | int, ...] = ("skip_all",) if count is None else ("skip", count)
    remote.admin(lambda admin: admin.post(_path(topic, subscription, *rest)))
    done(f"skipped {'all' if count is None else count} messages of {subscription}", as_json=as_json)


@subscriptions.command(epilog=examples("weir subscriptions expire orders billing --older-than 1h"))
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option("--older-than", required=True, metavar="SPAN", help="As in 1h or 7d.")
@remote_options
def expire(topic: str, subscription: str, older_than: str, remote: Remote, as_json: bool) -> None:
    """Acknowledge messages older than SPAN."""
    seconds = parse_span_ms(older_than) // 1000
    remote.admin(lambda admin: admin.post(_path(topic, subscription, "expireMessages", seconds)))
    done(f"messages of {subscription} older than {seconds} s expire", as_json=as_json)


@subscriptions.command(
    epilog=examples(
        "weir subscriptions reset orders billing --to earliest",
        "weir subscriptions reset orders billing --to -1h",
        "weir subscriptions reset orders billing --to 12:0",
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option(
    "--to", required=True, metavar="WHERE", help="earliest, latest, a message id (12:0), a moment, or as in -1h."
)
@remote_options
def reset(topic: str, subscription: str, to: str, remote: Remote, as_json: bool) -> None:
    """Move a subscription to a message or a time; later messages are delivered again."""
    at = _parse_position(to)

    async def work(admin: AdminClient) -> None:
        if at is not None:
            await admin.post(_path(topic, subscription, "resetcursor"), _position(at))
        else:
            moment = parse_moment_ms(to, RealClock().wall_ms())
            await admin.post(_path(topic, subscription, "resetcursor", moment))

    remote.admin(work)
    done(f"subscription {subscription} moved to {to}", as_json=as_json)


@subscriptions.command(
    epilog=examples(
        "weir subscriptions redeliver orders billing 1207",
        "weir subscriptions redeliver orders-partition-2 billing 1207 1311",
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.argument("offsets", nargs=-1, required=True, type=click.IntRange(min=0), metavar="OFFSET...")
@remote_options
def redeliver(topic: str, subscription: str, offsets: tuple[int, ...], remote: Remote, as_json: bool) -> None:
    """Deliver single messages again, by their offsets, whether they are acknowledged or not. For a partitioned
    topic, name the partition. `weir consume --format '%o'` and the console show offsets."""

    async def work(admin: AdminClient) -> list[int]:
        return [
            offset
            for offset in offsets
            if (await admin.post(_path(topic, subscription, "redeliver", offset)))["again"]
        ]

    again = remote.admin(work)
    waiting = [offset for offset in offsets if offset not in again]
    said = [f"delivered again: {_offsets(again)}"] if again else []
    if waiting:
        said.append(f"not delivered yet, delivery pending: {_offsets(waiting)}")
    done(f"{subscription}: {'; '.join(said)}", as_json=as_json, again=again, waiting=waiting)


@subscriptions.command(
    "filter",
    epilog=examples(
        "weir subscriptions filter orders large",
        "weir subscriptions filter orders large --set \"amount > 1000 AND country IN ('DE', 'FR')\"",
        "weir subscriptions filter orders large --tags 'paid || shipped'",
        "weir subscriptions filter orders large --clear",
    ),
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option("--set", "sql", metavar="SQL", help="A condition over properties and keys.")
@click.option("--tags", metavar="TAGS", help="One of these tags: 'a || b'.")
@click.option("--clear", is_flag=True, help="Remove the filter.")
@remote_options
def filter_(
    *,
    topic: str,
    subscription: str,
    sql: str | None,
    tags: str | None,
    clear: bool,
    remote: Remote,
    as_json: bool,
) -> None:
    """Show, set or clear the filter of a subscription; it applies at once, to all of its consumers."""
    named = sql is not None or tags is not None
    if named and clear:
        raise ConfigError("--clear excludes --set and --tags", hint="give either --clear, or --set and --tags")
    path = _path(topic, subscription, "properties")

    async def work(admin: AdminClient) -> dict[str, str]:
        properties: dict[str, str] = await admin.get(path)
        if named or clear:
            properties = with_filter(properties, MessageFilter(sql or "", tags or ""))
            await admin.put(path, properties)
        return properties

    said = topic_views.filter_said(remote.admin(work))
    done(f"subscription {subscription}: {said or 'no filter'}", as_json=as_json)


@subscriptions.command(
    epilog=examples(
        "weir subscriptions fifo orders billing",
        "weir subscriptions fifo orders billing --on",
        "weir subscriptions fifo orders billing --off",
    ),
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", shell_complete=complete_subscription)
@click.option("--on/--off", "wanted", default=None, help="Deliver one message of each group at a time, in order.")
@remote_options
def fifo(*, topic: str, subscription: str, wanted: bool | None, remote: Remote, as_json: bool) -> None:
    """Show or set whether a shared subscription keeps the order of each message group. A change disconnects its
    consumers, which reconnect by themselves."""
    path = _path(topic, subscription, "properties")

    async def work(admin: AdminClient) -> dict[str, str]:
        properties: dict[str, str] = await admin.get(path)
        if wanted is not None:
            properties = {**properties, FIFO_PROPERTY: str(wanted).lower()}
            await admin.put(path, properties)
        return properties

    kept = is_fifo(remote.admin(work))
    said = "keeps the order of each message group" if kept else "keeps no order"
    done(f"subscription {subscription} {said}", as_json=as_json, fifo=kept)


subscriptions.add_command(retry)
subscriptions.add_command(dead_letters)


def _offsets(offsets: list[int]) -> str:
    return f"offset{'' if len(offsets) == 1 else 's'} {', '.join(map(str, offsets))}"


def _path(topic: str, subscription: str, *rest: str | int) -> str:
    return topic_path(TopicName.parse(topic), "subscription", subscription, *rest)


def _parse_start(text: str) -> MessageId:
    at = _parse_position(text)
    if at is None:
        raise ConfigError(f"{text!r} is not a position", hint="write earliest, latest, or a message id as in 12:0")
    return at


def _parse_position(text: str) -> MessageId | None:
    """A message position; None if the text is a time."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    try:
        return parse_id(text)
    except WireError:
        return None


def _position(at: MessageId) -> dict[str, int]:
    return {
        "ledgerId": at.ledger,
        "entryId": at.entry,
        "partitionIndex": at.partition,
        "batchIndex": at.batch_index,
    }
