"""`weir delayed`: delayed messages, listed, cancelled, or released early."""

from collections.abc import Sequence
from typing import Any

import click

from weir.cli.arguments import complete_topic, show_moment
from weir.cli.output import Bytes, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.topic_views import partitions_of
from weir.client.admin import AdminClient, join
from weir.model.errors import BrokerError, ConfigError, NotAuthorisedError
from weir.model.topics import TopicName
from weir.runtime.real import RealClock

_PAGE = 1000


@click.group(
    epilog="""
\b
Examples:
  weir produce orders reminder --deliver-in 10min
  weir delayed list orders                  delayed messages, the next one first
  weir delayed cancel orders 12:0           consumers never receive it
  weir delayed cancel orders --all
  weir delayed release orders 12:0          deliver it now
"""
)
def held() -> None:
    """List, cancel and release delayed messages (--deliver-in, --deliver-at)."""


@held.command(
    "list",
    epilog="""
\b
Examples:
  weir delayed list orders
  weir delayed list orders -n 10 -o json
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=1000, show_default=True, help="The most to list."
)
@remote_options
def list_(*, topic: str, count: int, remote: Remote, out: Output) -> None:
    """List the delayed messages of TOPIC, the next one first."""
    name = TopicName.parse(topic)
    found, total = remote.admin(lambda admin: _list(admin, name, count))
    now_ms = RealClock().wall_ms()
    rows = [
        (
            one["topic"].rpartition("/")[2],
            one["id"],
            _due(one),
            _in(one, now_ms),
            one["messages"],
            Bytes(one["bytes"]),
        )
        for one in found
    ]
    out.table(("topic", "id", "due", "in", "messages", "size"), rows, data=found)
    if total > sum(one["messages"] for one in found):
        click.echo(f"{total} messages are delayed; -n lists more", err=True)


@held.command(
    epilog="""
\b
Examples:
  weir delayed cancel orders 12:0 12:4      ids from weir delayed list
  weir delayed cancel orders --all
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All messages that are delayed now.")
@remote_options
def cancel(*, topic: str, ids: tuple[str, ...], everything: bool, remote: Remote, as_json: bool) -> None:
    """Cancel delayed messages: consumers never receive them."""
    count = _act(remote, topic, ids, everything=everything, verb="DELETE", rest=())
    done(f"{count} cancelled", as_json=as_json, cancelled=count)


@held.command(
    epilog="""
\b
Example:
  weir delayed release orders 12:0          an id from weir delayed list
""",
)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All messages that are delayed now.")
@remote_options
def release(*, topic: str, ids: tuple[str, ...], everything: bool, remote: Remote, as_json: bool) -> None:
    """Deliver delayed messages now, before their delivery time."""
    count = _act(remote, topic, ids, everything=everything, verb="POST", rest=("release",))
    done(f"{count} released", as_json=as_json, released=count)


def _act(
    remote: Remote, topic: str, ids: tuple[str, ...], *, everything: bool, verb: str, rest: tuple[str, ...]
) -> int:
    """Apply the verb; return the number of entries (messages that a client sent together)."""
    name = TopicName.parse(topic)
    if bool(ids) == everything:
        raise ConfigError("no messages named", hint=f"give ids as weir delayed list {topic} shows them, or --all")

    async def work(admin: AdminClient) -> int:
        if everything:
            return await _act_on_all(admin, name, verb, rest)
        parts = await _parts(admin, name)
        for held_id in ids:
            await _act_on(admin, parts, held_id, verb, rest)
        return len(ids)

    return remote.admin(work)


async def _act_on(
    admin: AdminClient, parts: Sequence[TopicName], held_id: str, verb: str, rest: tuple[str, ...]
) -> None:
    """Try each partition: an id belongs to one of them only."""
    for part in parts[:-1]:
        try:
            await admin.own(verb, _path(part, held_id, *rest))
        except NotAuthorisedError:
            raise
        except BrokerError:
            continue
        return
    await admin.own(verb, _path(parts[-1], held_id, *rest))


async def _act_on_all(admin: AdminClient, name: TopicName, verb: str, rest: tuple[str, ...]) -> int:
    seen: set[str] = set()
    count = 0
    while page := [one for one in (await _list(admin, name, _PAGE))[0] if one["id"] not in seen]:
        for one in page:
            seen.add(one["id"])
            try:
                await admin.own(verb, _path(TopicName.parse(one["topic"]), one["id"], *rest))
            except NotAuthorisedError:
                raise
            except BrokerError:  # delivered meanwhile, or its transaction decides
                continue
            count += 1
    return count


async def _parts(admin: AdminClient, name: TopicName) -> list[TopicName]:
    count = await partitions_of(admin, name)
    return [TopicName.parse(f"{name}-partition-{at}") for at in range(count)] or [name]


async def _list(admin: AdminClient, name: TopicName, count: int) -> tuple[list[dict[str, Any]], int]:
    """The first `count` messages of all partitions by delivery time, and the total number of delayed messages."""
    found: list[dict[str, Any]] = []
    total = 0
    for part in await _parts(admin, name):
        total += (await admin.own("GET", _path(part, "count")))["messages"]
        after, left = "", count
        while left > 0:
            page = await admin.own("GET", f"{_path(part)}?limit={min(_PAGE, left)}{after}")
            found += [{"topic": str(part), **one} for one in page["held"]]
            left -= len(page["held"])
            if not page["next"]:
                break
            after = f"&after={page['next']}"
    far = float("inf")
    return sorted(found, key=lambda one: far if one["due"] is None else one["due"])[:count], total


def _path(topic: TopicName, *rest: str) -> str:
    namespace = topic.namespace
    return join("held", "persistent", namespace.tenant, namespace.name, topic.local_with_partition, *rest)


def _due(one: dict[str, Any]) -> str:
    return "when its transaction ends" if one["due"] is None else show_moment(one["due"])


def _in(one: dict[str, Any], now_ms: int) -> str:
    """The remaining time, in the largest unit that fits."""
    if one["due"] is None:
        return ""
    left_s = max(0, one["due"] - now_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if left_s >= 2 * size:
            return f"{left_s // size} {unit}"
    return f"{left_s} s"
