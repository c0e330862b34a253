"""Records of an HTTP API, asked for with GET again and again from a cursor on; the cursor is kept with them."""

import re
from typing import Any
from urllib.parse import quote, urlencode

from weir.connect.http import Http, at_path, parse
from weir.connect.sources.base import RowSource, now_ms
from weir.connect.task import Job, Message
from weir.connect.values import plain_json
from weir.model.errors import ConnectorError

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
