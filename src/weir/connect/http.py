"""One HTTP request, with the headers, the token and the TLS of a connector's options."""

import json
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener
from zlib import decompressobj
from zlib import error as zlib_error

from weir.client.tls import trusting
from weir.connect.secrets import Secret, reveal
from weir.connect.task import Job
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
