"""Where a user's server is found: a folder that nobody else may enter, and a socket for each set of settings."""

import hashlib
import os
import stat
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from weir.model.errors import SparkSetupError

_PRIVATE = 0o700
#: The longest path that a Unix socket may have, with room for what a rename needs.
_LONGEST = 100
#: Whose files say whether a server runs the code that asks it.
_CODE = Path(__file__).parent.parent


def runtime_folder() -> Path:
    """SparkSetupError unless it is this user's alone: whoever may write there could pretend to be the server."""
    chosen = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(chosen) / "weir"] if chosen else []
    places.append(Path(tempfile.gettempdir()) / f"weir-{os.getuid()}")
    for place in places:
        if len(str(place)) + 24 > _LONGEST:
            continue
        try:
            place.mkdir(mode=_PRIVATE, parents=False, exist_ok=True)
            found = place.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            if stat.S_IMODE(found.st_mode) != _PRIVATE:
                place.chmod(_PRIVATE)
            return place
    raise SparkSetupError(
        f"no private folder for the server of weir sql: {', '.join(map(str, places))} cannot be it",
        hint="set XDG_RUNTIME_DIR to a folder of yours, or use --no-server",
    )


def socket_path(master: str) -> Path:
    """One server for each interpreter and each place where Spark runs; whichever Weir is asked about."""
    key = "\n".join((sys.executable, master)).encode()
    return runtime_folder() / f"sql-{hashlib.sha256(key).hexdigest()[:12]}"


def weir_version() -> str:
    for name in ("weir-broker", "weir"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def fingerprint() -> str:
    """Of the code: a server that runs other code than the command is replaced."""
    newest = max((file.stat().st_mtime_ns for file in _CODE.rglob("*.py")), default=0)
    return f"{weir_version()}-{newest:x}"
