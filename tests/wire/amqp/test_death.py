"""A dead letter tells of its deaths as RabbitMQ does, and is what it was otherwise."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from weir.model.batch import Batch, BatchFormat
from weir.model.messages import Message
from weir.testing.codecs.amqp_strategies import properties as some_properties
from weir.testing.codecs.amqp_strategies import short_texts
from weir.wire.amqp.content import opened_envelope
from weir.wire.amqp.dead_letter import DeadLetter, Reason, dead_letter
from weir.wire.amqp.message import message_of, outgoing_of, properties_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import NAMES, Properties, decode_properties
from weir.wire.amqp.tables import Table, plain_fields
from weir.wire.formats.messages import decode_messages, encode_messages
from weir.wire.formats.table import messages_of, translated

NOW = 1_800_000_000_000


def published(exchange: str = "e", key: str = "r", **said: object) -> Message:
    headers = said.pop("headers", None)
    table = Table.of(headers) if isinstance(headers, dict) else None
    return message_of(basic.Publish(exchange, key), Properties(headers=table, **said), b"body", NOW)  # type: ignore[arg-type]


def died(
    message: Message,
    reason: Reason = Reason.EXPIRED,
    queue: str = "q",
    exchange: str = "dlx",
    key: str | None = None,
) -> DeadLetter:
    letter = dead_letter(message, reason, queue=queue, exchange=exchange, key=key, now_ms=NOW)
    (kept,) = decode_messages(encode_messages([letter.message]))
    return replace(letter, message=kept)


def delivered(message: Message) -> tuple[str, str, Properties]:
    out = outgoing_of(message, "the-queue")
    return *opened_envelope(out.envelope), decode_properties(out.header[12:])


def deaths(message: Message) -> list[dict[str, object]]:
    headers = delivered(message)[2].headers
    assert headers is not None
    found = plain_fields(headers)["x-death"]
    assert isinstance(found, list)
    return found


def test_the_first_death_is_told_in_full() -> None:
    letter = died(published(expiration="60", headers={"CC": ["c1", "c2"], "mine": 5}))
    exchange, key, said = delivered(letter.message)
    assert (exchange, key, said.expiration) == ("dlx", "r", None)
    assert letter.keys == ("r", "c1", "c2")
    assert said.headers is not None
    found = plain_fields(said.headers)
    (death,) = found["x-death"]
    assert death.pop("time").timestamp() == NOW // 1000
    assert death == {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "exchange": "e",
        "routing-keys": ["r", "c1", "c2"],
        "original-expiration": "60",
    }
    assert (found["x-first-death-queue"], found["x-first-death-reason"]) == ("q", "expired")
    assert (found["x-first-death-exchange"], found["mine"], found["CC"]) == ("e", 5, ["c1", "c2"])
    array = said.headers.field("x-death")
    assert array is not None
    assert isinstance(array.value, tuple)
    assert [(name, field.tag) for name, field in array.value[0].value.fields] == [
        ("count", "l"),
        ("reason", "S"),
        ("queue", "S"),
        ("time", "T"),
        ("exchange", "S"),
        ("routing-keys", "A"),
        ("original-expiration", "S"),
    ]


def test_a_key_of_the_queue_takes_the_place_of_all_keys() -> None:
    letter = died(published(headers={"CC": ["c1"]}), key="dead")
    exchange, key, said = delivered(letter.message)
    assert (exchange, key, letter.keys) == ("dlx", "dead", ("dead",))
    assert said.headers is not None
    assert "CC" not in said.headers
    assert deaths(letter.message)[0]["routing-keys"] == ["r", "c1"]


def test_deaths_of_a_queue_for_one_reason_are_one_entry_which_comes_first() -> None:
    letter = died(published())
    letter = died(letter.message, Reason.REJECTED, "other")
    letter = died(letter.message, Reason.EXPIRED)
    letter = died(letter.message, Reason.MAX_LENGTH)
    assert [(one["queue"], one["reason"], one["count"], one["exchange"]) for one in deaths(letter.message)] == [
        ("q", "maxlen", 1, "dlx"),
        ("q", "expired", 2, "e"),
        ("other", "rejected", 1, "dlx"),
    ]
    said = delivered(letter.message)[2].headers
    assert said is not None
    assert (said.get("x-first-death-queue"), said.get("x-first-death-reason")) == (
        "q",
        "expired",
    )


def test_what_a_client_wrote_in_its_place_counts_for_nothing() -> None:
    assert [one["count"] for one in deaths(died(published(headers={"x-death": "text"})).message)] == [1]
    odd = published(headers={"x-death": [5, {"queue": "q", "reason": "expired", "count": "many"}]})
    array = deaths(died(odd).message)
    assert array[0]["count"] == 1
    assert array[1:] == [5]


def test_a_message_that_only_the_broker_moves_in_a_circle_is_not_moved_again() -> None:
    once = died(published(), queue="a")
    assert once.cycles("a")
    assert not once.cycles("b")
    twice = died(once.message, Reason.MAX_LENGTH, "b")
    assert twice.cycles("a")
    assert twice.cycles("b")
    assert not twice.cycles("c")


def test_a_message_that_a_client_rejects_may_go_in_circles() -> None:
    rejected = died(published(), Reason.REJECTED, "a")
    assert not rejected.cycles("a")
    expired = died(rejected.message, Reason.EXPIRED, "b")
    assert not expired.cycles("a")
    assert expired.cycles("b")
    assert not died(published(headers={"x-death": [5, {"queue": "a", "reason": "expired"}]}), queue="b").cycles(
        "a"
    )


@given(some_properties, short_texts, short_texts, st.sampled_from(Reason), st.none() | short_texts)
def test_all_else_of_a_message_of_amqp_stays(
    properties: Properties, exchange: str, key: str, reason: Reason, new_key: str | None
) -> None:
    before = message_of(basic.Publish(exchange, key), properties, b"body", NOW)
    after = died(before, reason, key=new_key).message
    was_exchange, was_key, said = delivered(after)
    assert (was_exchange, was_key) == ("dlx", key if new_key is None else new_key)
    assert all(
        getattr(said, name) == getattr(properties, name) for name in NAMES if name not in ("headers", "expiration")
    )
    assert (after.key, after.ordering_key, after.event_ms, after.value) == (
        before.key,
        before.ordering_key,
        before.event_ms,
        before.value,
    )
    # Whoever reads it by another protocol, and hands it on, does not lose the deaths.
    assert plain_fields(properties_of(replace(after, native=None)).headers or Table())["x-death"] == deaths(after)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).map("h-".__add__)
blobs = st.binary(max_size=20)
foreign = st.builds(
    Message,
    st.none() | blobs,
    st.none() | blobs,
    st.lists(st.tuples(names, st.none() | blobs), max_size=4),
    st.none() | st.integers(0, (1 << 63) - 1),
    st.just(NOW),
    st.none() | blobs,
)


@given(foreign, st.sampled_from(Reason), st.none() | short_texts)
def test_a_message_of_another_protocol_stays_what_it_is(message: Message, reason: Reason, key: str | None) -> None:
    letter = died(message, reason, key=key)
    letter = died(letter.message, reason, "second", "dlx-2", key)
    ours = ("x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange", "amqp-headers")
    told = [header for header in letter.message.headers if header[0] not in ours]
    assert replace(letter.message, headers=told, native=None) == message
    assert [one["queue"] for one in deaths(letter.message)] == ["second", "q"]
    assert deaths(letter.message)[1]["routing-keys"] == ["q"]
    assert delivered(letter.message)[:2] == ("dlx-2", "q" if key is None else key)


def test_more_headers_than_a_frame_holds_are_kept_and_the_deaths_with_them() -> None:
    message = Message(b"k", b"v", [(f"h-{number}", b"x" * 1000) for number in range(100)], publish_ms=NOW)
    letter = died(died(message).message)
    assert letter.message.native is None
    assert list(letter.message.headers[:100]) == list(message.headers)
    assert [one["count"] for one in plain_fields(properties_of(letter.message).headers or Table())["x-death"]] == [
        2
    ]


def test_consumers_of_kafka_and_pulsar_read_why_a_message_died() -> None:
    message = died(published(headers={"mine": "yes"})).message
    stored = Batch(7, 1, BatchFormat.MESSAGES, NOW, encode_messages([message]))
    for form in (BatchFormat.KAFKA, BatchFormat.PULSAR):
        payload = b"".join(translated(stored, form).pieces)
        (back,) = messages_of(Batch(7, 1, form, NOW, payload))
        found = dict(back.headers)
        assert (found["x-first-death-queue"], found["x-first-death-reason"]) == (b"q", b"expired")
        assert b'"reason":"expired"' in (found["x-death"] or b"")
