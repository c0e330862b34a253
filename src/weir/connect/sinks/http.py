"""Messages to an HTTP API, many in one request, in the order of their partition.

At least once: a request whose answer is lost is made again, with the same `Idempotency-Key`, which says which
offsets it has. What is refused for good, alone, is a dead letter, or ends the sink.
"""

import time
from collections.abc import Sequence
from typing import Any

from weir.connect.http import Http, Refused
from weir.connect.inlet import Piece
from weir.connect.sinks.base import Sink
from weir.connect.task import Job, Message
from weir.connect.values import plain_json
from weir.model.errors import ConnectorError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
Letters = list[tuple[int, Message, str]]


class HttpSink(Sink):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._http = Http(job)

    def step(self) -> int:
        piece = self.take(self.job.option("batch"))
        if piece is None:
            return 0
        letters, readable = self._readable(piece)
        if readable:
            letters += self._send(piece, readable)
        self.bury(letters)
        self.done(piece)
        return max(1, len(piece.messages))

    def _readable(self, piece: Piece) -> tuple[Letters, list[tuple[int, Message]]]:
        """Those whose values are not as their schema says, and the others."""
        letters: Letters = []
        found = []
        for offset, message in piece.messages:
            try:
                self._record(offset, message)
                found.append((offset, message))
            except ConnectorError as wrong:
                letters.append(self._letter(piece, offset, message, wrong.what))
        return letters, found

    def _letter(self, piece: Piece, offset: int, message: Message, why: str) -> tuple[int, Message, str]:
        if not self.keeps_dead_letters:
            raise ConnectorError(
                f"{piece.partition} at offset {offset}: {why}", hint='set on_error = "dead_letter"'
            ) from None
        return offset, message, why

    def _send(self, piece: Piece, messages: Sequence[tuple[int, Message]]) -> Letters:
        """What is refused for good is tried in halves, until it is known which one it is."""
        try:
            self._ask(piece, messages)
            return []
        except Refused as refused:
            if refused.passing or refused.ours:
                raise
            if len(messages) > 1:
                half = len(messages) // 2
                return [*self._send(piece, messages[:half]), *self._send(piece, messages[half:])]
            return [self._letter(piece, *messages[0], refused.what)]

    def _ask(self, piece: Piece, messages: Sequence[tuple[int, Message]]) -> None:
        body = plain_json([self._record(offset, message) for offset, message in messages])
        first, last = messages[0][0], messages[-1][0]
        # Offsets of a topic that was created again are other messages.
        which = filter(None, [self.inlet.ids.get(piece.partition.topic)])
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": "/".join((self.job.id, *which, str(piece.partition), f"{first}-{last}")),
        }
        pause_s = _FIRST_PAUSE_S
        for attempt in range(self.job.option("retries") + 1):
            try:
                self._http.ask(self.job.option("method"), self.job.option("url"), body, headers)
                return
            except Refused as refused:
                if not refused.passing or attempt == self.job.option("retries"):
                    raise
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _record(self, offset: int, message: Message) -> dict[str, Any]:
        return {
            "topic": message.topic,
            "partition": message.partition,
            "offset": offset,
            "timestamp": message.timestamp,
            "key": None if message.key is None else bytes(message.key).decode(errors="replace"),
            "headers": {
                name.decode(errors="replace"): None if text is None else bytes(text).decode(errors="replace")
                for name, text in message.headers
            },
            "value": None if message.value is None else self.decoder(message.topic).value(message),
        }
