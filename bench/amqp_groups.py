"""Weir beside Debian's RabbitMQ, by RabbitMQ's own PerfTest and by pika: the groups and their rows."""

from dataclasses import asdict
from typing import Any

from bench import perf_test, rabbitmq_peer
from bench.perf_test import Load
from bench.plan import Group, Row, Run, metric
from bench.report import Target

#: All names of these groups begin so.
NAME = "amqp"
_TITLE = rabbitmq_peer.TITLE
_SIZES = {"100 B": 100, "4 KiB": 4096}
_SHAPES: dict[str, dict[str, int]] = {"1 queue": {}, "10 queues": {"queues": 10}, "fanout to 10": {"fanout": 10}}
_KINDS = {"durable, confirms": True, "transient": False}
_PACED = "durable, confirms, 1 queue, 100 B, 2,000/s"
_IDLE = 10_000

_TWICE = Target(">= 2", lambda _value, ratio: ratio is not None and ratio.median >= 2)
_AHEAD = Target("> 1", lambda _value, ratio: ratio is not None and ratio.median > 1)
_BELOW = Target("<= 1", lambda _value, ratio: ratio is not None and ratio.median <= 1)
_HALF = Target("<= 0.5", lambda _value, ratio: ratio is not None and ratio.median <= 0.5)


def amqp_groups(*, quick: bool) -> list[Group]:
    """Those of PerfTest where Maven can get it; RabbitMQ's column where it is installed."""
    absent = rabbitmq_peer.missing()
    found = [] if perf_test.ARTIFACTS.missing() else [_perf(absent, quick=quick)]
    return [*found, _pika(absent, quick=quick), _idle(absent, quick=quick)]


def _runs(case: str, params: dict[str, Any], absent: str) -> list[Run]:
    names = ["weir"] if absent else ["weir", "rabbitmq"]
    return [Run(name, case, params | {"broker": name}, timeout_s=600) for name in names]


def _row(absent: str, title: str, unit: str, name: str, target: Target | None, *, lower: bool = False) -> Row:
    if absent:
        return Row(title, unit, metric("weir", name), f"skipped: {absent}", lower_is_better=lower)
    ours, theirs = metric("weir", name), metric("rabbitmq", name)
    return Row(title, unit, ours, _TITLE, theirs, lower_is_better=lower, target=target)


def _loads(*, quick: bool) -> dict[str, Load]:
    times = {"seconds": 2, "warm_s": 2} if quick else {"seconds": 6, "warm_s": 4}
    found = {}
    for kind, durable in _KINDS.items():
        for shape, options in _SHAPES.items():
            for title, size in _SIZES.items():
                key = f"{kind}, {shape}, {title}"
                found[key] = Load(key=key, size=size, durable=durable, **options, **times)
    found[_PACED] = Load(key=_PACED, size=100, durable=True, rate=2000, **times)
    return found


def _perf(absent: str, *, quick: bool) -> Group:
    loads = _loads(quick=quick)
    rows = [
        _row(absent, "start, until the first message is confirmed", "s", "start_s", None, lower=True),
        _row(absent, "memory, idle after the start", "MB", "idle_mb", None, lower=True),
    ]
    for key, load in loads.items():
        if not load.rate:
            rates = _TWICE if load.durable else _AHEAD
            rows.append(_row(absent, f"{key}: published", "msg/s", f"{key} sent_s", None))
            rows.append(_row(absent, f"{key}: delivered", "msg/s", f"{key} received_s", rates))
        rows += [
            _row(absent, f"{key}: end to end, p50", "us", f"{key} p50_us", None, lower=True),
            _row(absent, f"{key}: end to end, p99", "us", f"{key} p99_us", _BELOW, lower=True),
            _row(absent, f"{key}: broker CPU per delivery", "us", f"{key} cpu_us", _HALF, lower=True),
            _row(absent, f"{key}: PerfTest's CPU per delivery", "us", f"{key} client_us", None, lower=True),
        ]
    rows.append(_row(absent, "memory, after all that", "MB", "loaded_mb", None, lower=True))
    params = {"loads": [asdict(load) for load in loads.values()]}
    title = f"PerfTest, {perf_test.OUTSTANDING} under way, beside {_TITLE}"
    return Group(f"{NAME}-perf", title, _runs("amqp.perf", params, absent), rows, 1, beside=_TITLE)


def _pika(absent: str, *, quick: bool) -> Group:
    loads = []
    rows = []
    for kind, durable in _KINDS.items():
        for title, size in _SIZES.items():
            key = f"{kind}, {title}"
            count = (500 if durable else 2000) * (1 if quick else 6)
            loads.append({"key": key, "size": size, "durable": durable, "count": count})
            rows += [
                _row(absent, f"{key}: published", "msg/s", f"{key} sent_s", _AHEAD),
                _row(absent, f"{key}: consumed", "msg/s", f"{key} received_s", _AHEAD),
                _row(absent, f"{key}: broker CPU per message", "us", f"{key} cpu_us", _HALF, lower=True),
            ]
            if durable:
                rows.append(_row(absent, f"{key}: confirmed, p99", "us", f"{key} p99_us", _BELOW, lower=True))
    title = (
        f"pika, one publisher (each message confirmed before the next, if durable), one consumer, beside {_TITLE}"
    )
    runs = _runs("amqp.pika", {"loads": loads}, absent)
    return Group(f"{NAME}-pika", title, runs, rows, 1 if quick else 2, beside=_TITLE)


def _idle(absent: str, *, quick: bool) -> Group:
    count = 500 if quick else _IDLE
    rows = [
        _row(absent, f"{count:,} connections with a channel each: opened", "per s", "opened_s", None),
        _row(absent, "memory, all of them idle", "MB", "mb", _BELOW, lower=True),
        _row(absent, "memory of each", "kB", "kb_each", _BELOW, lower=True),
        _row(absent, "cores used, all of them idle", "", "idle_cores", None, lower=True),
    ]
    runs = _runs("amqp.idle", {"connections": count}, absent)
    return Group(f"{NAME}-idle", f"Idle connections, beside {_TITLE}", runs, rows, 1, beside=_TITLE)
