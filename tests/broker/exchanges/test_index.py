"""The compiled index answers what a naive reading of the rules answers, whatever was added and removed before."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.broker.api.queues import Routed
from weir.broker.exchanges.routing_index import RoutingIndex, compile_index
from weir.model.errors import ExchangeNotFoundError
from weir.model.exchanges import PREDECLARED, Binding, Destination, Exchange, ExchangeType
from weir.testing.kinds import rounds

# --- the rules, read naively --------------------------------------------------------------------------------


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    """As RabbitMQ's documentation says it: `*` is exactly one word, `#` is zero or more words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


def split(key: str) -> list[str]:
    return key.split(".") if key else []


def value_matches(wanted: Any, there: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(there, bool):
        return isinstance(wanted, bool) and isinstance(there, bool) and wanted == there
    if isinstance(wanted, int | float) and isinstance(there, int | float):
        return wanted == there
    return type(wanted) is type(there) and bool(wanted == there)


def headers_match(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    how = arguments.get("x-match", "all")
    counted = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (how.endswith("-with-x") or not name.startswith("x-"))
    }
    hits = [
        name in headers and (value is None or value_matches(value, headers[name]))
        for name, value in counted.items()
    ]
    return any(hits) if how.startswith("any") else all(hits)


def matches(exchange: Exchange, binding: Binding, key: str, headers: Mapping[str, Any]) -> bool:
    match exchange.routes_as:
        case ExchangeType.FANOUT:
            return True
        case ExchangeType.TOPIC:
            return topic_matches(split(binding.routing_key), split(key))
        case ExchangeType.HEADERS:
            return headers_match(binding.arguments, headers)
    return binding.routing_key == key


def reference(
    exchanges: dict[str, Exchange],
    bindings: list[Binding],
    start: str,
    keys: tuple[str, ...],
    headers: Mapping[str, Any],
) -> Routed:
    if start == "":
        return Routed(tuple(sorted(set(keys))), by_name=True)
    queues: set[str] = set()
    alternate = by_name = False
    seen, ahead = [start], [start]
    while ahead:
        exchange = exchanges[ahead.pop(0)]
        found = {
            binding.destination
            for binding in bindings
            for key in keys
            if binding.source == exchange.name and matches(exchange, binding, key, headers)
        }
        if not found and exchange.alternate is not None:
            found, alternate = {Destination(exchange.alternate, exchange=True)}, True
        for destination in found:
            if not destination.exchange:
                queues.add(destination.name)
            elif destination.name == "":
                queues.update(keys)
                by_name = True
            elif destination.name in exchanges and destination.name not in seen:
                seen.append(destination.name)
                ahead.append(destination.name)
    return Routed(tuple(sorted(queues)), alternate, by_name)


# --- what is drawn ------------------------------------------------------------------------------------------

words = st.sampled_from(["a", "b", "", "*", "#"])
patterns = st.lists(words, max_size=5).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6).map(".".join)
values = st.sampled_from([1, 1.0, 2, True, False, "1", "a", None, Decimal("1.0"), [1, "a"], [True], {"n": 1}])
headers = st.dictionaries(st.sampled_from(["h", "k", "x-h"]), values, max_size=3)
how = st.sampled_from([{}, *({"x-match": mode} for mode in ("all", "any", "all-with-x", "any-with-x"))])
arguments = st.builds(lambda mode, rest: {**mode, **rest}, how, headers)
names = st.sampled_from(["d", "f", "t", "h", "delayed", "amq.topic"])
destinations = st.builds(Destination, st.sampled_from(["q1", "q2", "q3"])) | st.builds(
    Destination, names, st.just(True)
)


@st.composite
def exchange(draw: st.DrawFn, name: str) -> Exchange:
    kinds = {"d": "direct", "f": "fanout", "t": "topic", "h": "headers", "delayed": "x-delayed-message"}
    extra: dict[str, Any] = (
        {"x-delayed-type": draw(st.sampled_from(["direct", "topic"]))} if name == "delayed" else {}
    )
    alternate = draw(st.none() | st.sampled_from(["", "d", "f", "t", "h", "nowhere", "amq.topic"]))
    if alternate is not None:
        extra["alternate-exchange"] = alternate
    return Exchange(name, ExchangeType(kinds[name]), arguments=extra)


