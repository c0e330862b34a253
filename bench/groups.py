"""The groups of measurements and the rows of the table."""

from dataclasses import dataclass
from typing import Any

from bench.plan import Group, Round, Row, Run, at_least, at_most, metric, value_at_least
from bench.report import Target

KIB = 1024
SIZES = {"100 B": 100, "1 KiB": KIB, "64 KiB": 64 * KIB}
FRESH = "sequential write"
SYNC = "write + fdatasync"


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much each measurement moves."""

    rounds: int
    latency_rounds: int
    mib: int
    syncs: int
    small_entries: int
    large_entries: int
    reads: int
    ledgers: tuple[int, ...]
    ledger_entries: int
    journal_entries: int

    def entries(self, size: int) -> int:
        return self.large_entries if size >= 16 * KIB else self.small_entries


FULL = Amounts(
    rounds=3,
    latency_rounds=7,
    mib=512,
    syncs=3000,
    small_entries=200_000,
    large_entries=8192,
    reads=3000,
    ledgers=(1, 1_000, 10_000, 100_000),
    ledger_entries=400_000,
    journal_entries=200_000,
)
QUICK = Amounts(
    rounds=1,
    latency_rounds=1,
    mib=64,
    syncs=300,
    small_entries=20_000,
    large_entries=1024,
    reads=300,
    ledgers=(1, 1_000),
    ledger_entries=20_000,
    journal_entries=20_000,
)


def groups(*, quick: bool) -> list[Group]:
    """Everything that `make bench` measures, in the order of the table."""
    amounts = QUICK if quick else FULL
    return [
        _limits(amounts),
        *(_append(amounts, ledgers, sync) for sync in ("always", "periodic") for ledgers in (1, 1000)),
        _latency(amounts),
        _latency_at_a_rate(amounts),
        _network(amounts, "network", "one bookie behind loopback"),
        _network(amounts, "replicated", "three bookies behind loopback, E=Qw=3, Qa=2"),
        _tail_reads(amounts),
        _cold_reads(amounts),
        _ledgers(amounts),
        _start(amounts),
    ]


def _fresh(amounts: Amounts) -> Run:
    return Run("fresh", "raw.write-fresh", {"mib": amounts.mib})


def _sync(amounts: Amounts) -> Run:
    return Run("sync", "raw.sync-write", {"size": KIB, "count": amounts.syncs})


def _loopback(amounts: Amounts) -> Run:
    return Run("loopback", "raw.loopback", {"mib": amounts.mib, "pings": amounts.syncs})


def _limits(amounts: Amounts) -> Group:
    return Group(
        "limits",
        "Raw limits of this machine",
        [
            _fresh(amounts),
            Run("recycled", "raw.write-recycled", {"mib": amounts.mib}),
            _sync(amounts),
            Run("thread", "raw.thread-sync-write", {"size": KIB, "count": amounts.syncs}),
            Run("write", "raw.write", {"size": KIB, "count": amounts.syncs}),
            Run("cold", "raw.read-cold", {"mib": amounts.mib, "order": "sequential"}),
            _loopback(amounts),
            Run("memory", "raw.memory", {"rounds": 5}),
        ],
        [
            Row("sequential write, fresh file, fdatasync at the end", "MB/s", metric("fresh", "mb_s")),
            Row("sequential write, recycled file, fdatasync per MiB", "MB/s", metric("recycled", "mb_s")),
            Row("write + fdatasync of 1 KiB, p50", "us", metric("sync", "p50_us")),
            Row("write + fdatasync of 1 KiB, p99", "us", metric("sync", "p99_us")),
            Row("the same by a thread for an event loop, p50", "us", metric("thread", "p50_us")),
            Row("buffered write of 1 KiB, p50", "us", metric("write", "p50_us")),
            Row("sequential read, cold", "MB/s", metric("cold", "mb_s")),
            Row("loopback TCP, one stream", "MB/s", metric("loopback", "mb_s")),
            Row("loopback TCP, ping-pong p50", "us", metric("loopback", "p50_us")),
            Row("memcpy, from DRAM", "MB/s", metric("memory", "memcpy_mb_s")),
            Row("crc32c, from DRAM", "MB/s", metric("memory", "crc32c_mb_s")),
        ],
        amounts.rounds,
    )


def _append_run(amounts: Amounts, name: str, store: str, sync: str, ledgers: int) -> Run:
    size = SIZES[name]
    params: dict[str, Any] = {"store": store, "sync": sync, "ledgers": ledgers, "size": size}
    return Run(name, "append.throughput", params | {"count": amounts.entries(size), "warm_mib": amounts.mib // 2})


def _append(amounts: Amounts, ledgers: int, sync: str) -> Group:
    rows = []
    for name in SIZES:
        rate_target: Target | None = None
        share_target: Target | None = None
        if sync == "always":
            rate_target = value_at_least(100_000, "entries/s") if name == "1 KiB" else None
            share_target = at_least(0.7) if name == "64 KiB" else None
        rows += [
            Row(
                f"{name}, MB/s", "MB/s", metric(name, "mb_s"), FRESH, metric("fresh", "mb_s"), target=share_target
            ),
            Row(f"{name}, entries/s", "entries/s", metric(name, "entries_s"), target=rate_target),
            Row(f"{name}, CPU per entry", "us", metric(name, "cpu_us")),
        ]
    return Group(
        f"append-{sync}-{ledgers}",
        f"Append in process, sync {sync}, {ledgers:,} ledger{'s' if ledgers > 1 else ''}",
        [_fresh(amounts), *(_append_run(amounts, name, "process", sync, ledgers) for name in SIZES)],
        rows,
        amounts.rounds,
    )


def _percentiles(run: str, title: str, raw: str, raw_title: str, target: Target | None = None) -> list[Row]:
    return [
        Row(
            f"{title}, {name}",
            "us",
            metric(run, f"{name}_us"),
            raw_title,
            metric(raw, f"{name}_us"),
            lower_is_better=True,
            target=target if name == "p50" else None,
        )
        for name in ("p50", "p99", "p999")
    ]


def _plain_percentiles(run: str, title: str) -> list[Row]:
    names = ("p50", "p99", "p999")
    return [Row(f"{title}, {name}", "us", metric(run, f"{name}_us")) for name in names]


def _latency(amounts: Amounts) -> Group:
    base: dict[str, Any] = {"size": KIB, "count": amounts.syncs}
    return Group(
        "latency",
        "Latency in process, one append at a time",
        [
            _sync(amounts),
            Run("always", "append.latency", base | {"sync": "always"}),
            Run("thread", "raw.thread-sync-write", base),
            Run("periodic", "append.latency", base | {"sync": "periodic"}),
        ],
        [
            *_percentiles("always", "1 KiB, sync always", "sync", SYNC, at_most(1.5)),
            Row(
                "1 KiB, sync always, p50 beside a thread's",
                "us",
                metric("always", "p50_us"),
                "write + fdatasync by a thread for an event loop",
                metric("thread", "p50_us"),
                lower_is_better=True,
            ),
            *_plain_percentiles("periodic", "1 KiB, sync periodic"),
        ],
        amounts.latency_rounds,
    )


def _latency_at_a_rate(amounts: Amounts) -> Group:
    params: dict[str, Any] = {"size": KIB, "count": max(300, amounts.syncs // 2), "rate": 1000}
    return Group(
        "latency-rate",
        "Latency in process, 1,000 appends per second",
        [
            Run("sync", "raw.sync-write", params),
            Run("always", "append.latency", params | {"sync": "always"}),
            Run("periodic", "append.latency", params | {"sync": "periodic"}),
        ],
        [
            *_percentiles("always", "1 KiB, sync always", "sync", f"{SYNC} at that rate"),
            *_plain_percentiles("periodic", "1 KiB, sync periodic"),
        ],
        amounts.rounds,
    )


def _network(amounts: Amounts, store: str, title: str) -> Group:
    replicas = 3 if store == "replicated" else 1
    raw_title = FRESH if replicas == 1 else f"{FRESH} / 3: every byte is written three times, to one disk"

    def share(found: Round) -> float:
        return found["fresh"]["mb_s"] / replicas

    def round_trip(found: Round) -> float:
        return found["loopback"]["p50_us"] + found["sync"]["p50_us"]

    runs = [_append_run(amounts, name, store, "always", 1) for name in SIZES]
    rows = [Row(f"{name}, sync always, MB/s", "MB/s", metric(name, "mb_s"), raw_title, share) for name in SIZES]
    rows += [Row(f"{name}, sync always, entries/s", "entries/s", metric(name, "entries_s")) for name in SIZES]
    periodic = _append_run(amounts, "1 KiB", store, "periodic", 1)
    rows += [Row("1 KiB, sync periodic, entries/s", "entries/s", metric("periodic", "entries_s"))]
    rows += [Row("1 KiB, sync always, CPU per entry, all processes", "us", metric("1 KiB", "cpu_us"))]
    rows += [
        Row(
            "1 KiB, sync always, one at a time, p50",
            "us",
            metric("latency", "p50_us"),
            f"ping-pong, then {SYNC}",
            round_trip,
            lower_is_better=True,
        ),
        Row("1 KiB, sync always, one at a time, p99", "us", metric("latency", "p99_us")),
    ]
    latency = {"store": store, "sync": "always", "size": KIB, "count": amounts.syncs}
    return Group(
        store,
        f"Append over the network: {title}",
        [
            _fresh(amounts),
            _sync(amounts),
            _loopback(amounts),
            *runs,
            Run("periodic", periodic.case, periodic.params),
            Run("latency", "append.latency", latency),
        ],
        rows,
        amounts.rounds,
    )


def _read_rows(run: str, title: str, raw: str, raw_title: str) -> list[Row]:
    return [
        Row(f"{title}, MB/s", "MB/s", metric(run, "mb_s"), raw_title, metric(raw, "mb_s")),
        Row(f"{title}, entries/s", "entries/s", metric(run, "entries_s")),
    ]


def _tail_reads(amounts: Amounts) -> Group:
    small = {"size": KIB, "count": min(40_000, amounts.small_entries), "reads": amounts.reads * 3}
    large = {"size": 64 * KIB, "count": min(640, amounts.large_entries)}
    checksum = "crc32c"
    rows = [
        Row(f"{title}, MB/s", "MB/s", metric(key, "mb_s"), checksum, metric("memory", "crc32c_mb_s"))
        for key, title in (("seq-1k", "in process, 1 KiB in order"), ("seq-64k", "in process, 64 KiB in order"))
    ]
    rows += [
        Row("in process, 1 KiB in order, entries/s", "entries/s", metric("seq-1k", "entries_s")),
        Row("in process, 1 KiB one by one at random, entries/s", "entries/s", metric("random", "entries_s")),
        *_read_rows("net-1k", "behind loopback, 1 KiB in order", "loopback", "loopback"),
        *_read_rows("net-64k", "behind loopback, 64 KiB in order", "loopback", "loopback"),
    ]
    return Group(
        "tail-reads",
        "Tail reads, from memory",
        [
            Run("memory", "raw.memory", {"rounds": 5}),
            _loopback(amounts),
            Run("seq-1k", "read.tail", small | {"order": "sequential"}),
            Run("seq-64k", "read.tail", large | {"order": "sequential"}),
            Run("random", "read.tail", small | {"order": "random"}),
            Run("net-1k", "read.tail", small | {"order": "sequential", "store": "network"}),
            Run("net-64k", "read.tail", large | {"order": "sequential", "store": "network"}),
        ],
        rows,
        amounts.rounds,
    )


def _cold_reads(amounts: Amounts) -> Group:
    small = {"size": KIB, "count": amounts.small_entries, "reads": amounts.reads}
    large = {"size": 64 * KIB, "count": amounts.large_entries // 2}
    return Group(
        "cold-reads",
        "Cold reads, bookie restarted and page cache dropped",
        [
            Run("raw-seq", "raw.read-cold", {"mib": amounts.mib // 2, "order": "sequential"}),
            Run(
                "raw-random", "raw.read-cold", {"mib": 200, "order": "random", "size": KIB, "count": amounts.reads}
            ),
            Run("seq-1k", "read.cold", small | {"order": "sequential"}),
            Run("seq-64k", "read.cold", large | {"order": "sequential"}),
            Run("random", "read.cold", small | {"order": "random"}),
        ],
        [
            *_read_rows("seq-64k", "64 KiB in order", "raw-seq", "sequential cold read"),
            *_read_rows("seq-1k", "1 KiB in order", "raw-seq", "sequential cold read"),
            Row(
                "1 KiB one by one at random",
                "us",
                metric("random", "us"),
                "pread of 1 KiB at random, cold",
                metric("raw-random", "us"),
                lower_is_better=True,
            ),
        ],
        amounts.rounds,
    )


def _ledgers(amounts: Amounts) -> Group:
    most = max(amounts.ledgers)
    base = {"size": 100, "count": amounts.ledger_entries}
    runs = [Run(f"{n:,}", "scale.ledgers", base | {"ledgers": n, "burst": 10}) for n in amounts.ledgers]
    spread = [n for n in (1_000, most) if n in amounts.ledgers]
    runs += [
        Run(f"{n:,} singly", "scale.ledgers", base | {"ledgers": n, "burst": 0}) for n in dict.fromkeys(spread)
    ]
    rows = [Row("1 ledger, CPU per entry, bursts of 10", "us", metric("1", "cpu_us"))]
    rows += [
        Row(
            f"{n:,} ledgers, CPU per entry, bursts of 10",
            "us",
            metric(f"{n:,}", "cpu_us"),
            "with 1 ledger",
            metric("1", "cpu_us"),
            lower_is_better=True,
            target=at_most(1.2) if n == most else None,
        )
        for n in amounts.ledgers[1:]
    ]
    rows += [
        Row(f"{n:,} ledgers, CPU per entry, one entry at a time", "us", metric(f"{n:,} singly", "cpu_us"))
        for n in dict.fromkeys(spread)
    ]
    rows += [
        Row(f"{most:,} ledgers, to create one and append its first entry", "us", metric(f"{most:,}", "ledger_us")),
        Row(f"{most:,} ledgers open for writing, memory of the process", "MB", metric(f"{most:,}", "rss_mb")),
    ]
    return Group(
        "ledgers", "Cost per entry of 100 B with many ledgers, flush included", runs, rows, min(2, amounts.rounds)
    )


def _start(amounts: Amounts) -> Group:
    return Group(
        "start",
        "Start of a bookie that died",
        [Run("start", "scale.start", {"size": KIB, "count": amounts.journal_entries})],
        [
            Row(f"{amounts.journal_entries:,} entries of 1 KiB in the journal", "s", metric("start", "seconds")),
            Row("entries replayed", "entries/s", metric("start", "entries_s")),
            Row("memory for them", "MB", metric("start", "rss_mb")),
        ],
        amounts.rounds,
    )
