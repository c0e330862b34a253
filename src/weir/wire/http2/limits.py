"""What one HTTP/2 connection may ask of its server, and how much of what costs its client nothing."""

from dataclasses import dataclass

from weir.wire.http2.frames import Code, Http2Error


@dataclass(frozen=True, slots=True)
class Limits:
    """Offered in SETTINGS, where HTTP/2 has a word for it."""

    max_streams: int = 1_000
    #: Of the headers of one request, by HTTP/2's count.
    max_header_list_bytes: int = 32 * 1024
    #: What a client may send before it hears of more room: on one stream, and on all.
    stream_window_bytes: int = 1024 * 1024
    connection_window_bytes: int = 8 * 1024 * 1024
    #: What may wait for a client that reads slowly, over all streams; above it a call is refused.
    max_unsent_bytes: int = 16 * 1024 * 1024
    #: Of work that brings nothing (see `Patience`): at once, and for each second.
    patience: int = 10_000
    patience_per_s: int = 2_000


class Patience:
    """Frames that cost the server something and the client nothing: pings, settings, resets of what was just
    asked for, empty data. Each takes from what is left; time and useful
    work give back. Beyond it the connection ends."""

    __slots__ = ("_left", "_most", "_per_s", "_then")

    def __init__(self, most: int, per_s: int) -> None:
        self._most = self._left = most
        self._per_s = per_s
        self._then: float | None = None

    def pass_time(self, now: float) -> None:
        """`now`: seconds of a clock that never goes back."""
        if self._then is not None and self._left < self._most:
            self._left = min(self._most, self._left + int((now - self._then) * self._per_s))
        self._then = now

    def spend(self, units: int, what: str) -> None:
        self._left -= units
        if self._left < 0:
            raise Http2Error(f"too many {what}", Code.ENHANCE_YOUR_CALM)

    def earn(self, units: int) -> None:
        self._left = min(self._most, self._left + units)
