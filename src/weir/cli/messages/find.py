"""`weir messages`: stored messages, found by their key."""

import json
from typing import Any
from urllib.parse import quote

import click

from weir.cli.completing import complete_topic
from weir.cli.examples import examples
from weir.cli.messages.peek import shown_json, shown_row
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.topics.stats import partitions_of
from weir.client.admin import AdminClient, join, topic_path
from weir.model.errors import ConfigError
from weir.model.topics import NamespaceName, TopicName


@click.group(
    epilog="""
\b
Examples:
  weir messages index orders --on        make an index of keys
  weir messages find orders --key o-17   the latest messages of the key
"""
)
def messages() -> None:
    """Find stored messages by their key."""


@messages.command(
    epilog=examples(
        "weir messages find orders --key o-17",
        "weir messages find orders --key o-17 -n 1 -o json",
    )
)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--key", required=True, help="The key, or one of the words in the header KEYS.")
@click.option(
    "-n", "--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="So many, the latest first."
)
@remote_options
def find(topic: str, key: str, count: int, remote: Remote, out: Output) -> None:
    """Show the latest messages of a key, by the topic's index of keys."""
    name = TopicName.parse(topic)
    found = remote.admin(lambda admin: _find(admin, name, key, count))
    if out.json:
        for message in found:
            click.echo(json.dumps(shown_json(message), ensure_ascii=False))
        return
    columns = (
        Column("partition", wide=all(message["topic"].partition is None for message in found)),
        "offset",
        "id",
        "published",
        Column("key", cut="end"),
        Column("headers", wide=True, cut="end"),
        Column("payload", cut="end"),
    )
    out.table(columns, [shown_row(message) for message in found])


async def _find(admin: AdminClient, name: TopicName, key: str, count: int) -> list[dict[str, Any]]:
    partitions = await partitions_of(admin, name)
    parts = [TopicName.parse(f"{name}-partition-{at}") for at in range(partitions)] or [name]
    found: list[dict[str, Any]] = []
    for part in parts:
        space = part.namespace
        path = join("found", "persistent", space.tenant, space.name, part.local_with_partition)
        answer = await admin.own("GET", f"{path}?key={quote(key, safe='')}&limit={count}")
        found += [{**message, "topic": part} for message in answer["messages"]]
    return sorted(found, key=lambda message: -message["publishMs"])[:count] if partitions else found


@messages.command(
    epilog=examples(
        "weir messages index orders --on",
        "weir messages index orders --off",
        "weir messages index --namespace public/default --on",
    )
)
@click.argument("topic", required=False, shell_complete=complete_topic)
@click.option("--namespace", help="All topics of a namespace that say nothing themselves.")
@click.option(
    "--on/--off", "on", default=None, help="Make an index, or remove it. Neither: say whether there is one."
)
@remote_options
def index(*, topic: str | None, namespace: str | None, on: bool | None, remote: Remote, as_json: bool) -> None:
    """Switch a topic's index of keys on or off; it is built behind every sealed ledger."""
    path = policy_path(topic, namespace, "keyIndex")

    async def work(admin: AdminClient) -> Any:
        if on is not None:
            await admin.post(path, on)
        return await admin.get(f"{path}?applied=true")

    said = "on" if remote.admin(work) else "off"
    done(f"index of keys of {topic or namespace}: {said}", as_json=as_json)


def policy_path(topic: str | None, namespace: str | None, word: str) -> str:
    """Where a policy of a topic or a namespace is."""
    if (topic is None) == (namespace is None):
        raise ConfigError("say whose policy it is", hint="give a topic, or --namespace TENANT/NAMESPACE")
    if topic is not None:
        return topic_path(TopicName.parse(topic), word)
    space = NamespaceName.parse(namespace or "")
    return join("namespaces", space.tenant, space.name, word)
