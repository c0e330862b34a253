"""Publishing: properties, mandatory returns, confirms, transactions."""

from typing import Any

from tests.gateway.amqp.behaviour.raw import Raw
from tests.gateway.amqp.behaviour.scenario import Session, scenario

from weir.wire.amqp.methods import basic, channel, confirm, queue, tx
from weir.wire.amqp.properties import Properties
from weir.wire.amqp.tables import Field, Table


def ready(session: Session, name: str, *, confirms: bool = True, **arguments: Any) -> Raw:
    """A raw client with a channel and a queue of its own."""
    raw = session.raw()
    raw.channel()
    raw.ask(1, queue.Declare(name, exclusive=True, arguments=Table.of(arguments)))
    if confirms:
        raw.ask(1, confirm.Select())
    return raw


@scenario
def all_properties_come_back(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True)
    made.confirm().publish(
        "",
        name,
        "body",
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"n": 1, "t": "text", "deep": {"list": [1, "two", {"three": 3}]}, "no": None, "yes": True},
        delivery_mode=2,
        priority=3,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="message",
        timestamp=1_700_000_000,
        type="type",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    return made.get(name)


@scenario
def every_type_of_field_comes_back(session: Session) -> Any:
    name = session.name("q")
    raw = ready(session, name)
    fields: dict[str, Field] = {
        tag: Field(tag, value)
        for tag, value in {
            "t": True,
            "b": -1,
            "B": 200,
            "s": -300,
            "u": 60_000,
            "I": -70_000,
            "i": 4_000_000_000,
            "l": 1 << 40,
            "T": 1_700_000_000,
            "f": 0.5,
            "d": 0.1,
            "S": "text",
            "x": b"\xff\0",
            "V": None,
            "D": (2, 314),
        }.items()
    }
    fields["A"] = Field("A", (Field("S", "a"), Field("I", 1), Field("F", Table.of({"k": "v"}))))
    fields["F"] = Field("F", Table.of({"k": "v"}))
    raw.publish(1, basic.Publish("", name), b"body", Properties(headers=Table.of(fields)))
    raw.hear()
    return raw.ask(1, basic.Get(name))


@scenario
def bodies_of_any_size_come_back(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True)
    made.confirm()
    found = []
    for size in (0, 1, 131_064, 131_065, 1_000_000):
        made.publish("", name, "x" * size)
        _method, _properties, body = made.pika.basic_get(name, auto_ack=True)
        found.append([size, len(body or b""), set(body or b"") <= {ord("x")}])
    return found


@scenario
def a_body_is_cut_to_the_frames_of_its_receiver(session: Session) -> Any:
    name = session.name("q")
    raw = session.raw(frame_max=4096)
    raw.channel()
    raw.ask(1, queue.Declare(name, exclusive=True))
    raw.publish(1, basic.Publish("", name), b"x" * 10_000)
    raw.send(1, basic.Get(name))
    method = raw.read_bytes(7)
    raw.read_bytes(int.from_bytes(method[3:], "big") + 1)
    head = raw.read_bytes(7)
    raw.read_bytes(int.from_bytes(head[3:], "big") + 1)
    pieces = []
    while sum(pieces) < 10_000:
        pieces.append(int.from_bytes(raw.read_bytes(7)[3:], "big"))
        raw.read_bytes(pieces[-1] + 1)
    return pieces


@scenario
def keys_that_no_queue_has_are_unroutable(session: Session) -> Any:
    made = session.channel()
    made.confirm()
    keys = ("", ".", "..", "a\r\nb", "\x00", "x" * 255)
    found = [[made.publish("", key, "1", mandatory=True), made.publish("", key, "2")] for key in keys]
    return [found, made.returned, made.sync()]


@scenario
def wrong_properties_are_refused(session: Session) -> Any:
    found = {}
    cases: dict[str, dict[str, Any]] = {
        "user_id of another": {"user_id": "nobody"},
        "expiration as text": {"expiration": "soon"},
        "expiration below 0": {"expiration": "-1"},
        "expiration as fraction": {"expiration": "1.5"},
        "expiration empty": {"expiration": ""},
        "expiration with more": {"expiration": "100ms"},
    }
    for title, properties in cases.items():
        made = session.channel()
        made.publish("", session.name("none"), "body", **properties)
        found[title] = made.sync()
    return found


@scenario
def a_mandatory_message_without_a_route_is_returned(session: Session) -> Any:
    made = session.channel()
    made.publish(
        "amq.direct", session.name("key"), "body", mandatory=True, content_type="text/plain", headers={"a": 1}
    )
    made.publish("amq.direct", session.name("key"), "lost")
    return [made.sync(), made.until_returned()]


@scenario
def a_return_comes_before_its_confirm(session: Session) -> Any:
    name = session.name("q")
    raw = ready(session, name)
    raw.publish(1, basic.Publish("", session.name("none"), mandatory=True), b"lost")
    return raw.hear_all(2)


