"""What the console needs of the process that it runs in, and no admin call tells."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of the disk that the data folder is on. `low_water`: with less free, nothing new is taken."""

    free: int
    total: int
    low_water: int = 0


async def _no_disk() -> DiskSpace | None:
    """The data is elsewhere."""
    return None


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    #: Shared by all brokers of the cluster: 32 bytes that seal sessions.
    session_key: bytes
    disk: Callable[[], Awaitable[DiskSpace | None]] = _no_disk
    #: Makes a token for a role, good for so many seconds (None: for ever); None where no key to sign is here.
    make_token: Callable[[str, int | None], str] | None = None
    #: How many connections each protocol has now.
    connections: Callable[[], Sequence[tuple[str, int]]] = tuple
