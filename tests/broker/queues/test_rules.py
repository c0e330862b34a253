"""Arguments and policies of queues: what is refused, and what holds of what is said twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.queues.queue_arguments import check_equivalent, rules_of
from weir.model.errors import InequivalentQueueError, QueueArgumentError
from weir.model.queues import Overflow, QueueDeclaration, QueueKind, QueuePolicy, QueueRules, vhost_of
from weir.model.topics import NamespaceName

HERE = " queue 'q' in vhost '/'"


def queue(
    durable: bool = True, exclusive: bool = False, auto_delete: bool = False, **arguments: Any
) -> QueueDeclaration:
    named = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    return QueueDeclaration("q", durable, exclusive, auto_delete, named)


def policy(operator: bool = False, **definition: Any) -> QueuePolicy:
    terms = {name.replace("_", "-"): value for name, value in definition.items()}
    return QueuePolicy("p", ".*", terms, operator=operator)


def test_arguments_are_rules() -> None:
    said = queue(
        message_ttl=0,
        expires=1,
        max_length=5,
        max_length_bytes=1 << 40,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
        max_priority=255,
        single_active_consumer=True,
        queue_type="classic",
        unknown=b"?",
    )
    assert rules_of(said) == QueueRules(
        QueueKind.CLASSIC, 0, 1, 5, 1 << 40, Overflow.REJECT_PUBLISH_DLX, "", "dead", 255, True, None
    )
    assert rules_of(queue()) == QueueRules()
    assert rules_of(queue(queue_type="quorum", delivery_limit=3)).delivery_limit == 3
    assert rules_of(queue(queue_type="stream", max_age="7D")).max_age_ms == 7 * 86_400_000


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"message_ttl": -1}, "arg 'x-message-ttl' for Q: {value_negative,-1}"),
        ({"message_ttl": "1000"}, "arg 'x-message-ttl' for Q: \"expected integer, got longstr\""),
        ({"message_ttl": True}, "arg 'x-message-ttl' for Q: \"expected integer, got bool\""),
        ({"message_ttl": 1.5}, "arg 'x-message-ttl' for Q: \"expected integer, got double\""),
        ({"message_ttl": 1 << 32}, "arg 'x-message-ttl' for Q: {value_too_large,4294967296}"),
        ({"expires": 1 << 32}, "arg 'x-expires' for Q: {value_too_large,4294967296}"),
        ({"expires": 0}, "arg 'x-expires' for Q: {value_zero,0}"),
        ({"max_length": -5}, "arg 'x-max-length' for Q: {value_negative,-5}"),
        ({"max_length_bytes": None}, "arg 'x-max-length-bytes' for Q: \"expected integer, got void\""),
        ({"max_priority": 256}, "arg 'x-max-priority' for Q: {max_value_exceeded,256}"),
        ({"overflow": "drop-tail"}, "arg 'x-overflow' for Q: invalid_overflow"),
        ({"overflow": 5}, "arg 'x-overflow' for Q: {unacceptable_type,signedint}"),
        ({"dead_letter_exchange": 5}, "type 'signedint' for arg 'x-dead-letter-exchange' in Q"),
        (
            {"dead_letter_routing_key": "k"},
            "arg 'x-dead-letter-routing-key' for Q: routing_key_but_no_dlx_defined",
        ),
        ({"single_active_consumer": "true"}, "arg 'x-single-active-consumer' for Q: {unacceptable_type,longstr}"),
        ({"queue_type": "fast"}, "arg 'x-queue-type' for Q: \"unsupported queue type 'fast'\""),
        ({"queue_mode": "eager"}, "arg 'x-queue-mode' for Q: \"unsupported queue mode 'eager'\""),
        ({"delivery_limit": 3}, "arg 'x-delivery-limit' for Q of queue type rabbit_classic_queue"),
        (
            {"queue_type": "quorum", "max_priority": 3},
            "arg 'x-max-priority' for Q of queue type rabbit_quorum_queue",
        ),
        (
            {"queue_type": "stream", "message_ttl": 3},
            "arg 'x-message-ttl' for Q of queue type rabbit_stream_queue",
        ),
        ({"queue_type": "stream", "max_age": "7 days"}, "arg 'x-max-age' for Q: invalid_max_age"),
        ({"queue_type": "quorum", "durable": False}, "property 'non-durable' for Q"),
        ({"queue_type": "quorum", "exclusive": True}, "property 'exclusive-owner' for Q"),
        ({"queue_type": "stream", "auto_delete": True}, "property 'auto-delete' for Q"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_rabbitmqs_words(arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(QueueArgumentError) as refused:
        rules_of(queue(**arguments))
    assert refused.value.what == "invalid " + fault.replace(" Q", HERE)


def test_of_two_numbers_the_lower_holds_and_of_words_the_arguments() -> None:
    said = queue(message_ttl=100, max_length=5, dead_letter_exchange="mine", overflow="reject-publish")
    more = policy(
        message_ttl=50, max_length=50, expires=7, dead_letter_exchange="theirs", dead_letter_routing_key="key",
        overflow="drop-head",
    )  # fmt: skip
    rules = rules_of(said, more)
    assert (rules.message_ttl_ms, rules.max_length, rules.expires_ms) == (50, 5, 7)
    assert (rules.dead_letter_exchange, rules.dead_letter_key) == ("mine", "key")
    assert rules.overflow is Overflow.REJECT_PUBLISH


def test_nobody_exceeds_what_the_operator_says() -> None:
    operator = policy(True, max_length=10, message_ttl=1000)
    assert rules_of(queue(), operator=operator).max_length == 10
    rules = rules_of(queue(max_length=20), policy(max_length=5, message_ttl=2000), operator=operator)
    assert (rules.max_length, rules.message_ttl_ms) == (5, 1000)


numbers = st.none() | st.integers(0, 1 << 40)


@given(numbers, numbers, numbers)
def test_the_lowest_of_all_that_is_said_holds(
    argument: int | None, policed: int | None, operator: int | None
) -> None:
    said = queue() if argument is None else queue(max_length_bytes=argument)
    rules = rules_of(
        said,
        None if policed is None else policy(max_length_bytes=policed),
        operator=None if operator is None else policy(True, max_length_bytes=operator),
    )
    assert rules.max_bytes == min((n for n in (argument, policed, operator) if n is not None), default=None)


values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers())
)
names = st.sampled_from(
    [
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-overflow",
        "x-queue-type",
        "x-max-age",
        "x-max-priority",
        "other",
    ]
)


@given(st.dictionaries(names, values))
def test_whatever_is_said_is_a_rule_or_refused(arguments: dict[str, Any]) -> None:
    try:
        rules = rules_of(QueueDeclaration("q", arguments=arguments))
    except QueueArgumentError:
        return
    assert rules.message_ttl_ms is None or rules.message_ttl_ms >= 0
    assert rules.expires_ms is None or rules.expires_ms > 0
    assert 0 <= rules.max_priority <= 255


@pytest.mark.parametrize(
    ("there", "wanted", "fault"),
    [
        (queue(), queue(durable=False), "'durable' for Q: received 'false' but current is 'true'"),
        (queue(auto_delete=True), queue(), "'auto_delete' for Q: received 'false' but current is 'true'"),
        (
            queue(message_ttl=5),
            queue(),
            "'x-message-ttl' for Q: received none but current is the value '5' of type 'signedint'",
        ),
        (
            queue(),
            queue(message_ttl=5),
            "'x-message-ttl' for Q: received the value '5' of type 'signedint' but current is none",
        ),
        (queue(message_ttl=5), queue(message_ttl=6), "'x-message-ttl' for Q: received '6' but current is '5'"),
        (
            queue(queue_type="quorum"),
            queue(),
            "'x-queue-type' for Q: received none but current is the value 'quorum' of type 'longstr'",
        ),
        (
            queue(dead_letter_exchange="a"),
            queue(dead_letter_exchange="b"),
            "'x-dead-letter-exchange' for Q: received 'b' but current is 'a'",
        ),
    ],
)
def test_another_declaration_is_refused_in_rabbitmqs_words(
    there: QueueDeclaration, wanted: QueueDeclaration, fault: str
) -> None:
    with pytest.raises(InequivalentQueueError) as refused:
        check_equivalent(there, wanted)
    assert refused.value.what == "inequivalent arg " + fault.replace(" Q", HERE)


def test_what_changes_nothing_may_differ() -> None:
    check_equivalent(queue(), queue(queue_type="classic"))
    check_equivalent(queue(queue_type="classic"), queue())
    check_equivalent(queue(other=1), queue(other=2, more="x"))
    check_equivalent(queue(exclusive=True, max_length=5), queue(exclusive=True, max_length=5))


def test_a_namespace_has_the_name_that_rabbitmqs_users_know() -> None:
    assert [vhost_of(NamespaceName.parse(name)) for name in ("public/default", "public/shop", "a/b")] == [
        "/",
        "shop",
        "a/b",
    ]
