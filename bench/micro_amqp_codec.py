"""Microseconds per operation of the AMQP codec: what comes and what goes once per message."""

from collections.abc import Callable
from time import process_time
from timeit import repeat

from weir.wire.amqp.command_reader import CommandReader
from weir.wire.amqp.content import Deliveries, envelope, get_ok, outgoing, publish
from weir.wire.amqp.frames import DEFAULT_FRAME_MAX, PROTOCOL_HEADER, Role
from weir.wire.amqp.message import message_of, outgoing_of
from weir.wire.amqp.methods import basic, decode_method, encode_method
from weir.wire.amqp.properties import Properties, decode_properties, encode_properties
from weir.wire.amqp.tables import Table

ROUNDS = 20_000
MANY = 100


def measure(name: str, operation: Callable[[], object], per: int = 1) -> None:
    """CPU time, the best of nine runs: the others were disturbed."""
    best = min(repeat(operation, number=ROUNDS // per, repeat=9, timer=process_time))
    print(f"{name:<58}{best / (ROUNDS // per) / per * 1e6:8.2f}")


def stream(said: list[Properties], body: bytes) -> Callable[[], None]:
    """The reading of as many publishes as there are properties, out of one receive buffer."""
    method = basic.Publish("", "orders")
    sent = [publish(1, method, encode_properties(one), body, DEFAULT_FRAME_MAX) for one in said]
    received = b"".join(piece for pieces in sent for piece in pieces)
    reader = CommandReader(Role.SERVER, frame_max=DEFAULT_FRAME_MAX)
    assert not list(reader.feed(PROTOCOL_HEADER))

    def read() -> None:
        for command in reader.feed(received):
            assert command.body is not None

    return read


def main() -> None:
    plain = Properties(content_type="text/plain", delivery_mode=2)
    unique = [Properties(content_type="text/plain", delivery_mode=2, message_id=str(at)) for at in range(MANY)]
    table = Table.of({"retries": 3, "task": "tasks.add", "origin": "gen1@host", "eta": None})
    rich = [
        Properties(
            content_type="application/json",
            content_encoding="utf-8",
            headers=table.replacing("id", str(at)),
            delivery_mode=2,
            priority=0,
            correlation_id=str(at),
        )
        for at in range(MANY)
    ]
    small, large = bytes(100), bytes(4096)
    print(f"{'operation':<58}{'us':>8}")
    measure("in: publish, 100 B, the same properties", stream([plain] * MANY, small), per=MANY)
    measure("in: publish, 4 KiB, the same properties", stream([plain] * MANY, large), per=MANY)
    measure("in: publish, 100 B, a message id of its own", stream(unique, small), per=MANY)
    measure("in: publish, 100 B, 5 headers and an id (Celery)", stream(rich, small), per=MANY)
    method = basic.Publish("", "orders")
    payload = encode_method(1, method)[7:-1]
    header, headers = encode_properties(plain), encode_properties(rich[0])
    measure("in: basic.publish alone", lambda: decode_method(payload))
    measure("in: 2 properties alone", lambda: decode_properties(header))
    measure("in: 6 properties with 5 headers alone", lambda: decode_properties(headers))
    ack = encode_method(1, basic.Ack(77))[7:-1]
    measure("in: basic.ack alone", lambda: decode_method(ack))

    deliveries = Deliveries(1, "ctag1.0123456789abcdef", DEFAULT_FRAME_MAX)
    one, big = (outgoing(envelope("", "orders"), header, body) for body in (small, large))
    measure("out: deliver, 100 B, encoded before", lambda: deliveries.frames(123456, False, one))
    measure("out: deliver, 4 KiB, encoded before", lambda: deliveries.frames(123456, False, big))
    measure("out: get-ok, 100 B", lambda: get_ok(1, 7, False, one, left=3, frame_max=DEFAULT_FRAME_MAX))
    measure("out: basic.ack (a confirm)", lambda: encode_method(1, basic.Ack(123456, True)))
    measure("out: publish, 100 B (client)", lambda: publish(1, method, header, small, DEFAULT_FRAME_MAX))

    stored = message_of(method, plain, small, 0, header)
    measure("store: message of 2 properties", lambda: message_of(method, plain, small, 0, header))
    measure("store: message of 6 properties, 5 headers", lambda: message_of(method, rich[0], small, 0, headers))
    measure("stored: ready to be delivered", lambda: outgoing_of(stored, "orders"))


if __name__ == "__main__":
    main()