graphs = st.tuples(*(exchange(name) for name in ("d", "f", "t", "h", "delayed")))
bindings = st.builds(Binding, names, destinations, patterns, arguments)
messages = st.tuples(
    st.sampled_from(["", "d", "f", "t", "h", "delayed", "amq.topic"]),
    st.lists(keys, min_size=1, max_size=2).map(tuple),
    headers,
)


# --- properties ---------------------------------------------------------------------------------------------


@settings(max_examples=rounds(60))
@given(st.lists(patterns, max_size=6), keys)
def test_a_topic_exchange_matches_as_the_rules_read(bound: list[str], key: str) -> None:
    index = compile_index([], [Binding("amq.topic", Destination(f"q{n}"), p) for n, p in enumerate(bound)])
    expected = {f"q{n}" for n, pattern in enumerate(bound) if topic_matches(split(pattern), split(key))}
    assert set(index.route("amq.topic", (key,)).queues) == expected


@settings(max_examples=rounds(60))
@given(st.lists(arguments, max_size=5), headers)
def test_a_headers_exchange_matches_as_the_rules_read(bound: list[dict[str, Any]], sent: dict[str, Any]) -> None:
    index = compile_index([], [Binding("amq.match", Destination(f"q{n}"), "", a) for n, a in enumerate(bound)])
    expected = {f"q{n}" for n, wanted in enumerate(bound) if headers_match(wanted, sent)}
    assert set(index.route("amq.match", ("",), sent).queues) == expected


@settings(max_examples=rounds(30))
@given(graphs, st.lists(bindings, max_size=8), st.lists(messages, min_size=1, max_size=3))
def test_a_graph_of_exchanges_routes_as_the_rules_read(
    exchanges: tuple[Exchange, ...], bound: list[Binding], sent: list[Any]
) -> None:
    index = compile_index(exchanges, bound)
    there = {**PREDECLARED, **{one.name: one for one in exchanges}}
    for name, routing_keys, with_headers in sent:
        expected = reference(there, bound, name, routing_keys, with_headers)
        assert index.route(name, routing_keys, with_headers) == expected
        assert index.route(name, routing_keys, with_headers) == expected, "and again, from what was remembered"


def _some_binding(dice: Random) -> Binding:
    to = Destination(dice.choice("qr")) if dice.random() < 0.6 else Destination(dice.choice("dfth"), exchange=True)
    pattern = ".".join(dice.choice(["a", "b", "*", "#"]) for _ in range(dice.randrange(4)))
    arguments = {"x-match": dice.choice(["all", "any"]), **_some_headers(dice)}
    return Binding(dice.choice(["d", "f", "t", "h", "amq.topic"]), to, pattern, arguments)


def _some_headers(dice: Random) -> dict[str, Any]:
    return {name: dice.choice([1, "a", None]) for name in ("h", "k") if dice.random() < 0.5}


def _some_exchange(name: str, dice: Random) -> Exchange:
    kinds = {
        "d": ExchangeType.DIRECT,
        "f": ExchangeType.FANOUT,
        "t": ExchangeType.TOPIC,
        "h": ExchangeType.HEADERS,
    }
    return Exchange(name, kinds[name], arguments={"alternate-exchange": dice.choice("dfth")})


@pytest.mark.parametrize("seed", range(6))
def test_whatever_was_added_and_removed_the_index_is_what_a_new_one_would_be(seed: int) -> None:
    dice = Random(seed)
    index = compile_index([_some_exchange(name, dice) for name in "dfth"], [])
    for _ in range(rounds(150)):
        name, binding = dice.choice("dfth"), _some_binding(dice)
        if dice.random() < 0.1:
            if index.find(name) is None:
                index.declare(_some_exchange(name, dice))
            else:
                index.remove(name)
        elif dice.random() < 0.7 and index.find(binding.source) is not None:
            index.bind(binding)
        elif index.binding_count:
            index.unbind(dice.choice(list(index.bindings())))
        # What is remembered in between must not survive what comes next.
        fresh = compile_index(index.exchanges(), index.bindings())
        assert index.binding_count == fresh.binding_count == len(list(index.bindings()))
        for exchange in index.exchanges():
            asked = (dice.choice(["a", "a.b", "b", ""]),), _some_headers(dice)
            assert index.route(exchange.name, *asked) == fresh.route(exchange.name, *asked)
    for binding in list(index.bindings()):
        index.unbind(binding)
    assert index.binding_count == 0
    left = [compiled.matcher for compiled in index._compiled.values()]
    assert all(_is_empty(matcher) for matcher in left), "nothing is left behind"


