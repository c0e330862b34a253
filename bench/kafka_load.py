"""A whole broker under librdkafka: started, loaded, timed, and filled with partitions.

One case is one life of one broker, so that starting it is paid once; Weir and its peer take turns, round by round.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import KAFKAS, Broker, cpu_s, rss_mb, settled_rss_mb
from bench.case import Measured, Params, case
from bench.loaders import Loader, together

_MODULE = "bench.kafka_loader"
_START_TIMEOUT_S = 120.0
_IDLE_S = 3.0
#: How many partitions one topic of the crowd has.
_CROWD = 1000


def first_message_s(broker: Broker, topic: str) -> float:
    """Start it; seconds until the first message is acknowledged."""
    started = time.monotonic()
    broker.start()
    settings = {
        "bootstrap.servers": broker.url,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 50,
        "topic.metadata.refresh.fast.interval.ms": 20,
        "retry.backoff.ms": 20,
        "linger.ms": 0,
        "log_level": 0,
    }
    answers: list[object] = []
    producer = Producer(settings)
    producer.produce(topic, b"first", on_delivery=lambda error, _message: answers.append(error))
    while not answers:
        if producer.poll(0.02) == 0 and time.monotonic() - started > _START_TIMEOUT_S:
            raise SystemExit(f"no message was acknowledged; the broker is {broker.pid}")
    if answers[0] is not None:
        raise SystemExit(f"the first message failed: {answers[0]}")
    return time.monotonic() - started


@contextmanager
def _running(params: Params, folder: str) -> Iterator[tuple[Broker, float]]:
    broker = KAFKAS[params["broker"]](Path(folder), sync=params["sync"])
    try:
        yield broker, first_message_s(broker, "first")
    finally:
        broker.stop()


def create(broker: Broker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.url, "log_level": 3})
    made = admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=60, request_timeout=120)
    made[topic].result()
    for _ in range(600):
        try:
            if len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == partitions:
                return
        except KafkaException:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{topic} did not get its {partitions} partitions")


def _throughput(broker: Broker, topic: str, load: Params, producers: int) -> Measured:
    """Produce for a while, then read all of it; messages per second, and what a million of them cost."""
    create(broker, topic, load["partitions"])
    base = {"url": broker.url, "topic": topic, "partitions": load["partitions"]}
    loaders = [Loader(_MODULE, "produce", base | load) for _ in range(producers)]
    cpu = cpu_s(broker.pid)
    sent = together(loaders)
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
    create(broker, topic, 1)
    base = {"url": broker.url, "topic": topic} | load
    receiver = Loader(_MODULE, "receive-at", base)
    sender = Loader(_MODULE, "send-at", base)
    cpu = cpu_s(broker.pid)
    found, acknowledged = together([receiver, sender])
    spent = cpu_s(broker.pid) - cpu
    latencies = {name: found[name] for name in ("p50_us", "p99_us", "p999_us")}
    return latencies | {f"ack_{n}": acknowledged[n] for n in latencies} | {"cpu_s": spent / load["count"] * 1e6}


@case("kafka.load")
def load(params: Params, folder: str) -> Measured:
    """Start, idle memory, throughput of every shape, latency at a fixed rate, and the memory after all that."""
    with _running(params, folder) as (broker, start_s):
        found: Measured = {"start_s": start_s, "idle_mb": settled_rss_mb(broker.pid, _IDLE_S)}
        warm = {"size": 100, "partitions": 4, "compression": "none", "seconds": params["warm_s"]}
        _throughput(broker, "warm", warm, params["producers"])
        for number, shape in enumerate(params["shapes"]):
            measured = _throughput(broker, f"throughput-{number}", shape["load"], params["producers"])
            found |= {f"{shape['key']} {name}": value for name, value in measured.items()}
        for number, shape in enumerate(params["latencies"]):
            measured = _latency(broker, f"latency-{number}", shape["load"])
            found |= {f"{shape['key']} {name}": value for name, value in measured.items()}
        found["loaded_mb"] = rss_mb(broker.pid)
    return found


@case("kafka.partitions")
def partitions(params: Params, folder: str) -> Measured:
    """Many partitions that nobody uses: made, idle, and after a restart."""
    with _running(params, folder) as (broker, _):
        idle = settled_rss_mb(broker.pid, _IDLE_S)
        started = time.monotonic()
        for number in range(0, params["partitions"], _CROWD):
            create(broker, f"crowd-{number}", min(_CROWD, params["partitions"] - number))
        made_s = time.monotonic() - started
        measured = {"made_s": params["partitions"] / made_s, "mb": settled_rss_mb(broker.pid, _IDLE_S)}
        measured["added_mb"] = measured["mb"] - idle
        cpu = cpu_s(broker.pid)
        time.sleep(_IDLE_S)
        measured["idle_cores"] = (cpu_s(broker.pid) - cpu) / _IDLE_S
        broker.stop()
        measured["restart_s"] = first_message_s(broker, "crowd-0")
        measured["restarted_mb"] = settled_rss_mb(broker.pid, _IDLE_S)
    return measured
