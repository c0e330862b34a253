"""Check in a separate process that the modules imported by a function's file are installed.

A deployment contains only the file, so its neighbors are not importable here or on the worker. Other failures are
left to the worker, which has the settings and topics that the file may need.
"""

import subprocess
import sys

from weir.functions.function_code import load
from weir.model.errors import FunctionError

#: A file that takes longer to load is deployed without the check.
_PATIENCE_S = 60
_MISSING = 3


def check_imports(code: str, file: str, entry: str) -> None:
    """Load the file. FunctionError names the module that cannot be imported."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, file, entry],
            input=code.encode(),
            capture_output=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return
    if done.returncode == _MISSING:
        raise FunctionError(
            done.stderr.decode(errors="replace").splitlines()[-1],
            hint="install the module in the Python of this command and of the functions' runner",
        )


def _main() -> None:
    file, entry = sys.argv[1:]
    try:
        load(sys.stdin.buffer.read().decode(), file, entry)
    except FunctionError as failed:
        if isinstance(failed.__cause__, ImportError):
            print(f"\n{failed.what}", file=sys.stderr)
            sys.exit(_MISSING)


if __name__ == "__main__":
    _main()
