"""What Linux says of other processes: which one has started which, and whether one stands still."""

from contextlib import suppress
from pathlib import Path


def stands_still(pid: int) -> bool:
    """Whether SIGSTOP has reached it; not if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def processes_below(pid: int) -> list[int]:
    """The processes that one has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, []))
    for child in found:  # which grows
        found += children.get(child, [])
    return found
