"""The routing function of a namespace: one pure question over bindings that were compiled beforehand.

    index = RoutingIndex()
    index.declare(Exchange("logs", ExchangeType.TOPIC))
    index.bind(Binding("logs", Destination("errors"), "*.error.#"))
    index.route("logs", ("db.error",), {}).queues                     # ("errors",)

A change costs what it touches. Answers are remembered by exchange and routing keys until something changes that
the exchange can lead to. It knows nothing of stores: whoever feeds it sees to what is there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from weir.broker.api.queues import Routed
from weir.broker.exchanges.binding_matchers import Matcher, Target, matcher_of
from weir.model.errors import ExchangeNotFoundError
from weir.model.exchanges import DEFAULT_EXCHANGE, PREDECLARED, Binding, Destination, Exchange

#: Answers that are remembered for a namespace, and the queues in all of them together.
MAX_ANSWERS = 16_384
MAX_REMEMBERED_QUEUES = 1 << 18
#: Answers to more routing keys at once are not remembered: senders choose them.
_MAX_KEYS = 4
_NO_HEADERS: Mapping[str, Any] = {}


class _Compiled:
    """An exchange, its bindings, and what they were compiled to."""

    __slots__ = ("alternate", "bindings", "exchange", "leads_on", "matcher")

    def __init__(self, exchange: Exchange, alternate: str | None = None) -> None:
        self.exchange = exchange
        #: Its own word, or its policy's.
        self.alternate = exchange.alternate if exchange.alternate is not None else alternate
        self.matcher: Matcher = matcher_of(exchange.routes_as)
        self.bindings: dict[tuple[Any, ...], Binding] = {}
        #: How many of them lead to other exchanges.
        self.leads_on = 0


class _Walk(NamedTuple):
    """An answer, and what it depended on."""

    routed: Routed
    keyed: bool
    by_headers: bool


class RoutingIndex:
    def __init__(self, *, max_answers: int = MAX_ANSWERS) -> None:
        self._max_answers = max_answers
        self._alternate_of: Callable[[str], str | None] = lambda name: None
        self._compiled = {exchange.name: _Compiled(exchange) for exchange in PREDECLARED.values()}
        self._to: dict[Destination, dict[tuple[Any, ...], Binding]] = {}
        #: For each exchange, those that lead to it at once, counted: by binding or as their alternate.
        self._leading: dict[str, dict[str, int]] = {}
        #: Per exchange, by routing keys; by None if these do not matter.
        self._answers: dict[str, dict[tuple[str, ...] | None, Routed]] = {}
        self._answered = 0
        self._answered_queues = 0
        self._bindings = 0

    # --- what there is --------------------------------------------------------------------------------------

    def find(self, name: str) -> Exchange | None:
        compiled = self._compiled.get(name)
        return None if compiled is None else compiled.exchange

    def exchanges(self) -> list[Exchange]:
        """By name, the predeclared ones included."""
        return [self._compiled[name].exchange for name in sorted(self._compiled)]

    @property
    def exchange_count(self) -> int:
        return len(self._compiled)

    @property
    def binding_count(self) -> int:
        return self._bindings

    def has(self, binding: Binding) -> bool:
        compiled = self._compiled.get(binding.source)
        return compiled is not None and binding.identity in compiled.bindings

    def bindings(self) -> Iterator[Binding]:
        for compiled in self._compiled.values():
            yield from compiled.bindings.values()

    def bindings_from(self, source: str) -> list[Binding]:
        compiled = self._compiled.get(source)
        return [] if compiled is None else list(compiled.bindings.values())

    def is_source(self, name: str) -> bool:
        """Whether anything is bound from it."""
        compiled = self._compiled.get(name)
        return compiled is not None and bool(compiled.bindings)

    def bindings_to(self, destination: Destination) -> list[Binding]:
        return list(self._to.get(destination, {}).values())

    # --- changes --------------------------------------------------------------------------------------------

    def declare(self, exchange: Exchange) -> None:
        """An exchange of a name that is free."""
        compiled = self._compiled[exchange.name] = _Compiled(exchange, self._alternate_of(exchange.name))
        if compiled.alternate is not None:
            self._leads(exchange.name, compiled.alternate)
        self._changed(exchange.name)

    def remove(self, name: str) -> list[Binding]:
        """Take out an exchange; answers the bindings from it and to it, which go with it."""
        gone = [*self.bindings_from(name), *self.bindings_to(Destination(name, exchange=True))]
        gone = list({binding.identity: binding for binding in gone}.values())
        for binding in gone:
            self.unbind(binding)
        self._changed(name)
        compiled = self._compiled.pop(name)
        if compiled.alternate is not None:
            self._no_longer_leads(name, compiled.alternate)
        return gone

    def police(self, alternate_of: Callable[[str], str | None]) -> None:
        """The alternates that policies give to exchanges that say nothing themselves, from now on."""
        self._alternate_of = alternate_of
        for name, compiled in self._compiled.items():
            own = compiled.exchange.alternate
            now = alternate_of(name) if own is None and name != DEFAULT_EXCHANGE else own
            if now != compiled.alternate:
                if compiled.alternate is not None:
                    self._no_longer_leads(name, compiled.alternate)
                compiled.alternate = now
                if now is not None:
                    self._leads(name, now)
                self._changed(name)

    def bind(self, binding: Binding) -> bool:
        """Add a binding of an exchange that is there; false if it was there already."""
        compiled = self._compiled[binding.source]
        identity = binding.identity
        if identity in compiled.bindings:
            return False
        compiled.bindings[identity] = binding
        compiled.matcher.add(binding)
        self._to.setdefault(binding.destination, {})[identity] = binding
        if binding.destination.exchange:
            compiled.leads_on += 1
            self._leads(binding.source, binding.destination.name)
        self._bindings += 1
        self._changed(binding.source)
        return True

    def unbind(self, binding: Binding) -> bool:
        """Take out a binding; false if there is none like it."""
        compiled = self._compiled.get(binding.source)
        identity = binding.identity
        if compiled is None or identity not in compiled.bindings:
            return False
        compiled.matcher.remove(compiled.bindings.pop(identity))
        to = self._to[binding.destination]
        del to[identity]
        if not to:
            del self._to[binding.destination]
        if binding.destination.exchange:
            compiled.leads_on -= 1
            self._no_longer_leads(binding.source, binding.destination.name)
        self._bindings -= 1
        self._changed(binding.source)
        return True

    def _leads(self, source: str, to: str) -> None:
        leading = self._leading.setdefault(to, {})
        leading[source] = leading.get(source, 0) + 1

    def _no_longer_leads(self, source: str, to: str) -> None:
        leading = self._leading[to]
        leading[source] -= 1
        if not leading[source]:
            del leading[source]
        if not leading:
            del self._leading[to]

    def _changed(self, name: str) -> None:
        """Forget the answers of the exchange and of all that lead to it."""
        seen, ahead = {name}, [name]
        while ahead:
            current = ahead.pop()
            answers = self._answers.pop(current, None)
            if answers is not None:
                self._answered -= len(answers)
                self._answered_queues -= sum(len(routed.queues) for routed in answers.values())
            for source in self._leading.get(current, ()):
                if source not in seen:
                    seen.add(source)
                    ahead.append(source)

    # --- the question ---------------------------------------------------------------------------------------

    def route(self, exchange: str, keys: tuple[str, ...], headers: Mapping[str, Any] = _NO_HEADERS) -> Routed:
        """Where a message with these routing keys and headers goes; ExchangeNotFoundError."""
        answers = self._answers.get(exchange)
        if answers is not None:
            known = answers.get(keys) or answers.get(None)
            if known is not None:
                return known
        compiled = self._compiled.get(exchange)
        if compiled is None:
            raise ExchangeNotFoundError(f"no exchange {exchange[:80]!r}")
        if exchange == DEFAULT_EXCHANGE:
            return Routed(keys if len(keys) == 1 else tuple(sorted(set(keys))), by_name=True)
        matcher = compiled.matcher
        found: set[Any] = set()
        matcher.match(keys, headers, found)
        if found and not compiled.leads_on:
            routed = Routed(tuple(sorted(found)) if len(found) > 1 else tuple(found))
            keyed, by_headers = matcher.keyed, matcher.by_headers
        else:
            routed, keyed, by_headers = self._walk(compiled, found, keys, headers)
        if not by_headers and (not keyed or len(keys) <= _MAX_KEYS):
            self._remember(exchange, keys if keyed else None, routed)
        return routed

    def _walk(
        self, compiled: _Compiled, found: set[Target], keys: tuple[str, ...], headers: Mapping[str, Any]
    ) -> _Walk:
        """From exchange to exchange, beginning with what the first one found. Each is asked once: a circle ends
        where it began. One whose bindings match nothing hands over to its alternate."""
        queues: set[str] = set()
        alternate = by_name = keyed = by_headers = False
        seen = {compiled.exchange.name}
        ahead: list[_Compiled] = []
        while True:
            keyed = keyed or compiled.matcher.keyed
            by_headers = by_headers or compiled.matcher.by_headers
            if not found and compiled.alternate is not None:
                alternate = True
                found.add(Destination(compiled.alternate, exchange=True))
            for to in found:
                if isinstance(to, str):
                    queues.add(to)
                elif to.name == DEFAULT_EXCHANGE:
                    by_name = keyed = True
                    queues.update(keys)
                elif to.name not in seen and to.name in self._compiled:
                    seen.add(to.name)
                    ahead.append(self._compiled[to.name])
            if not ahead:
                return _Walk(Routed(tuple(sorted(queues)), alternate, by_name), keyed, by_headers)
            compiled, found = ahead.pop(), set()
            compiled.matcher.match(keys, headers, found)

    def _remember(self, exchange: str, keys: tuple[str, ...] | None, routed: Routed) -> None:
        if self._answered >= self._max_answers or self._answered_queues >= MAX_REMEMBERED_QUEUES:
            self._answers.clear()
            self._answered = self._answered_queues = 0
        self._answers.setdefault(exchange, {})[keys] = routed
        self._answered += 1
        self._answered_queues += len(routed.queues)

    @property
    def answers(self) -> int:
        """How many are remembered."""
        return self._answered


def compile_index(exchanges: Iterable[Exchange], bindings: Iterable[Binding]) -> RoutingIndex:
    """An index of these, besides the predeclared ones."""
    index = RoutingIndex()
    for exchange in exchanges:
        if exchange.name not in PREDECLARED:
            index.declare(exchange)
    for binding in bindings:
        index.bind(binding)
    return index
