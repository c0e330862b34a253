"""A load on a broker by pika, in a process of its own: `python -m bench.amqp_loader ROLE '{...}'`.

It says `ready` once it is connected, begins at a line on its standard input, and ends with one JSON object on its
standard output.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import pika

from bench.loaders import wait_for_go
from bench.stats import latencies_us
from weir.wire.amqp.command_reader import CommandReader
from weir.wire.amqp.frames import PROTOCOL_HEADER, Role
from weir.wire.amqp.methods import Method, channel, connection, encode_method
from weir.wire.amqp.tables import Table

Params = dict[str, Any]
Found = dict[str, float]

_PREFETCH = 500
_TIMEOUT_S = 120.0
_AT_ONCE = 200
_FRAME_MAX = 131_072


def _declared(params: Params) -> Any:
    opened = pika.BlockingConnection(pika.URLParameters(params["url"]))
    made = opened.channel()
    made.queue_declare(params["queue"], durable=params["durable"])
    return opened, made


def _publish(params: Params) -> Found:
    """With confirms one by one, without them as fast as it goes; then wait until the broker has all of them."""
    opened, made = _declared(params)
    if params["durable"]:
        made.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2 if params["durable"] else 1)
    body, queue = bytes(params["size"]), params["queue"]
    wait_for_go()
    samples: list[int] = []
    began = time.monotonic()
    for _ in range(params["count"]):
        start = time.perf_counter_ns()
        made.basic_publish("", queue, body, properties)
        samples.append(time.perf_counter_ns() - start)
    made.flow(True)  # is answered when all before it was taken
    seconds = time.monotonic() - began
    opened.close()
    return {"count": params["count"], "seconds": seconds} | latencies_us(samples)


def _consume(params: Params) -> Found:
    """Take all that is announced, each acknowledged."""
    opened, made = _declared(params)
    made.basic_qos(prefetch_count=_PREFETCH)
    left = params["count"]

    def received(_channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        nonlocal left
        made.basic_ack(method.delivery_tag)
        left -= 1
        if not left:
            made.stop_consuming()

    made.basic_consume(params["queue"], received)
    wait_for_go()
    began = time.monotonic()
    made.start_consuming()
    seconds = time.monotonic() - began
    made.queue_delete(params["queue"])
    opened.close()
    return {"count": params["count"], "seconds": seconds}


# --- connections that do nothing ------------------------------------------------------------------------------


async def _opened(host: str, port: int, opened: list[asyncio.StreamWriter]) -> None:
    """One connection with one channel."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 12)
    commands = CommandReader(Role.CLIENT)

    async def ask(*methods: Method, number: int = 0) -> None:
        writer.write(b"".join(encode_method(number, method) for method in methods))
        while not list(commands.feed(await reader.read(1 << 12))):
            pass

    writer.write(PROTOCOL_HEADER)
    await ask()
    await ask(connection.StartOk(Table.of({}), "PLAIN", b"\0guest\0guest"))
    await ask(connection.TuneOk(10, _FRAME_MAX, 0), connection.Open("/"))
    await ask(channel.Open(), number=1)
    opened.append(writer)


async def _open_all(params: Params) -> tuple[float, list[asyncio.StreamWriter]]:
    host, _, port = params["amqp"].rpartition(":")
    opened: list[asyncio.StreamWriter] = []
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one() -> None:
        async with gate:
            await _opened(host, int(port), opened)

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(params["connections"])))
    return time.monotonic() - began, opened


def _idle(params: Params) -> None:
    """Open them, say how long that took, and hold them until told to go."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wait_for_go()
    loop = asyncio.new_event_loop()
    seconds, opened = loop.run_until_complete(_open_all(params))
    print(json.dumps({"seconds": seconds, "count": len(opened)}), flush=True)
    sys.stdin.readline()


_ROLES: dict[str, Callable[[Params], Found | None]] = {"publish": _publish, "consume": _consume, "idle": _idle}


if __name__ == "__main__":
    found = _ROLES[sys.argv[1]](json.loads(sys.argv[2]))
    if found is not None:
        print(json.dumps(found), flush=True)
