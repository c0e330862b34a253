"""`weir functions logs`: what a function printed and logged, from its log topic."""

import json
from datetime import UTC, datetime
from typing import Any

import click

from weir.cli.functions.names import access_of, find
from weir.cli.remote import Remote, remote_options
from weir.client.consumer import Subscribing
from weir.client.messages import Incoming
from weir.client.pulsar import PulsarClient
from weir.functions.options import from_text
from weir.model.errors import ConfigError
from weir.model.topics import TopicName
from weir.wire.pulsar.ids import MessageId


@click.command(
    epilog="""
\b
Examples:
  weir functions logs clean             the lines that there are
  weir functions logs clean -f          and those that come, until Ctrl-C
  weir functions logs clean --json
"""
)
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@remote_options
def logs(*, name: str, follow: bool, remote: Remote, as_json: bool) -> None:
    """Print what a function printed and logged, and what it failed of."""
    function = find(access_of(remote), name).function
    topic = from_text(function.options).log_topic
    if not topic:
        raise ConfigError(f"{name} has no log topic", hint=f"weir functions update {name} --log-topic {name}-logs")
    whole = TopicName.parse(topic if "/" in topic else f"{function.name.namespace}/{topic}")
    remote.broker(
        str(whole), lambda _, client: _print(client, whole, function.name.local, follow=follow, as_json=as_json)
    )


async def _print(client: PulsarClient, topic: TopicName, name: str, *, follow: bool, as_json: bool) -> None:
    asked = Subscribing("weir-functions-logs", earliest=True, durable=False)
    consumer = await client.consumer(str(topic), asked)
    ends = {part: at for part, at in enumerate(await consumer.last_ids()) if at.entry >= 0}
    while follow or ends:
        message = await consumer.receive()
        if message is None:
            return
        _line(message, name, as_json=as_json)
        end = ends.get(message.part)
        if end is not None and _is_last(message, end):
            del ends[message.part]


def _is_last(message: Incoming, end: MessageId) -> bool:
    whole = message.batch_size == 0 or message.id.batch_index + 1 >= message.batch_size
    return whole and (message.id.ledger, message.id.entry) >= (end.ledger, end.entry)


def _line(message: Incoming, name: str, *, as_json: bool) -> None:
    try:
        said: dict[str, Any] = json.loads(message.payload)
    except ValueError:
        return
    if said.get("function") != name:  # several functions may share a topic
        return
    if as_json:
        click.echo(json.dumps(said))
        return
    moment = datetime.fromtimestamp(said["time"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    about = f"  [{TopicName.parse(said['topic']).local} {said['offset']}]" if "offset" in said else ""
    click.echo(f"{moment} {said['level']:<7} {said['message']}{about}")
