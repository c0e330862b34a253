"""The groups of measurements and the rows of the table."""

from bench.plan import Group, Row, Run, metric


def groups(*, quick: bool) -> list[Group]:
    """Everything that `make bench` measures, in the order of the table."""
    sizes = Sizes.quick() if quick else Sizes.full()
    return [_limits(sizes)]


class Sizes:
    """How much data each measurement moves."""

    def __init__(self, *, mib: int, syncs: int, rounds: int) -> None:
        self.mib = mib
        self.syncs = syncs
        self.rounds = rounds

    @classmethod
    def quick(cls) -> "Sizes":
        return cls(mib=64, syncs=300, rounds=1)

    @classmethod
    def full(cls) -> "Sizes":
        return cls(mib=512, syncs=3000, rounds=3)


def _limits(sizes: Sizes) -> Group:
    return Group(
        "limits",
        "Raw limits of this machine",
        [
            Run("fresh", "raw.write-fresh", {"mib": sizes.mib}),
            Run("recycled", "raw.write-recycled", {"mib": sizes.mib}),
            Run("sync", "raw.sync-write", {"size": 1024, "count": sizes.syncs}),
            Run("thread", "raw.thread-sync-write", {"size": 1024, "count": sizes.syncs}),
            Run("cold", "raw.read-cold", {"mib": sizes.mib, "order": "sequential"}),
            Run("loopback", "raw.loopback", {"mib": sizes.mib, "pings": sizes.syncs}),
            Run("memory", "raw.memory", {"rounds": 5}),
        ],
        [
            Row("sequential write, fresh file, fdatasync at the end", "MB/s", metric("fresh", "mb_s")),
            Row("sequential write, recycled file, fdatasync per MiB", "MB/s", metric("recycled", "mb_s")),
            Row("write + fdatasync of 1 KiB, p50", "us", metric("sync", "p50_us")),
            Row("write + fdatasync of 1 KiB, p99", "us", metric("sync", "p99_us")),
            Row("the same by a thread for an event loop, p50", "us", metric("thread", "p50_us")),
            Row("sequential read, cold", "MB/s", metric("cold", "mb_s")),
            Row("loopback TCP, one stream", "MB/s", metric("loopback", "mb_s")),
            Row("loopback TCP, ping-pong p50", "us", metric("loopback", "p50_us")),
            Row("memcpy, from DRAM", "MB/s", metric("memory", "memcpy_mb_s")),
            Row("crc32c, from DRAM", "MB/s", metric("memory", "crc32c_mb_s")),
        ],
        sizes.rounds,
    )
