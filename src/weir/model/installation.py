"""The command that installs more of Weir where this Weir is installed: hints say it, and it works as it stands."""

import json
import shlex
import sys

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
