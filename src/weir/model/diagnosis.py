"""The command that installs more of Weir where this Weir is installed: hints say it, and it works as it stands.

What was acknowledged and is gone, as told to an operator who has to decide whether to go on without it.

What a check of this machine found, and what to do about it.
"""

import json
import shlex
import sys
from enum import Enum
from typing import NamedTuple

from weir.model.ids import value


class State(Enum):
    GOOD = "ok"
    #: Something optional is missing, or may become a problem.
    WARNING = "warning"
    FAILED = "failed"


@value
class Check:
    """`hint` says what to do; empty if nothing has to be done."""

    name: str
    state: State
    found: str
    hint: str = ""


#: The name on the package index, where `weir` is another project's (docs/adr/0032).
DISTRIBUTION = "weir-broker"


def install_command(extra: str) -> str:
    """By this interpreter's own pip, from where this Weir came: a checkout, a wheel's file, or else the index."""
    return f"{shlex.quote(sys.executable)} -m pip install {requirement(extra, _origin())}"


def requirement(extra: str, origin: str | None) -> str:
    """What pip is asked for, given the `direct_url.json` that it wrote at the first installation (PEP 610)."""
    named = f"{DISTRIBUTION}[{extra}]"
    if origin is None:
        return shlex.quote(named)
    came = json.loads(origin)
    url = came["url"]
    if "dir_info" not in came:
        return shlex.quote(f"{named} @ {url}")
    folder = shlex.quote(f"{url.removeprefix('file://')}[{extra}]")
    return f"-e {folder}" if came["dir_info"].get("editable") else folder


def _origin() -> str | None:
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import, and hints are rare

    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:  # run from a folder that nobody installed
        return None


class Loss(NamedTuple):
    """One place where acknowledged bytes are missing."""

    #: The file, or the store, that lacks them.
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


#: What a record of lost entries begins with that `weir salvage` made: nothing will bring them back.
SALVAGED = "lost before `weir salvage`: "
