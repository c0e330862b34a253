"""Calls of the function: items in, results and changed states out. The same in a worker's process and on Spark."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from weir.functions import values as arrow
from weir.functions.api import ESCAPED, Context, Message, State, no_state
from weir.functions.captured_output import Talk
from weir.functions.executor_protocol import Headers, Item, Out, Result, Setup
from weir.functions.function_code import Loaded, load, said
from weir.functions.values import Values, all_values
from weir.model.errors import FunctionError
from weir.model.topics import TopicName

#: Headers that say something of the message that came, and not of what comes of it; but for what other protocols
#: have fields for.
_OURS, _FIELDS = "weir-", ("weir-ordering-key", "weir-priority")
#: As much as brokers take unless told otherwise, with room for what stands beside a message.
_MOST_BYTES = 5 * 1024 * 1024 - 16 * 1024
#: An answer is given after so long, or so many bytes to send, where it may be about the first items alone.
_SLICE_S, _SLICE_BYTES = 1.0, 32 * 1024 * 1024
#: What a function may raise and has failed then, and nobody else: it may try to end the process, too.
_FAILED = (Exception, SystemExit, KeyboardInterrupt)

States = dict[bytes, bytes | None]


class Calls:
    """One loaded function. What it says goes to `talk`; FunctionError if it cannot be loaded. `before_call` hears
    of every call."""

    def __init__(
        self, setup: Setup, talk: Talk | None = None, before_call: Callable[[], None] = lambda: None
    ) -> None:
        self._setup = setup
        self._talk = talk or Talk()
        self._before_call = before_call
        self._values = all_values(setup.schemas)
        self._plain = Values("")
        self._loaded: Loaded = load(setup.code, setup.file, setup.entry, batch=setup.batch)
        self._context = Context(
            setup.name, setup.version, setup.instance, setup.config, logging.getLogger(setup.name)
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        #: To be sent, of the answer that is under way.
        self._bytes = 0
        #: Of the message that the function has, as it sees them.
        self._headers: Mapping[str, str | bytes] = {}

    @property
    def batch(self) -> bool:
        return self._loaded.batch

    def run(self, items: Sequence[Item], states: States) -> tuple[list[Result], States]:
        """A result for each item, in their order, or for the first of them if the setup allows that; and the
        states that have changed. An item that fails changes nothing."""
        if self._loaded.batch:
            return self._batches(items), {}
        changed: States = {}
        results: list[Result] = []
        until, self._bytes = time.monotonic() + _SLICE_S, 0
        for item in items:
            if results and self._setup.sliced and self._enough(until):
                break
            key = self._of(item.topic).own_key(item.key, item.value)
            before = changed[key] if key in changed else states.get(key)
            state = State(before) if self._setup.stateful else no_state()
            with self._talk.about(item):
                try:
                    result = Result(self._one(item, state))
                    after = _checked(state.encoded()) if self._setup.stateful else before
                    if after != before:
                        changed[key] = after
                except _FAILED as failure:
                    result = Result(error=said(failure, self._setup.file))
            results.append(result)
        return results, changed

    def _enough(self, until: float) -> bool:
        return time.monotonic() >= until or self._bytes > _SLICE_BYTES or self._talk.is_long

    # --- one message --------------------------------------------------------------------------------------------

    def _one(self, item: Item, state: State) -> list[Out]:
        message, context = self._message(item), self._context
        self._headers = message.headers
        context.state, context.key, context.attempt = state, message.key, item.attempt
        context.taken()
        key = message.key
        returned = self._call(message)
        ours = _ours([item])
        return [self._out(one, item, ours, key) for one in [*context.taken(), *_messages(returned)]]

    def _call(self, given: Any) -> Any:
        call = self._loaded.call
        self._before_call()
        returned = call(given, self._context) if self._loaded.with_context else call(given)
        if inspect.isawaitable(returned):
            returned = self._awaited(_await(returned))
        if inspect.isasyncgen(returned):
            returned = self._awaited(_collect(returned))
        if inspect.isgenerator(returned):
            returned = list(returned)
        return returned

    def _awaited(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    def _of(self, topic: str | None) -> Values:
        return self._plain if topic is None else self._values.get(topic, self._plain)

    def _message(self, item: Item) -> Message:
        key, value = self._of(item.topic).decode(item.key, item.value, item.headers)
        return Message(
            value=value,
            key=key,
            headers={name: _shown(value) for name, value in item.headers},
            topic=item.topic,
            timestamp_ms=item.timestamp,
            data=item.value,
            partition=item.partition,
            offset=item.offset,
            attempt=item.attempt,
        )

    def _out(self, one: Any, item: Item, ours: set[str], key: Any = None) -> Out:
        """A message as it goes out. One that is only a value keeps key, headers and time of what it came of.
        `ours`: headers that came and are not handed on."""
        own = isinstance(one, Message)
        message = one if own else Message(one, key, timestamp_ms=item.timestamp)
        back = message.offset >= 0 and message.topic == item.topic  # the message that came, maybe changed
        topic = None if back or message.topic is None else self._full(message.topic)
        raw_key, value = self._of(topic or self._setup.output).encode(message.key, message.value)
        headers = [pair for pair in item.headers if pair[0] not in ours]
        if own:
            headers = _headers(message.headers, headers if message.headers is self._headers else [], ours)
        size = len(raw_key or b"") + len(value or b"")
        size += sum(len(name) + len(text or b"") for name, text in headers)
        if size > _MOST_BYTES:
            raise FunctionError(f"a message of {size} bytes is returned; {_MOST_BYTES} is the most")
        self._bytes += size
        moment = item.timestamp if message.timestamp_ms is None else message.timestamp_ms
        if not isinstance(moment, int):
            raise FunctionError(f"timestamp_ms is {moment!r}", hint="give milliseconds since 1970, as an int")
        return Out(topic, raw_key, value, headers, moment)

    def _full(self, topic: str) -> str:
        """A name without a namespace is one in the function's. InvalidNameError, or FunctionError, for what no
        message can be sent to."""
        found = TopicName.parse(topic if "/" in topic else f"{self._setup.namespace}/{topic}")
        if not found.persistent or found.partition is not None:
            raise FunctionError(f"{topic} is not a whole, persistent topic", hint="functions send to those")
        return str(found)

    # --- batches ------------------------------------------------------------------------------------------------

    def _batches(self, items: Sequence[Item]) -> list[Result]:
        """All at once; if that fails, halves of it, until those are found that it fails at."""
        if not items:
            return []
        with self._talk.about(items[0]):
            try:
                given = arrow.batch_of(items, self._typed, self._key)
                self._context.taken()
                returned = self._call(given)
                messages = [*self._context.taken(), *arrow.messages_of(returned)]
                ours = _ours(items)
                outs = [self._out(self._from_input(one, items), items[0], ours) for one in messages]
                return [Result(outs), *(Result() for _ in items[1:])]
            except _FAILED as failure:
                if len(items) == 1:
                    return [Result(error=said(failure, self._setup.file))]
        half = len(items) // 2
        return [*self._batches(items[:half]), *self._batches(items[half:])]

    def _typed(self, item: Item) -> Any:
        values = self._of(item.topic)
        return values.decode(item.key, item.value, item.headers)[1] if values.typed else None

    def _key(self, item: Item) -> bytes | None:
        values = self._of(item.topic)
        return values.own_key(item.key, item.value) if values.inline else item.key

    def _from_input(self, message: Message, items: Sequence[Item]) -> Message:
        """Rows that kept the columns of where they came from go to the output."""
        if message.offset >= 0 and any(message.topic == item.topic for item in items):
            message.topic, message.offset = None, -1
        return message


def _checked(state: bytes | None) -> bytes | None:
    """It is a message of a topic, too."""
    if state is not None and len(state) > _MOST_BYTES:
        raise FunctionError(f"the state of a key has {len(state)} bytes; {_MOST_BYTES} is the most")
    return state


async def _await(found: Any) -> Any:
    return await found


async def _collect(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]


def _messages(returned: Any) -> Iterable[Any]:
    if returned is None:
        return ()
    return [one for one in returned if one is not None] if isinstance(returned, list | tuple) else (returned,)


def _name(name: object) -> str:
    """What goes to another process has to be what it is said to be."""
    if not isinstance(name, str):
        raise FunctionError(f"a header is called {name!r}", hint="name headers by text")
    return name.encode(errors="replace").decode()


def _bytes(text: object) -> bytes | None:
    if isinstance(text, str):
        return text.encode(errors=ESCAPED)
    if text is None or isinstance(text, bytes):
        return text
    if isinstance(text, bytearray | memoryview):
        return bytes(text)
    raise FunctionError(f"a header is {text!r}", hint="give text or bytes")


def _shown(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors=ESCAPED)


def _ours(items: Sequence[Item]) -> set[str]:
    return {name for item in items for name, _ in item.headers if name.startswith(_OURS) and name not in _FIELDS}


def _headers(given: Mapping[str, str | bytes], came: Headers, ours: set[str]) -> Headers:
    """As they go out. Of those that are as they `came`, also what the function does not see: that they are null,
    or there twice."""
    before: dict[str, list[bytes | None]] = {}
    for name, value in came:
        before.setdefault(name, []).append(value)
    found: Headers = []
    for name, text in given.items():
        if name in ours:
            continue
        if name in before and _shown(before[name][-1]) == text:
            found += [(name, value) for value in before[name]]
        else:
            found.append((_name(name), _bytes(text)))
    return found
