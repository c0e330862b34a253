"""What it costs to route a message over 100,000 bindings: microseconds per message, cold and remembered.

    python -m bench.micro_routing [BINDINGS]

Cold: each message has routing keys or headers that were not asked for before. Answers by headers are never
remembered. Times are CPU times, which a busy machine distorts least. The cost of one more binding, and of taking
one away, is measured with all others in place.
"""

import sys
from collections.abc import Callable
from random import Random
from time import thread_time
from typing import Any

from weir.broker.exchanges.routing_index import RoutingIndex
from weir.model.exchanges import Binding, Destination, Exchange, ExchangeType

MESSAGES = 20_000
REPEATED = 200


def direct(n: int, dice: Random) -> list[Binding]:
    return [Binding("x", Destination(f"q{i % 1000}"), f"orders.{i}") for i in range(n)]


def topic(n: int, dice: Random) -> list[Binding]:
    """A third each: no wildcard, a star in the middle, a hash at the end; and one that everything matches."""
    shapes = ["eu.{a}.{b}.{c}", "eu.{a}.*.{c}", "eu.{a}.{b}.#"]
    words = [(i % 97, i // 97 % 89, i) for i in range(n - 1)]
    return [
        Binding("x", Destination(f"q{i % 1000}"), shapes[i % 3].format(a=a, b=b, c=c))
        for i, (a, b, c) in enumerate(words)
    ] + [Binding("x", Destination("audit"), "#")]


def headers(n: int, dice: Random) -> list[Binding]:
    """Most want all of three headers, some any of two."""
    return [
        Binding(
            "x", Destination(f"q{i % 1000}"), "", {"kind": i % 50, "area": f"a{i // 50 % 50}", "id": i // 2500}
        )
        if i % 10
        else Binding("x", Destination(f"q{i % 1000}"), "", {"x-match": "any", "serial": i, "alias": f"s{i}"})
        for i in range(n)
    ]


def sent(kind: ExchangeType, i: int, n: int) -> tuple[tuple[str, ...], dict[str, Any]]:
    if kind is ExchangeType.DIRECT:
        return (f"orders.{i % n}",), {}
    if kind is ExchangeType.TOPIC:
        return (f"eu.{i % 97}.{i // 97 % 89}.{i % n}",), {}
    return ("",), {"kind": i % 50, "area": f"a{i // 50 % 50}", "id": i % n // 2500, "serial": i, "other": "x"}


def per_message_us(index: RoutingIndex, asked: list[Any]) -> float:
    began = thread_time()
    for keys, with_headers in asked:
        index.route("x", keys, with_headers)
    return (thread_time() - began) / len(asked) * 1e6


def measure(kind: ExchangeType, make: Callable[[int, Random], list[Binding]], n: int) -> None:
    dice = Random(1)
    index = RoutingIndex()
    index.declare(Exchange("x", kind))
    bindings = make(n, dice)
    began = thread_time()
    for binding in bindings:
        index.bind(binding)
    build_s = thread_time() - began
    asked = [sent(kind, i, n) for i in dice.sample(range(n), min(MESSAGES, n))]
    cold = per_message_us(index, asked)
    few = asked[:REPEATED] * (MESSAGES // REPEATED)
    per_message_us(index, few)
    again = per_message_us(index, few)
    some = dice.sample(bindings, min(1000, n))
    began = thread_time()
    for binding in some:
        index.unbind(binding)
    for binding in some:
        index.bind(binding)
    change = (thread_time() - began) / len(some) / 2 * 1e6
    routed = sum(len(index.route("x", *one).queues) for one in asked) / len(asked)
    print(
        f"{kind.value:8} {n:>8} bindings, {build_s:5.2f} s to compile | {cold:6.2f} us cold, {again:5.2f} us again"
        f" | {change:5.2f} us to bind or unbind | {routed:.2f} queues a message"
    )


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    measure(ExchangeType.DIRECT, direct, n)
    measure(ExchangeType.TOPIC, topic, n)
    measure(ExchangeType.HEADERS, headers, n)


if __name__ == "__main__":
    main()
