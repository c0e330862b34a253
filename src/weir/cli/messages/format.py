"""Format strings of `weir consume`, as kcat has them: what is printed of each message, byte for byte."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from weir.cli.values import show_moment
from weir.client.messages import Incoming
from weir.model.errors import ConfigError

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|[^%\\]+", re.DOTALL)

#: For `--help` and the docs.
WORDS = """\
  %s %v  the payload            %k  the key              %h  headers, name=value,...
  %S     its length (-1: none)  %K  its length           %t  topic   %p  partition   %o  offset
  %T     published, in ms       %d  published, as date   %E  event time, in ms
  %i     message id             %P  producer             %r  redeliveries
  %n \\n  new line   \\t \\r \\0 \\xNN as in C   %%  a percent sign"""


@dataclass(frozen=True, slots=True)
class Printed:
    """A message as it is printed: with the topic (or partition) that it came by."""

    topic: str
    partition: int
    message: Incoming


def _length(value: bytes | None) -> bytes:
    return str(-1 if value is None else len(value)).encode()


def _headers(printed: Printed) -> bytes:
    return ",".join(f"{name}={value}" for name, value in printed.message.properties.items()).encode()


def _payload(printed: Printed) -> bytes | None:
    return None if printed.message.null else printed.message.payload


_WORDS: dict[str, Callable[[Printed], bytes]] = {
    "s": lambda one: one.message.payload,
    "v": lambda one: one.message.payload,
    "S": lambda one: _length(_payload(one)),
    "k": lambda one: one.message.key or b"",
    "K": lambda one: _length(one.message.key),
    "h": _headers,
    "t": lambda one: one.topic.encode(),
    "p": lambda one: str(max(0, one.partition)).encode(),
    "o": lambda one: str(one.message.offset).encode(),
    "T": lambda one: str(one.message.publish_ms).encode(),
    "d": lambda one: show_moment(one.message.publish_ms).encode(),
    "E": lambda one: str(one.message.event_ms).encode(),
    "i": lambda one: str(one.message.id).encode(),
    "P": lambda one: one.message.producer.encode(),
    "r": lambda one: str(one.message.redelivered).encode(),
    "n": lambda _: b"\n",
    "%": lambda _: b"%",
}


class MessageFormat:
    """Made once, used for every message."""

    def __init__(self, text: str) -> None:
        """ConfigError for a word that is not known."""
        self._parts: list[bytes | Callable[[Printed], bytes]] = []
        for found in _TOKEN.finditer(text):
            word, number, escape = found.groups()
            if word is not None:
                if word not in _WORDS:
                    raise ConfigError(
                        f"%{word} is no part of a format",
                        hint=f"known are %{' %'.join(_WORDS)}; %% is a percent sign",
                    )
                self._parts.append(_WORDS[word])
            elif number is not None:
                self._parts.append(bytes([int(number, 16)]))
            elif escape is not None:
                self._parts.append(_escaped(escape))
            else:
                self._parts.append(found[0].encode())

    def render(self, printed: Printed) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(printed) for part in self._parts)


def unescaped(text: str) -> bytes:
    """A separator as it is typed: `\\t`, `\\n`, `\\x1f`."""
    parts: list[bytes] = []
    for found in re.finditer(r"\\x([0-9a-fA-F]{2})|\\(.?)|[^\\]+", text, re.DOTALL):
        number, escape = found.groups()
        if number is not None:
            parts.append(bytes([int(number, 16)]))
        else:
            parts.append(_escaped(escape) if escape is not None else found[0].encode())
    return b"".join(parts)


def _escaped(letter: str) -> bytes:
    if letter not in _ESCAPES:
        raise ConfigError(f"\\{letter} is not known here", hint="write \\n, \\t, \\r, \\0, \\xNN or \\\\")
    return _ESCAPES[letter]
