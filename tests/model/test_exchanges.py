"""What may be declared, bound, deleted and published to, and when two declarations are the same."""

from typing import Any

import pytest

from weir.model.errors import (
    ExchangeArgumentError,
    ExchangeRefusedError,
    InequivalentExchangeError,
    InvalidNameError,
    UnknownExchangeTypeError,
)
from weir.model.exchanges import (
    PREDECLARED,
    Binding,
    Destination,
    Exchange,
    ExchangeType,
    check_binding,
    check_deletion,
    check_equivalent,
    check_new,
    check_not_default,
    check_publishable,
)

TOPIC = Exchange("logs", ExchangeType.TOPIC)


def test_a_type_that_nobody_knows_is_refused() -> None:
    assert ExchangeType.parse("topic") is ExchangeType.TOPIC
    with pytest.raises(UnknownExchangeTypeError):
        ExchangeType.parse("x-random")


def test_the_default_exchange_takes_no_changes() -> None:
    for check in (check_not_default, check_deletion):
        with pytest.raises(ExchangeRefusedError):
            check("")


def test_names_that_begin_with_amq_are_kept_and_what_has_one_stays() -> None:
    with pytest.raises(ExchangeRefusedError):
        check_new(Exchange("amq.mine"))
    with pytest.raises(ExchangeRefusedError):
        check_deletion("amq.topic")
    check_new(Exchange("amqp"))


def test_a_name_has_at_most_255_bytes() -> None:
    check_new(Exchange("x" * 255))
    with pytest.raises(InvalidNameError):
        check_new(Exchange("\u00e9" * 128))


@pytest.mark.parametrize(
    "wanted",
    [
        Exchange("logs", ExchangeType.DIRECT),
        Exchange("logs", ExchangeType.TOPIC, durable=False),
        Exchange("logs", ExchangeType.TOPIC, auto_delete=True),
        Exchange("logs", ExchangeType.TOPIC, internal=True),
        Exchange("logs", ExchangeType.TOPIC, arguments={"alternate-exchange": "other"}),
    ],
    ids=["type", "durable", "auto_delete", "internal", "alternate"],
)
def test_an_exchange_cannot_be_declared_otherwise_than_it_is(wanted: Exchange) -> None:
    with pytest.raises(InequivalentExchangeError, match=r"received .* but current is"):
        check_equivalent(TOPIC, wanted)


def test_arguments_that_change_nothing_do_not_make_another_exchange() -> None:
    check_equivalent(TOPIC, Exchange("logs", ExchangeType.TOPIC, arguments={"note": "mine"}))
    check_equivalent(PREDECLARED["amq.topic"], Exchange("amq.topic", ExchangeType.TOPIC))


@pytest.mark.parametrize("within", [None, "x-delayed-message", "random", 7, ["direct"]])
def test_an_exchange_that_delays_says_as_what_it_routes(within: Any) -> None:
    arguments = {} if within is None else {"x-delayed-type": within}
    with pytest.raises(ExchangeArgumentError):
        check_new(Exchange("later", ExchangeType.DELAYED, arguments=arguments))
    fine = Exchange("later", ExchangeType.DELAYED, arguments={"x-delayed-type": "topic"})
    check_new(fine)
    assert fine.routes_as is ExchangeType.TOPIC


def test_an_alternate_is_a_name() -> None:
    with pytest.raises(ExchangeArgumentError):
        check_new(Exchange("x", arguments={"alternate-exchange": 7}))


def test_nobody_publishes_to_an_internal_exchange() -> None:
    check_publishable(TOPIC)
    with pytest.raises(ExchangeRefusedError):
        check_publishable(Exchange("inside", internal=True))


@pytest.mark.parametrize("said", ["some", 7, None, ["all"]])
def test_a_headers_binding_says_how_it_compares_or_nothing(said: Any) -> None:
    headers = PREDECLARED["amq.headers"]
    check_binding(headers, Binding("amq.headers", Destination("q")))
    with pytest.raises(ExchangeArgumentError):
        check_binding(headers, Binding("amq.headers", Destination("q"), "", {"x-match": said}))
    check_binding(TOPIC, Binding("logs", Destination("q"), "", {"x-match": said}))


def test_bindings_that_differ_in_anything_are_different() -> None:
    one = Binding("x", Destination("q"), "k", {"n": 1})
    others = [
        Binding("y", Destination("q"), "k", {"n": 1}),
        Binding("x", Destination("q", exchange=True), "k", {"n": 1}),
        Binding("x", Destination("q"), "j", {"n": 1}),
        Binding("x", Destination("q"), "k", {"n": True}),
        Binding("x", Destination("q"), "k", {"n": 1.0}),
        Binding("x", Destination("q"), "k"),
    ]
    assert one.identity == Binding("x", Destination("q"), "k", {"n": 1}).identity
    assert len({one.identity, *(other.identity for other in others)}) == 7
