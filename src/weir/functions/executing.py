"""Calls of the function: items in, results and changed states out. The same in a worker's process and on Spark."""

import asyncio
import inspect
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from weir.functions import arrow
from weir.functions.api import ESCAPED, Context, Message, State, no_state
from weir.functions.loading import Loaded, load, said
from weir.functions.protocol import Item, Out, Result, Setup
from weir.functions.talk import Talk
from weir.functions.values import Values, all_values
from weir.model.errors import InvalidNameError
from weir.model.topics import TopicName

#: Headers that say something of the message that came, and not of what comes of it.
_OURS = "weir-"

States = dict[bytes, bytes | None]


class Calls:
    """One loaded function. What it says goes to `talk`; FunctionError if it cannot be loaded."""

    def __init__(self, setup: Setup, talk: Talk | None = None) -> None:
        self._setup = setup
        self._talk = talk or Talk()
        self._values = all_values(setup.schemas)
        self._plain = Values("")
        self._loaded: Loaded = load(setup.code, setup.file, setup.entry, batch=setup.batch)
        self._context = Context(
            setup.name, setup.version, setup.instance, setup.config, logging.getLogger(setup.name)
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, items: Sequence[Item], states: States) -> tuple[list[Result], States]:
        """A result for each item, in their order; and the states that have changed. An item that fails changes
        nothing."""
        if self._loaded.batch:
            return self._batches(items), {}
        changed: States = {}
        results = []
        for item in items:
            key = self._of(item.topic).own_key(item.key, item.value)
            before = changed[key] if key in changed else states.get(key)
            state = State(before) if self._setup.stateful else no_state()
            with self._talk.about(item):
                try:
                    result = Result(self._one(item, state))
                    after = state.encoded() if self._setup.stateful else before
                    if after != before:
                        changed[key] = after
                except Exception as failure:
                    result = Result(error=said(failure, self._setup.file))
            results.append(result)
        return results, changed

    # --- one message --------------------------------------------------------------------------------------------

    def _one(self, item: Item, state: State) -> list[Out]:
        message, context = self._message(item), self._context
        context.state, context.key, context.attempt = state, message.key, item.attempt
        context.taken()
        key = message.key
        returned = self._call(message)
        return [self._out(one, item, key) for one in [*context.taken(), *_messages(returned)]]

    def _call(self, given: Any) -> Any:
        call = self._loaded.call
        returned = call(given, self._context) if self._loaded.with_context else call(given)
        if inspect.isawaitable(returned):
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            returned = self._loop.run_until_complete(_awaited(returned))
        if inspect.isgenerator(returned):
            returned = list(returned)
        return returned

    def _of(self, topic: str | None) -> Values:
        return self._plain if topic is None else self._values.get(topic, self._plain)

    def _message(self, item: Item) -> Message:
        key, value = self._of(item.topic).decode(item.key, item.value, item.headers)
        return Message(
            value=value,
            key=key,
            headers={name: "" if value is None else value.decode(errors=ESCAPED) for name, value in item.headers},
            topic=item.topic,
            timestamp_ms=item.timestamp,
            data=item.value,
            partition=item.partition,
            offset=item.offset,
            attempt=item.attempt,
        )

    def _out(self, one: Any, item: Item, key: Any = None) -> Out:
        """A message as it goes out. One that is only a value keeps key, headers and time of what it came of."""
        own = isinstance(one, Message)
        message = one if own else Message(one, key, _kept(item), timestamp_ms=item.timestamp)
        back = message.offset >= 0 and message.topic == item.topic  # the message that came, maybe changed
        topic = None if back or message.topic is None else _full(message.topic)
        raw_key, value = self._of(topic or self._setup.output).encode(message.key, message.value)
        came = {name for name, _ in item.headers if name.startswith(_OURS)}
        moment = message.timestamp_ms
        return Out(
            topic,
            raw_key,
            value,
            [(name, _bytes(text)) for name, text in message.headers.items() if name not in came],
            item.timestamp if moment is None else moment,
        )

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
                outs = [self._out(self._from_input(one, items), items[0]) for one in messages]
                return [Result(outs), *(Result() for _ in items[1:])]
            except Exception as failure:
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


async def _awaited(found: Any) -> Any:
    return await found


def _messages(returned: Any) -> Iterable[Any]:
    if returned is None:
        return ()
    return [one for one in returned if one is not None] if isinstance(returned, list | tuple) else (returned,)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode(errors=ESCAPED) if isinstance(text, str) else text


def _kept(item: Item) -> dict[str, str | bytes]:
    return {name: b"" if value is None else value for name, value in item.headers if not name.startswith(_OURS)}


def _full(topic: str) -> str:
    try:
        return str(TopicName.parse(topic))
    except InvalidNameError:
        return topic
