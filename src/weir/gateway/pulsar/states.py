"""Where a session stands, and what moves it, as a table."""

from enum import Enum


class State(Enum):
    CONNECTING = "expects a connect"
    SERVING = "takes commands"
    CLOSING = "takes nothing more, finishes what it took, and says why it ends"
    CLOSED = "is over"


class Event(Enum):
    CONNECTED = "the client has said who it is"
    ENDING = "bad input, credentials that ended, or the server wants to stop"
    GONE = "the client hung up, or the last word was said"


#: Every legal move; a missing one is a bug.
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
