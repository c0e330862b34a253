"""`weir consume`: messages of a topic to standard output."""

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import replace

import click

from weir.cli.message_views import message_json, readable
from weir.cli.remote import Remote, remote_options
from weir.cli.values import parse_span_ms
from weir.client.consumer import Consumer, Subscribing
from weir.client.messages import Incoming
from weir.client.pulsar import PulsarClient
from weir.model.errors import ConsumerClosedError, NetworkError, TopicClosedError
from weir.runtime.interfaces import Runtime
from weir.wire.pulsar.ids import EARLIEST, LATEST, MessageId
from weir.wire.pulsar.proto import api

log = logging.getLogger(__name__)

_TYPES = {
    "exclusive": api.CommandSubscribe.Exclusive,
    "shared": api.CommandSubscribe.Shared,
    "failover": api.CommandSubscribe.Failover,
    "key-shared": api.CommandSubscribe.Key_Shared,
}
#: Acknowledged together at the latest.
_ACK_EVERY = 500
_RETRY_PAUSE_S = 0.5


@click.command(
    epilog="""
\b
Examples:
  weir consume orders                            everything that is there; leaves no trace
  weir consume orders --follow --from latest     what comes from now on
  weir consume orders -s billing                 as a subscription; what is shown is acknowledged
  weir consume orders -s billing -n 10 --json    ten messages, one JSON object per line
"""
)
@click.argument("topic")
@click.option(
    "-s", "--subscription", metavar="SUB", help="Made if new. Without: as a reader that leaves no trace."
)
@click.option(
    "--type", "kind", type=click.Choice(list(_TYPES)), default="exclusive", show_default=True, help="Of SUB."
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a reader or a new subscription begins.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until interrupted.")
@click.option(
    "--wait",
    default="2s",
    show_default=True,
    metavar="SPAN",
    help="Without --follow: end after so long a silence.",
)
@click.option("--no-ack", is_flag=True, help="Acknowledge nothing.")
@click.option("--compacted", is_flag=True, help="Only the last message of each key, as far as compacted.")
@remote_options
def consume(
    *,
    topic: str,
    subscription: str | None,
    kind: str,
    start: str,
    count: int | None,
    follow: bool,
    wait: str,
    no_ack: bool,
    compacted: bool,
    remote: Remote,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one per line. Without --follow or -n, ends when there are no more."""
    asked = Subscribing(
        subscription=subscription or "",
        type=_TYPES[kind],
        earliest=start == "earliest",
        durable=subscription is not None,
        start=None if subscription is not None else EARLIEST if start == "earliest" else LATEST,
        create_topic=follow or count is not None,
        read_compacted=compacted,
    )
    # With -n, someone waits for just so many.
    patience_s = None if follow or count is not None else parse_span_ms(wait) / 1000
    ack = subscription is not None and not no_ack

    async def work(runtime: Runtime, client: PulsarClient) -> None:
        session = _Session(client, topic, asked, count=count, patience_s=patience_s, ack=ack, as_json=as_json)
        await session.run(runtime, follow=follow)

    remote.broker(topic, work)


class _Session:
    """Receives until there is enough; after a lost connection, goes on from where it was."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        asked: Subscribing,
        *,
        count: int | None,
        patience_s: float | None,
        ack: bool,
        as_json: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._asked = asked
        self._left = count
        self._patience_s = patience_s
        self._ack = ack
        self._as_json = as_json
        self._unacked: list[Incoming] = []
        self._last: dict[int, MessageId] = {}

    async def run(self, runtime: Runtime, *, follow: bool) -> None:
        if not self._asked.subscription:
            name = f"weir-consume-{runtime.rng.randrange(2**32):08x}"
            self._asked = replace(self._asked, subscription=name)
        while True:
            self._unacked.clear()
            try:
                consumer = await self._client.consumer(self._topic, self._asked)
                try:
                    return await self._receive(consumer)
                finally:
                    await _close(consumer)
            except (NetworkError, ConsumerClosedError, TopicClosedError) as failure:
                if not follow:
                    raise
                log.warning("%s; connecting again", failure)
            await runtime.clock.sleep(_RETRY_PAUSE_S)

    async def _receive(self, consumer: Consumer) -> None:
        while self._left is None or self._left > 0:
            if not consumer.waiting():
                await self._acknowledge(consumer)
            try:
                async with asyncio.timeout(self._patience_s):
                    message = await consumer.receive()
            except TimeoutError:
                break
            if message is None:
                break
            if message.id <= self._last.get(message.part, EARLIEST) and not self._ack:
                continue  # seen before the connection was lost
            self._show(message)
            await self._took(consumer, message)
        await self._acknowledge(consumer)

    async def _took(self, consumer: Consumer, message: Incoming) -> None:
        self._last[message.part] = message.id
        if self._left is not None:
            self._left -= 1
        if self._ack:
            self._unacked.append(message)
            if len(self._unacked) >= _ACK_EVERY:
                await self._acknowledge(consumer)

    async def _acknowledge(self, consumer: Consumer) -> None:
        if self._unacked:
            await consumer.ack(*self._unacked)
            self._unacked.clear()

    def _show(self, message: Incoming) -> None:
        if not self._as_json:
            click.echo(readable(message.payload))
            return
        found = message_json(
            at=str(message.id),
            payload=message.payload,
            key=message.key,
            properties=message.properties,
            publish_ms=message.publish_ms,
            event_ms=message.event_ms,
            producer=message.producer,
            redelivered=message.redelivered,
            encrypted=message.encrypted or None,
        )
        click.echo(json.dumps(found, ensure_ascii=False))


async def _close(consumer: Consumer) -> None:
    with suppress(NetworkError):  # gone already
        await consumer.close()
