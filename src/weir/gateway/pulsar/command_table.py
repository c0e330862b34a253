"""The table of command handlers, and the table of session states and transitions.

Modules under `handlers` register their functions with a decorator; `load_handlers` imports them all.

    @at_once(api.CommandFlow)          a plain function, called between two awaits of the receive loop
    @later(api.CommandLookupTopic)     a coroutine in the background; other commands overtake it
    @in_turn(api.CommandConnect)       a coroutine that the receive loop waits for

A handler returns a command, an encoded frame, or None if it needs no response or has sent it itself. An `at_once`
handler with much to do returns a `Work` generator (`runtime.tasks`), which the session completes, with yields,
before the next command of the connection. A handler raises errors of `weir.model.errors`; the session answers in
the form that the client expects for the command.
"""

import importlib
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from weir.model.check import check
from weir.wire.pulsar.commands import Type, command_of
from weir.wire.pulsar.proto import Message


class State(Enum):
    CONNECTING = "expects CONNECT"
    SERVING = "serves commands"
    CLOSING = "accepts no more commands, finishes the accepted ones, and sends the reason"
    CLOSED = "is closed"


class Event(Enum):
    CONNECTED = "the client has authenticated"
    ENDING = "invalid input, expired credentials, or the server shuts down"
    GONE = "the client disconnected, or the last frame was sent"


#: Every legal transition; a missing one is a bug.
NEXT: dict[State, dict[Event, State]] = {
    State.CONNECTING: {
        Event.CONNECTED: State.SERVING,
        Event.ENDING: State.CLOSING,
        Event.GONE: State.CLOSED,
    },
    State.SERVING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED},
    State.CLOSING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED},
    State.CLOSED: {Event.ENDING: State.CLOSED, Event.GONE: State.CLOSED},
}
#: The states in which a session reads.
READING = (State.CONNECTING, State.SERVING)

F = TypeVar("F", bound=Callable[..., Any])


class Way(Enum):
    AT_ONCE = "at once"
    LATER = "later"
    IN_TURN = "in turn"


class Handler(NamedTuple):
    run: Callable[..., Any]  # (session, command), and the message if the command carries one
    way: Way
    state: State  # the state in which the command is allowed


HANDLERS: dict[int, Handler] = {}


def at_once(*kinds: type[Message], state: State = State.SERVING) -> Callable[[F], F]:
    return _declare(kinds, Way.AT_ONCE, state)


def later(*kinds: type[Message], state: State = State.SERVING) -> Callable[[F], F]:
    return _declare(kinds, Way.LATER, state)


def in_turn(*kinds: type[Message], state: State = State.SERVING) -> Callable[[F], F]:
    return _declare(kinds, Way.IN_TURN, state)


def _declare(kinds: tuple[type[Message], ...], way: Way, state: State) -> Callable[[F], F]:
    def declare(run: F) -> F:
        for kind in kinds:
            number = command_of(kind()).number
            check(number not in HANDLERS, f"{kind.__name__} has one handler")
            check(number != Type.SEND or way is Way.AT_ONCE, "a message is a slice of the receive buffer")
            HANDLERS[number] = Handler(run, way, state)
        return run

    return declare


def load_handlers() -> None:
    """Import every module under `handlers`, so that each registers its functions."""
    package = importlib.import_module("weir.gateway.pulsar.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