def _is_empty(matcher: Any) -> bool:
    trie = getattr(matcher, "_root", None)
    return all(not held or held is trie for held in vars(matcher).values()) and (trie is None or trie.empty)


# --- examples -----------------------------------------------------------------------------------------------


def test_many_hashes_in_a_pattern_cost_no_more_than_their_nodes() -> None:
    pattern = ".".join(["#", "a"] * 60)
    index = compile_index([], [Binding("amq.topic", Destination("q"), pattern)])
    assert index.route("amq.topic", (".".join(["a"] * 120),)).queues == ("q",)
    assert index.route("amq.topic", (".".join(["a"] * 59),)).unroutable


def test_texts_and_bytes_and_times_compare_by_their_value() -> None:
    wanted = {"t": "text", "at": 86400}
    index = compile_index([], [Binding("amq.headers", Destination("q"), "", wanted)])
    sent = {"t": b"text", "at": datetime(1970, 1, 2, tzinfo=UTC)}
    assert index.route("amq.headers", ("",), sent).queues == ("q",)


def test_true_is_not_one() -> None:
    index = compile_index([], [Binding("amq.headers", Destination("q"), "", {"n": 1})])
    assert index.route("amq.headers", ("",), {"n": True}).unroutable
    assert index.route("amq.headers", ("",), {"n": 1.0}).queues == ("q",)


def test_exchanges_that_lead_in_a_circle_are_each_asked_once() -> None:
    circle = [Binding(a, Destination(b, exchange=True)) for a, b in [("x", "y"), ("y", "z"), ("z", "x")]]
    index = compile_index(
        [Exchange(name, ExchangeType.FANOUT) for name in "xyz"], [*circle, Binding("z", Destination("q"))]
    )
    assert index.route("x", ("k",)) == Routed(("q",))


def test_what_matches_nothing_goes_along_the_chain_of_alternates_which_may_be_a_circle() -> None:
    index = compile_index(
        [
            Exchange("a", arguments={"alternate-exchange": "b"}),
            Exchange("b", arguments={"alternate-exchange": "c"}),
            Exchange("c", arguments={"alternate-exchange": "a"}),
        ],
        [Binding("c", Destination("q"), "known")],
    )
    assert index.route("a", ("known",)) == Routed(("q",), alternate=True)
    assert index.route("a", ("unknown",)) == Routed((), alternate=True)


def test_several_routing_keys_reach_a_queue_once() -> None:
    index = compile_index(
        [], [Binding("amq.direct", Destination(q), k) for q, k in [("q1", "a"), ("q1", "b"), ("q0", "b")]]
    )
    assert index.route("amq.direct", ("a", "b", "c")).queues == ("q0", "q1")
    assert index.route("", ("q9", "q1", "q9")) == Routed(("q1", "q9"), by_name=True)


def test_an_unknown_exchange_is_not_found() -> None:
    with pytest.raises(ExchangeNotFoundError):
        RoutingIndex().route("nowhere", ("k",))


def test_answers_are_remembered_up_to_a_bound() -> None:
    index = RoutingIndex(max_answers=10)
    index.bind(Binding("amq.topic", Destination("q"), "#"))
    for n in range(100):
        assert index.route("amq.topic", (f"k{n}",)).queues == ("q",)
        assert index.answers <= 10


def test_a_fanout_answers_once_for_all_keys() -> None:
    index = RoutingIndex()
    index.bind(Binding("amq.fanout", Destination("q")))
    assert {index.route("amq.fanout", (f"k{n}",)) for n in range(50)} == {Routed(("q",))}
    assert index.answers == 1