@scenario
def every_publish_is_confirmed(session: Session) -> Any:
    name = session.name("q")
    raw = ready(session, name)
    for number in range(5):
        raw.publish(1, basic.Publish("", name), str(number).encode())
    return sorted(confirmed(raw, 5))


def confirmed(raw: Raw, count: int) -> list[tuple[int, str]]:
    """How each publish ended, however they were put together."""
    found: dict[int, str] = {}
    while len(found) < count:
        told = raw.hear()
        if not isinstance(told, dict) or told["is"] not in {"basic.ack", "basic.nack"}:
            return [*found.items(), (-1, told)]
        last = told["delivery_tag"]
        for tag in range(1 if told["multiple"] else last, last + 1):
            found.setdefault(tag, told["is"])
    return list(found.items())


@scenario
def publishes_to_many_kinds_of_queues_are_confirmed(session: Session) -> Any:
    raw = ready(session, session.name("memory"))
    raw.ask(1, queue.Declare(session.name("durable"), durable=True))
    kind = Table.of({"x-queue-type": "quorum"})
    raw.ask(1, queue.Declare(session.name("quorum"), durable=True, arguments=kind))
    names = [session.name(name) for name in ("memory", "durable", "quorum", "none")]
    for name in names:
        for mode in (1, 2):
            raw.publish(1, basic.Publish("", name), b"body", Properties(delivery_mode=mode))
    return sorted(confirmed(raw, 8))


@scenario
def a_full_queue_refuses(session: Session) -> Any:
    name = session.name("q")
    raw = ready(session, name, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    for number in range(4):
        raw.publish(1, basic.Publish("", name), str(number).encode())
    return sorted(confirmed(raw, 4))


@scenario
def confirms_and_transactions_exclude_one_another(session: Session) -> Any:
    first, second = session.raw(), session.raw()
    first.channel()
    second.channel()
    return [
        first.ask(1, confirm.Select()),
        first.ask(1, confirm.Select()),
        first.ask(1, tx.Select()),
        second.ask(1, tx.Select()),
        second.ask(1, tx.Select()),
        second.ask(1, confirm.Select()),
    ]


@scenario
def a_publish_that_ends_its_channel_is_not_confirmed(session: Session) -> Any:
    raw = ready(session, session.name("q"))
    raw.publish(1, basic.Publish(session.name("none"), "key"), b"body")
    found = [raw.hear()]
    raw.send(1, channel.CloseOk())
    found.append(raw.ask(1, channel.Open()))
    raw.ask(1, confirm.Select())
    raw.publish(1, basic.Publish("", session.name("q")), b"body")
    found.append(raw.hear())
    return found


# --- tx -------------------------------------------------------------------------------------------------------


@scenario
def a_transaction_is_seen_when_it_commits(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True)
    found = [made.tx_select()]
    made.publish("", name, "1")
    made.publish("", name, "2")
    found.append(made.count(name))
    found.append(made.tx_commit())
    found.append(made.count(name))
    made.publish("", name, "3")
    found.append(made.tx_rollback())
    found.append(made.tx_commit())
    found.append(made.take(name))
    return found


@scenario
def acknowledgements_are_part_of_a_transaction(session: Session) -> Any:
    talk = session.talk()
    made = talk.channel()
    name = made.queue(session.name("q"), exclusive=True)
    made.put(name, "1", "2", "3")
    made.tx_select()
    first = made.get(name)
    made.ack(first["tag"])
    found = [made.tx_rollback()]
    found.append(made.ack(first["tag"]))  # it is still there to be acknowledged
    found.append(made.tx_commit())
    second = made.get(name)
    made.reject(second["tag"], requeue=True)
    found.append(made.count(name))
    found.append(made.tx_commit())
    found.append(made.until_count(name, 2))
    third = made.get(name)
    made.ack(third["tag"])
    made.close()
    other = talk.channel()
    found.append(other.until_count(name, 2))
    found.append(other.take(name))
    return found


@scenario
def a_transaction_must_be_selected(session: Session) -> Any:
    talk = session.talk()
    return [talk.channel().tx_commit(), talk.channel().tx_rollback()]


@scenario
def a_transaction_returns_what_has_no_route(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    raw.ask(1, tx.Select())
    raw.publish(1, basic.Publish("", session.name("none"), mandatory=True), b"lost")
    first = raw.ask(1, tx.Commit())
    return [first, raw.hear()]


@scenario
def an_error_within_a_transaction_takes_all_of_it(session: Session) -> Any:
    talk = session.talk()
    made = talk.channel()
    name = made.queue(session.name("q"), exclusive=True)
    made.tx_select()
    made.publish("", name, "1")
    made.publish(session.name("none"), "key", "2")
    return [made.tx_commit(), talk.channel().count(name)]
