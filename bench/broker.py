"""A whole broker under the official client: started, loaded, timed, and filled with topics.

One case is one life of one broker, so that starting it is paid once; Weir and its peer take turns, round by round.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar

from bench.brokers import BROKERS, Broker, cpu_s, rss_mb, settled_rss_mb
from bench.case import Measured, Params, case
from bench.loader import SUBSCRIPTION
from bench.loaders import Loader, together

_MODULE = "bench.loader"
_START_TIMEOUT_S = 240.0
#: How long a broker that just started is left alone before its memory is read.
_IDLE_S = 3.0


def _first_message_s(broker: Broker, topic: str) -> float:
    """Start it; seconds until the first message is acknowledged."""
    started = time.monotonic()
    broker.start()
    while True:
        client = pulsar.Client(
            broker.url,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
            operation_timeout_seconds=3,
            connection_timeout_ms=1000,
        )
        try:
            client.create_producer(topic).send(b"first")
        except pulsar.PulsarException:
            if broker.pid and time.monotonic() - started > _START_TIMEOUT_S:
                raise
            time.sleep(0.02)
        else:
            return time.monotonic() - started
        finally:
            client.close()


@contextmanager
def _running(params: Params, folder: str) -> Iterator[tuple[Broker, float]]:
    broker = BROKERS[params["broker"]](Path(folder))
    try:
        yield broker, _first_message_s(broker, "first")
    finally:
        broker.stop()


def _subscribe(broker: Broker, topic: str) -> None:
    """A subscription that exists before the first message, so that what is produced is kept for it."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(
        topic, SUBSCRIPTION, pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    ).close()
    client.close()


def _throughput(broker: Broker, topic: str, load: Params, producers: int) -> Measured:
    """Produce for a while, then drain all of it; messages per second, and what a million of them cost."""
    _subscribe(broker, topic)
    base = {"url": broker.url, "topic": topic}
    cpu = cpu_s(broker.pid)
    sent = together([Loader(_MODULE, "produce", base | load) for _ in range(producers)])
    count, seconds = sum(f["count"] for f in sent), max(f["seconds"] for f in sent)
    between = cpu_s(broker.pid)
    (drained,) = together([Loader(_MODULE, "consume", base | {"count": count})])
    return {
        "produce_s": count / seconds,
        "produce_cpu_s": (between - cpu) / count * 1e6,
        "produce_client_cores": sum(f["cpu_s"] for f in sent) / seconds,
        "consume_s": count / drained["seconds"],
        "consume_cpu_s": (cpu_s(broker.pid) - between) / count * 1e6,
        "consume_client_cores": drained["cpu_s"] / drained["seconds"],
    }


def _latency(broker: Broker, topic: str, load: Params) -> Measured:
    base = {"url": broker.url, "topic": topic} | load
    receiver = Loader(_MODULE, "receive-at", base)
    sender = Loader(_MODULE, "send-at", base)
    cpu = cpu_s(broker.pid)
    found, acknowledged = together([receiver, sender])
    spent = cpu_s(broker.pid) - cpu
    latencies = {name: found[name] for name in ("p50_us", "p99_us", "p999_us")}
    return latencies | {f"ack_{n}": acknowledged[n] for n in latencies} | {"cpu_s": spent / load["count"] * 1e6}


def _named(prefix: str, found: Measured) -> Measured:
    return {f"{prefix} {name}": value for name, value in found.items()}


@case("broker.load")
def load(params: Params, folder: str) -> Measured:
    """Start, idle memory, throughput of every shape, latency at fixed rates, and the memory after all that."""
    with _running(params, folder) as (broker, start_s):
        found: Measured = {"start_s": start_s, "idle_mb": settled_rss_mb(broker.pid, _IDLE_S)}
        idle = cpu_s(broker.pid)
        time.sleep(1.0)
        found["idle_cores"] = cpu_s(broker.pid) - idle
        for batching in (True, False):
            # Both are warm when they are measured: a JVM compiles, Weir fills its caches.
            warm = {"batching": batching, "size": 100, "seconds": params["warm_s"]}
            _throughput(broker, f"warm-{batching}", warm, params["producers"])
        for number, shape in enumerate(params["shapes"]):
            measured = _throughput(broker, f"throughput-{number}", shape["load"], params["producers"])
            found |= _named(shape["key"], measured)
        for number, shape in enumerate(params["latencies"]):
            found |= _named(shape["key"], _latency(broker, f"latency-{number}", shape["load"]))
        found["loaded_mb"] = rss_mb(broker.pid)
    return found


@case("broker.topics")
def topics(params: Params, folder: str) -> Measured:
    """Many topics, each with a subscription and a producer; then the restart of the broker that has them."""
    with _running(params, folder) as (broker, _):
        idle = settled_rss_mb(broker.pid, _IDLE_S)
        wanted = {name: params[name] for name in ("topics", "rounds", "size")}
        loader = Loader(_MODULE, "topics", wanted | {"url": broker.url, "topic": "many"})
        cpu = cpu_s(broker.pid)
        loader.go()
        found = loader.found()
        messages = params["topics"] * params["rounds"]
        measured = {
            "subscribe_s": params["topics"] / found["subscribe_s"],
            "create_s": params["topics"] / found["create_s"],
            "ready_s": params["topics"] / (found["subscribe_s"] + found["create_s"]),
            "send_s": messages / found["send_s"],
            "read_s": (messages + params["topics"]) / found["read_s"],
            "cpu_s": cpu_s(broker.pid) - cpu,
            "mb": rss_mb(broker.pid),
            "added_mb": rss_mb(broker.pid) - idle,
        }
        loader.go()
        loader.end()
        broker.stop()
        measured["restart_s"] = _first_message_s(broker, "many-7")
        measured["restarted_mb"] = settled_rss_mb(broker.pid, _IDLE_S)
    return measured
