"""When `weir consume` has all that is there, and when it may not say so."""

from typing import Any, cast

import pytest

from weir.cli import consume as consume_session
from weir.cli.consume import Session, Start, Wanted, left_out
from weir.cli.message_format import Printer
from weir.cli.output import Output
from weir.client.admin import AdminClient
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Consumer, Subscribing
from weir.client.pulsar.messages import Incoming
from weir.model.errors import ConfigError, ConsumerClosedError, StreamError
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.wire.pulsar.ids import EARLIEST, LATEST, MessageId

TOPIC = "persistent://public/default/t"
READER = Subscribing("s", durable=False, start=EARLIEST)


def message(entry: int) -> Incoming:
    return Incoming(MessageId(1, entry), b"x", None, {}, 0, 0, "p", 0, 0, offset=entry)


class FakeConsumer:
    """Gives some messages, then is silent, or fails."""

    topics = (TOPIC,)

    def __init__(self, given: int, last: int, failure: Exception | None = None) -> None:
        self._messages = [message(entry) for entry in range(given)]
        self._last = MessageId(1, last)
        self._failure = failure

    def waiting(self) -> int:
        return len(self._messages)

    async def receive(self) -> Incoming:
        if self._messages:
            return self._messages.pop(0)
        raise self._failure or TimeoutError

    async def last_ids(self) -> list[MessageId]:
        return [self._last]

    async def close(self) -> None:
        """Nothing is held."""


async def consume(consumer: FakeConsumer, asked: Subscribing = READER, **wanted: Any) -> Session:
    class Client:
        async def consumer(self, topic: str, asked: Subscribing) -> Consumer:
            return cast(Consumer, consumer)

    how = Wanted(**{"patience_s": 20.0, "to_the_end": True, **wanted})
    session = Session(cast(PulsarClient, Client()), TOPIC, asked, how, Printer(Output()))
    await session.run(real_runtime())
    return session


async def test_silence_after_the_last_message_is_the_end() -> None:
    assert (await consume(FakeConsumer(given=3, last=2))).count == 3


async def test_a_topic_without_messages_has_ended() -> None:
    assert (await consume(FakeConsumer(given=0, last=-1))).count == 0


async def test_silence_before_the_last_message_is_an_error() -> None:
    with pytest.raises(StreamError, match="continues to 1:9"):
        await consume(FakeConsumer(given=3, last=9))


async def test_others_may_have_the_rest_of_a_subscription() -> None:
    assert (await consume(FakeConsumer(given=3, last=9), Subscribing("s"))).count == 3


async def test_a_consumer_that_is_closed_is_an_error_that_says_how_much_came() -> None:
    with pytest.raises(ConsumerClosedError, match="3 messages arrived before"):
        await consume(FakeConsumer(3, 9, ConsumerClosedError("closed")))


async def test_fewer_than_were_asked_for_is_an_error() -> None:
    with pytest.raises(StreamError, match="3 of 5 messages arrived"):
        await consume(FakeConsumer(given=3, last=2), count=5)


@pytest.mark.parametrize(("lost", "told"), [((1, 2), True), ((5, 9), False), ((-1, -1), False)])
async def test_damage_in_what_was_printed_is_an_error(
    lost: tuple[int, int], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stats(_admin: AdminClient, _topic: TopicName) -> dict[str, Any]:
        return {"lostEntries": [{"firstOffset": lost[0], "endOffset": lost[1]}]}

    monkeypatch.setattr(consume_session, "topic_stats", stats)
    session = await consume(FakeConsumer(given=4, last=3))
    admin = cast(AdminClient, None)
    if told:
        with pytest.raises(StreamError, match="offsets 1 to 1 of"):
            await left_out(admin, TopicName.parse(TOPIC), session)
    else:
        await left_out(admin, TopicName.parse(TOPIC), session)


def test_where_to_begin_is_an_end_an_offset_a_message_or_a_moment() -> None:
    assert Start.parse("earliest").at == EARLIEST
    assert Start.parse("latest").at == LATEST
    assert Start.parse("12").offset == 12
    assert Start.parse("-5").offset == -5
    assert Start.parse("12:3").at == MessageId(12, 3)
    assert Start.parse("1970-01-01T00:00:01").moment_ms == 1000
    assert Start.parse("1700000000000").moment_ms == 1_700_000_000_000
    assert Start.parse("-10min").moment_ms is not None
    with pytest.raises(ConfigError, match="invalid start position 'somewhere'"):
        Start.parse("somewhere")
