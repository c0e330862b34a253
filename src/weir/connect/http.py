"""One HTTP request, with the headers, the token and the TLS of a connector's options."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from weir.client.tls import trusting
from weir.connect.secrets import Secret, reveal
from weir.connect.task import Job
from weir.model.errors import ConfigError, ConnectorError

_MAX_ANSWER_BYTES = 64 << 20


class Refused(ConnectorError):
    """An answer that is no success. `passing`: whether it may be better at the next attempt."""

    def __init__(self, what: str, *, status: int, passing: bool) -> None:
        super().__init__(what)
        self.status = status
        self.passing = passing


class Http:
    def __init__(self, job: Job) -> None:
        url: str = job.option("url")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url} is no address of HTTP", hint="http://... or https://...")
        self._timeout_s = job.option("timeout") / 1000
        self._tls = trusting(job.option("ca")) if url.startswith("https:") else None
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
            with urlopen(request, timeout=self._timeout_s, context=self._tls) as answer:
                data: bytes = answer.read(_MAX_ANSWER_BYTES + 1)
        except HTTPError as refused:
            with refused:
                said = refused.read(300).decode(errors="replace")
            passing = refused.code >= 500 or refused.code in (408, 425, 429)
            raise Refused(f"{url} answered {refused.code}: {said}", status=refused.code, passing=passing) from None
        except (URLError, OSError) as failure:
            raise Refused(f"{url} does not answer: {failure}", status=0, passing=True) from None
        if len(data) > _MAX_ANSWER_BYTES:
            raise ConnectorError(f"{url} answered with more than {_MAX_ANSWER_BYTES} bytes")
        return data


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
