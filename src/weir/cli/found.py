"""Which server a command talks to when nobody names one: the one that runs on the data folder at hand."""

import json
import os
from pathlib import Path
from typing import Any

DEFAULT_URL = "http://127.0.0.1:8080"
#: Written by whoever serves a data folder, for as long as it does.
LISTENING_FILE = "listening.json"
_DATA = "weir-data"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104: read, not listened on


def find_url(given: str | None) -> str:
    """As given; else of the Weir that serves `WEIR_DATA` or `./weir-data`; else where one listens by default."""
    return given or url_of_folder(Path(os.environ.get("WEIR_DATA") or _DATA)) or DEFAULT_URL


def url_of_folder(data: Path) -> str | None:
    """Where the process listens that serves this folder; None if none does, as far as can be told."""
    return http_url(addresses_of_folder(data))


def addresses_of_folder(data: Path) -> dict[str, Any]:
    """The same for every listener, by its name; empty if none does."""
    try:
        found: Any = json.loads((data / LISTENING_FILE).read_text(encoding="utf-8"))
        os.kill(int(found["pid"]), 0)  # one that was killed leaves its file behind
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return {}


def http_url(addresses: dict[str, Any]) -> str | None:
    """The URL of the admin REST among addresses by the names of their listeners."""
    for scheme in ("http", "https"):
        address = addresses.get(scheme)
        if address:
            host, _, port = str(address).rpartition(":")
            return f"{scheme}://{_EVERYWHERE.get(host, host)}:{port}"
    return None
