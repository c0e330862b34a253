"""A whole broker under PerfTest and pika: one case is one life of one broker; Weir and RabbitMQ take turns."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bench import perf_test
from bench.brokers import WeirAmqp, cpu_s, settled_rss_mb
from bench.case import Measured, Params, case
from bench.loaders import Loader, together
from bench.rabbitmq_peer import RabbitMq

_MODULE = "bench.amqp_loader"
_START_TIMEOUT_S = 120.0
_IDLE_S = 3.0


class Broker(Protocol):
    #: `host:port`.
    amqp: str
    url: str

    def start(self) -> None: ...

    @property
    def pid(self) -> int: ...

    def stop(self) -> None: ...


@contextmanager
def _running(params: Params, folder: str) -> Iterator[tuple[Broker, float]]:
    """The broker, and after how many seconds it confirmed the first message."""
    place = Path(folder)
    # Without its management plugin, whose statistics cost a part of every message.
    broker: Broker = RabbitMq(place, plugins=()) if params["broker"] == "rabbitmq" else WeirAmqp(place)
    try:
        began = time.monotonic()
        broker.start()
        _confirm_one(broker)
        yield broker, time.monotonic() - began
    finally:
        broker.stop()


def _confirm_one(broker: Broker) -> None:
    import pika
    from pika.exceptions import AMQPError

    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("first", durable=True)
            channel.basic_publish("", "first", b"first", pika.BasicProperties(delivery_mode=2), mandatory=True)
            channel.queue_delete("first")
            connection.close()
        except (AMQPError, OSError):
            if time.monotonic() > deadline:
                raise
            assert broker.pid, "it has ended, and says why"
            time.sleep(0.02)
        else:
            return


@case("amqp.perf")
def perf(params: Params, folder: str) -> Measured:
    """Rates, latency, and microseconds of CPU per delivered message, for each load in turn."""
    with _running(params, folder) as (broker, start_s):
        found: Measured = {"start_s": start_s, "idle_mb": settled_rss_mb(broker.pid, _IDLE_S)}
        for given in params["loads"]:
            load = perf_test.Load(**given)
            told = perf_test.run(broker.url, load, lambda: broker.pid)
            found |= {
                f"{load.key} sent_s": told.sent_s,
                f"{load.key} received_s": told.received_s,
                f"{load.key} p50_us": told.p50_us,
                f"{load.key} p99_us": told.p99_us,
                f"{load.key} cpu_us": told.broker_cpu_s / told.deliveries * 1e6,
                f"{load.key} client_us": told.client_cpu_s / told.deliveries * 1e6,
            }
        found["loaded_mb"] = settled_rss_mb(broker.pid, _IDLE_S)
    return found


@case("amqp.pika")
def pika_loads(params: Params, folder: str) -> Measured:
    """pika, a process that publishes and one that consumes: one by one with confirms, at once without."""
    with _running(params, folder) as (broker, _start_s):
        found: Measured = {}
        for load in params["loads"]:
            key, base = load["key"], {"url": broker.url, "queue": f"pika {load['key']}"} | load
            consumer, publisher = Loader(_MODULE, "consume", base), Loader(_MODULE, "publish", base)
            spent = cpu_s(broker.pid)
            received, sent = together([consumer, publisher])
            spent = cpu_s(broker.pid) - spent
            found |= {
                f"{key} sent_s": sent["count"] / sent["seconds"],
                f"{key} received_s": received["count"] / received["seconds"],
                f"{key} cpu_us": spent / sent["count"] * 1e6,
                f"{key} p50_us": sent["p50_us"],
                f"{key} p99_us": sent["p99_us"],
            }
    return found


@case("amqp.idle")
def idle(params: Params, folder: str) -> Measured:
    """Memory and CPU of connections that do nothing, each with a channel and a consumer of its own queue."""
    with _running(params, folder) as (broker, _start_s):
        before = settled_rss_mb(broker.pid, _IDLE_S)
        loader = Loader(_MODULE, "idle", {"amqp": broker.amqp, "connections": params["connections"]})
        loader.go()
        opened = loader.found()
        memory = settled_rss_mb(broker.pid, _IDLE_S)
        spent = cpu_s(broker.pid)
        time.sleep(_IDLE_S)
        cores = (cpu_s(broker.pid) - spent) / _IDLE_S
        loader.go()
        loader.end()
    count = params["connections"]
    return {
        "opened_s": count / opened["seconds"],
        "mb": memory,
        "kb_each": (memory - before) * 1000 / count,
        "idle_cores": cores,
    }
