"""Streams: read from an offset, by everyone who wants to, and never emptied."""

import time
from datetime import UTC, datetime
from typing import Any

from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import Channel, until


def stream(session: Session, count: int) -> tuple[Channel, str]:
    made = session.channel()
    name = made.queue(session.name("stream"), durable=True, arguments={"x-queue-type": "stream"})
    made.put(name, *(str(number) for number in range(count)))
    return made, name


def read(session: Session, name: str, count: int, offset: Any = None) -> Any:
    """So many messages from there on, with their offsets."""
    made = session.channel()
    made.qos(100)
    said = made.consume(name, arguments={} if offset is None else {"x-stream-offset": offset})
    if not said.startswith("ctag"):
        return said
    made.wait(count)
    return [
        [each["body"], each["redelivered"], each["properties"].get("headers")] for each in made.deliveries[:count]
    ]


@scenario
def offsets_in_all_their_forms(session: Session) -> Any:
    made, name = stream(session, 5)
    found = {
        "first": read(session, name, 5, "first"),
        "number": read(session, name, 2, 3),
        "moment": read(session, name, 5, datetime.fromtimestamp(time.time() - 3600, UTC)),
        "interval": read(session, name, 5, "1h"),
        "wrong text": read(session, name, 1, "soon"),
        "wrong type": read(session, name, 1, True),
    }
    made.talk.channel().delete(name)
    return found


@scenario
def next_is_what_comes_after(session: Session) -> Any:
    made, name = stream(session, 2)
    readers = []
    for offset in ("next", None):
        reader = session.channel()
        reader.qos(10)
        reader.consume(name, arguments={} if offset is None else {"x-stream-offset": offset})
        readers.append(reader)
    made.put(name, "new")
    found = [reader.wait(1) for reader in readers]
    made.delete(name)
    return found


@scenario
def last_begins_before_the_end(session: Session) -> Any:
    made, name = stream(session, 3)
    reader = session.channel()
    reader.qos(10)
    reader.consume(name, arguments={"x-stream-offset": "last"})
    made.put(name, "new")
    until(lambda: reader.wait(len(reader.got) + 1)[-1] == "new")
    made.delete(name)
    return reader.got[-1]


@scenario
def everyone_reads_all_of_it(session: Session) -> Any:
    made, name = stream(session, 3)
    found = [read(session, name, 3, "first"), read(session, name, 3, "first")]
    return [found[0] == found[1], len(found[0]), made.count(name) in (0, 3), made.delete(name) in (0, 3)]


@scenario
def a_stream_is_consumed_with_prefetch_and_acknowledged(session: Session) -> Any:
    made, name = stream(session, 3)
    first = made.talk.channel()
    found = [first.consume(name)]
    second = made.talk.channel()
    second.qos(1)
    found.append(second.consume(name, no_ack=True))
    third = made.talk.channel()
    third.qos(1)
    third.consume(name, arguments={"x-stream-offset": "first"})
    third.wait(1)
    found.append(third.quiet())
    third.ack(third.tags[0])
    third.wait(2)
    found.append(third.quiet())
    made.delete(name)
    return found


@scenario
def what_a_stream_cannot_do(session: Session) -> Any:
    made, name = stream(session, 1)
    found = {"get": session.channel().get(name)}
    exclusive = session.channel()
    exclusive.qos(1)
    found["exclusive consumer"] = exclusive.consume(name, exclusive=True, tag="mine")
    found["purge"] = session.channel().purge(name)
    made.talk.channel().delete(name)
    return found


@scenario
def what_is_given_back_to_a_stream_is_not_seen_again(session: Session) -> Any:
    made, name = stream(session, 3)
    reader = session.channel()
    reader.qos(2)
    reader.consume(name, arguments={"x-stream-offset": "first"})
    reader.wait(2)
    reader.nack(reader.tags[0])
    found = [reader.sync()]
    if found == ["ok"]:
        reader.wait(3)
    found.append(reader.quiet())
    made.delete(name)
    return found
