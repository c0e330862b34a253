"""The interfaces to the outside: a clock, a network, a disk, random numbers, and the resources of the machine.

Two implementations exist: `weir.runtime.real` (asyncio, threads, the operating system) and `weir.testing` (one
seeded scheduler). One conformance suite runs over both. Code above this layer uses asyncio's tasks, futures and
events freely, since both run on an asyncio event loop, but never its sleep, sockets or threads. Every failure is
an error from `weir.model.errors`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from ssl import SSLContext
from typing import Protocol

from weir.model.ids import Buffer


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time. Wall time may be wrong or jump; only `monotonic` measures durations."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as this node believes."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait; zero gives every other ready task one turn."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a plain function later, from the loop."""


class Connection(Protocol):
    """A reliable, ordered stream of bytes, until it breaks."""

    @property
    def peer(self) -> str:
        """`host:port` of the other side, for logs."""

    @property
    def certificate(self) -> bytes | None:
        """The certificate from the TLS handshake, as DER; None if the handshake did not request one."""

    @property
    def on_reserve(self) -> bool:
        """Whether it has the last file descriptor of the process: it is to end soon."""

    async def receive(self) -> Buffer:
        """The next bytes, as many as arrived; empty at the end of the stream.

        Raises ConnectionLostError if the stream broke rather than ended. The buffer belongs to the caller: the
        connection never overwrites it while any view of it lives. One task receives at a time.
        """

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Queue bytes for sending, in order, without waiting; writing to a broken connection does nothing."""

    @property
    def unsent_bytes(self) -> int:
        """Written bytes that have not left this process; zero once the connection has ended."""

    async def drain(self) -> None:
        """Wait while more than the high-water mark is queued; ConnectionLostError if it broke."""

    def close(self) -> None:
        """Send the queue, then end the stream in both directions. A second call has no effect."""

    def abort(self) -> None:
        """Break the connection immediately and drop the queue."""


class Listener(Protocol):
    """A bound address."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    async def accept(self) -> Connection:
        """The next connection; ConnectionLostError once the listener is closed."""

    def close(self) -> None:
        """Accept no more; connections already accepted live on."""


class Network(Protocol):
    """Connections to and from other nodes."""

    @property
    def descriptor_waits(self) -> int:
        """The number of times that a connection had to wait because the process had no file descriptor left."""

    async def connect(
        self, host: str, port: int, *, timeout_s: float = 10.0, tls: SSLContext | None = None
    ) -> Connection:
        """Open a connection, or raise ConnectFailedError."""

    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        reserve: bool = False,
        clear_too: bool = False,
    ) -> Listener:
        """Bind an address (port 0: any free one), or raise AddressInUseError. `reserve`: the listener keeps one
        file descriptor, so that it can accept one connection at a time when the process has none left.
        `clear_too`: with `tls`, the listener also accepts connections without TLS; the client's first byte
        decides."""


class File(Protocol):
    """An open file. Operations on one file run in the order in which they were called."""

    @property
    def path(self) -> str: ...

    async def write_at(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all buffers one after the other from `offset` on, extending the file if need be.

        With `sync`, also do what `sync()` does, in the same trip to the disk. Until synced, a crash may keep
        any part of the write or none of it. The caller keeps the buffers unchanged until this returns.
        """

    async def append(self, buffers: Sequence[Buffer], *, sync: bool = False) -> int:
        """`write_at` the end of the file; returns the offset where the first byte went."""

    async def read_at(self, offset: int, length: int) -> bytes | bytearray:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    async def sync(self) -> None:
        """Make everything written so far, and the size, survive power loss (fdatasync)."""

    async def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) the file to `size`."""

    async def preallocate(self, size: int) -> None:
        """Reserve space and extend the file to at least `size`; new bytes read as zeros."""

    async def size(self) -> int: ...

    async def close(self) -> None:
        """Close without syncing. Closing twice is fine."""


class FileLock(Protocol):
    """An exclusive lock, held until released or until the process dies."""

    async def release(self) -> None: ...


class Disk(Protocol):
    """Files and directories. Paths are strings with `/`; a created, renamed or removed name survives a crash
    only after `sync_dir` of its directory."""

    async def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileMissingError unless it exists or `create` is set."""

    async def exists(self, path: str) -> bool: ...

    async def list(self, directory: str) -> list[str]:
        """Names (not paths) in the directory, sorted; FileMissingError if the directory does not exist."""

    async def make_dirs(self, directory: str) -> None:
        """Create the directory and its parents, durably; fine if it exists."""

    async def rename(self, source: str, target: str) -> None:
        """Atomically give a file a new name, replacing what had it."""

    async def remove(self, path: str) -> None:
        """Remove a file, or an empty directory; FileMissingError if it does not exist."""

    async def sync_dir(self, directory: str) -> None:
        """Make creations, renames and removals in this directory survive power loss."""

    async def free_bytes(self, directory: str) -> int:
        """How much space is left where the directory lies."""

    async def lock(self, path: str) -> FileLock:
        """Take the exclusive lock on this (created if missing) file, or raise FileLockedError."""


class Resources(Protocol):
    """What this process uses of its machine. Cheap enough to be asked every second."""

    def loop_cpu_s(self) -> float:
        """CPU time of the event loop's own thread since its start, in seconds."""

    def cpu_s(self) -> float:
        """CPU time of the whole process since its start, in seconds, over all cores."""

    def cores(self) -> int:
        """How many cores it may use."""

    def memory_bytes(self) -> int:
        """Memory of the process; 0 if unknown."""

    def memory_limit_bytes(self) -> int:
        """The memory limit: that of its container, else of the machine."""

    def open_files(self) -> tuple[int, int]:
        """The number of open files and connections, and their limit; 0 if unknown."""


@dataclass(slots=True)
class LoopHolds:
    """How long single callbacks blocked the event loop, as `LoopWatch` measures it."""

    #: In CPU time of the loop's thread, and the function, if known.
    longest_s: float = 0.0
    longest_at: str = ""
    #: How many were longer than a quarter of a second.
    count: int = 0


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one node sees of the world."""

    clock: Clock
    net: Network
    disk: Disk
    rng: Random
    resources: Resources
    loop_holds: LoopHolds = field(default_factory=LoopHolds)
