"""Which server a command talks to: the named one, that of the data folder at hand, or the default address.

A command must never talk to another server by accident. Where a data folder is at hand, only the process that
serves that folder is its server: `listening.json` names its process, its folder and a random id of its start
(`instance`), which the server confirms before anything else is sent to it.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.model.errors import ConfigError, ConnectFailedError

DEFAULT_URL = "http://127.0.0.1:8080"
#: Written by the process that serves a data folder, for as long as it does.
LISTENING_FILE = "listening.json"
#: Of `weir up` and `weir cluster up`, where commands are called.
_FOLDERS = ("weir-data", "weir-cluster")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_NAME_ANOTHER = "start it with `weir up`, or name another server with --url or WEIR_URL"


class NoFolderServerError(ConnectFailedError):
    """A data folder is at hand, and no process serves it."""

    hint = _NAME_ANOTHER


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address. `folder`: the data folder at hand that it must serve, as `instance` confirms; None if
    the address was named, or is the default."""

    url: str
    folder: str | None = None
    instance: str = ""


def find_server(given: str | None) -> Server:
    """The named one; else the server of `WEIR_DATA`, `./weir-data` or `./weir-cluster`; without such a folder, the
    default address. NoFolderServerError if there is a folder and no live process serves it."""
    if given:
        return Server(given)
    named = os.environ.get("WEIR_DATA")
    folder = Path(named) if named else next(filter(_is_there, map(Path, _FOLDERS)), None)
    if folder is None:
        return Server(DEFAULT_URL)
    addresses = addresses_of_folder(folder)
    if not addresses:
        raise NoFolderServerError(_why_none(folder))
    url = http_url(addresses)
    if url is None:
        raise ConfigError(
            f"the server of {folder} has no HTTP listener", hint="name its address with --url or WEIR_URL"
        )
    return Server(url, str(folder), str(addresses.get("instance", "")))


def _is_there(folder: Path) -> bool:
    """Also a link that leads nowhere, as to a disk that is not mounted, and a folder that cannot be read."""
    try:
        folder.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _why_none(folder: Path) -> str:
    file = folder / LISTENING_FILE
    if os.path.islink(folder) and not os.path.exists(folder):
        return f"the data folder {folder} is a link to {os.readlink(folder)}, which does not exist"
    for name in _FOLDERS:
        if os.path.isdir(folder / name):
            return f"no server runs on the data folder {folder}: it is the folder above {folder / name}"
    try:
        file.read_bytes()
    except PermissionError:
        return f"the server of the data folder {folder} is unknown: {file} cannot be read"
    except OSError:
        pass
    return f"no server runs on the data folder {folder}"


def addresses_of_folder(data: Path) -> dict[str, Any]:
    """What `listening.json` says, every listener by its name; empty if its process has ended, or served another
    folder from which the file was copied."""
    try:
        found: Any = json.loads((data / LISTENING_FILE).read_text(encoding="utf-8"))
        process = int(found["pid"])
        same = found.get("folder") in (None, folder_id(data))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return dict(found) if same and _lives(process) else {}


def folder_id(data: Path) -> str:
    """Tells a folder from copies of it."""
    found = data.stat()
    return f"{found.st_dev}:{found.st_ino}"


def _lives(process: int) -> bool:
    """A process that was killed leaves its file behind."""
    try:
        os.kill(process, 0)
    except PermissionError:  # of another user
        return True
    except (OSError, OverflowError):
        return False
    return process > 0


def http_url(addresses: dict[str, Any]) -> str | None:
    """The URL of the admin REST among addresses by the names of their listeners."""
    for scheme in ("http", "https"):
        address = addresses.get(scheme)
        if address:
            host, _, port = str(address).rpartition(":")
            return f"{scheme}://{_EVERYWHERE.get(host, host)}:{port}"
    return None
