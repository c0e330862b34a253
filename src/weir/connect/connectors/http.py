"""One HTTP request, with the headers, the token and the TLS of a connector's options.

Messages to an HTTP API, many in one request, in the order of their partition.

At least once: a request whose answer is lost is made again, with the same `Idempotency-Key`, which says which
offsets it has. What is refused for good, alone, is a dead letter, or ends the sink.

Records of an HTTP API, asked for with GET again and again from a cursor on; the cursor is kept with them.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener
from zlib import decompressobj
from zlib import error as zlib_error

from weir.client.access import trusting
from weir.connect.connectors.base import RowSource, Sink, now_ms
from weir.connect.options import Secret, reveal
from weir.connect.reader import Piece
from weir.connect.task import Job, Message
from weir.connect.values import plain_json
from weir.model.errors import ConnectorError

_MAX_ANSWER_BYTES, _PART_BYTES = 64 << 20, 64 << 10
#: zlib's number for streams with a header of gzip's.
_GZIP = 31


#: Answers that say something of the moment, and such that say something of the connector, whatever it sends.
_PASSING, _OURS = (408, 425, 429), (401, 403, 404, 405, 407, 410)


class Refused(ConnectorError):
    """An answer that is no success. `passing`: whether it may be better at the next attempt; `ours`: whether any
    other record would have been refused, too."""

    def __init__(
        self, what: str, *, status: int, passing: bool, ours: bool = False, hint: str | None = None
    ) -> None:
        super().__init__(what, hint=hint)
        self.status = status
        self.passing = passing
        self.ours = ours


class _NoRedirects(HTTPRedirectHandler):
    """A POST that is sent elsewhere would become a GET without what it carries, and secrets go to strangers."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Http:
    def __init__(self, job: Job) -> None:
        url: str = job.option("url")
        self._timeout_s = job.option("timeout") / 1000
        tls = [HTTPSHandler(context=trusting(job.option("ca")))] if url.startswith("https:") else []
        self._opener = build_opener(_NoRedirects, *tls)
        self._given: Mapping[str, Any] = job.option("headers")
        self._token = job.option("token")

    def ask(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Refused if it is not a success; ConnectorError if nobody answers."""
        found = {name: one.reveal() if isinstance(one, Secret) else one for name, one in self._given.items()}
        token = reveal(self._token)
        if token is not None:
            found["Authorization"] = f"Bearer {token}"
        request = Request(url, body, {"Accept": "application/json", **(headers or {}), **found}, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return self._whole(answer, url)
        except HTTPError as refused:
            raise _refusal(url, refused) from None
        except (OSError, HTTPException) as failure:
            raise Refused(f"{url} does not answer: {failure}", status=0, passing=True) from None

    def _whole(self, answer: Any, url: str) -> bytes:
        """All of the answer, within the time and the size that one may have."""
        until_s = time.monotonic() + self._timeout_s
        parts, size = [], 0
        while part := answer.read1(_PART_BYTES):
            parts.append(part)
            size += len(part)
            if size > _MAX_ANSWER_BYTES:
                raise _too_large(url)
            if time.monotonic() > until_s:
                raise TimeoutError("the answer takes longer than timeout")
        return _unpacked(b"".join(parts), answer.headers.get("Content-Encoding", ""), url)


def _unpacked(data: bytes, encoding: str, url: str) -> bytes:
    """There are servers that compress what was not asked for so."""
    if encoding.lower() not in ("gzip", "x-gzip"):
        return data
    try:
        packed = decompressobj(_GZIP)
        found = packed.decompress(data, _MAX_ANSWER_BYTES)
    except zlib_error as bad:
        raise ConnectorError(f"{url} answered with something that is no gzip: {bad}") from None
    if packed.unconsumed_tail:
        raise _too_large(url)
    return found


def _too_large(url: str) -> ConnectorError:
    return ConnectorError(
        f"{url} answered with more than {_MAX_ANSWER_BYTES >> 20} MiB", hint="ask for smaller pages"
    )


def _refusal(url: str, refused: HTTPError) -> Refused:
    with refused:
        said = " ".join(refused.read(300).decode(errors="replace").split())
    code = refused.code
    if 300 <= code < 400:
        there = f"write the address that it names as url: {refused.headers.get('Location')}"
        return Refused(f"{url} answered {code}", status=code, passing=False, ours=True, hint=there)
    passing, ours = code >= 500 or code in _PASSING, code in _OURS
    hint = "check url, token and headers" if ours else None
    return Refused(f"{url} answered {code}: {said}", status=code, passing=passing, ours=ours, hint=hint)


def at_path(found: Any, path: str | None) -> Any:
    """What is at `a.b` of a document; None if there is nothing."""
    for part in path.split(".") if path else ():
        found = found.get(part) if isinstance(found, dict) else None
    return found


def parse(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise ConnectorError(f"{url} answered with something that is no JSON") from None


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


_KEY = "cursor"
_SEPARATORS = re.compile(r"[/\\]")


class HttpSource(RowSource):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._http = Http(job)
        self._key = job.option("key") or ()
        self.status.idle_s = job.option("poll") / 1000

    def step(self) -> int:
        cursor, seen = self._position()
        url = self._url(cursor)
        told = self._http.ask("GET", url)
        if not told:  # 204: there is nothing now
            return 0
        answer = parse(told, url)
        records = at_path(answer, self.job.option("records"))
        if not isinstance(records, list):
            raise ConnectorError(f"{url} answered without a list of records", hint="say where it is: records")
        after = self._after(answer, records)
        if after is not None and after == cursor and len(records) > seen:
            raise ConnectorError(
                f"{url} gave records, and the cursor that it was asked with", hint="check cursor, cursor_field"
            )
        if len(records) < seen:
            raise ConnectorError(
                f"{url} gave {len(records)} records, where there were {seen} before",
                hint="a last page must grow at its end alone; a cursor_field knows its place better",
            )
        last = after is None or after == cursor
        if last and len(records) == seen:
            return 0
        # What is behind the last cursor is a page that grows: as much of it was carried as was there.
        at = {"cursor": cursor, "seen": len(records)} if last else {"cursor": after, "seen": 0}
        self.send([self._message(one) for one in records[seen:]], {_KEY: at})
        self.status.position = f"{self.job.option('parameter')} = {at['cursor']}"
        return max(1, len(records) - seen)

    def _position(self) -> tuple[Any, int]:
        """The cursor, and how many of the records behind it were carried."""
        kept = self.positions.get(_KEY, self.job.option("start"))
        return (kept["cursor"], kept["seen"]) if isinstance(kept, dict) else (kept, 0)

    def _after(self, answer: Any, records: list[Any]) -> Any:
        """The cursor behind these records; None where the answer says none."""
        if self.job.option("cursor") is not None:
            return at_path(answer, self.job.option("cursor")) or None
        return at_path(records[-1], self.job.option("cursor_field")) if records else None

    def _url(self, cursor: Any) -> str:
        url: str = self.job.option("url")
        if cursor is None:
            return url.replace("{cursor}", "")
        if "{cursor}" in url:
            if {".", ".."} & set(_SEPARATORS.split(str(cursor))):
                raise ConnectorError(
                    f"the cursor {str(cursor)[:80]!r} would lead to another path than url names",
                    hint="send the cursor as a parameter: leave {cursor} out of url",
                )
            return url.replace("{cursor}", quote(str(cursor), safe=""))
        return f"{url}{'&' if '?' in url else '?'}{urlencode({self.job.option('parameter'): cursor})}"

    def _message(self, record: Any) -> Message:
        if isinstance(record, dict):
            return self.message(record, self._key)
        return Message(self.name, None, plain_json(record), now_ms())
