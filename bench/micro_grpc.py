"""CPU per unary gRPC call: Weir's HTTP/2 against `h2` with the same framing, and `grpcio`'s asyncio server.

    python -m bench.micro_grpc

All serve the same request, with the headers that RocketMQ's Python client sends, and answer 100 bytes, over a
socket to a grpcio client in another process; the CPU time of the server's process is taken per call (`os.times`).
"""

import asyncio
import json
import multiprocessing
import os
import sys
import time
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events

from weir.wire.http2 import grpc as framing
from weir.wire.http2.connection import Http2Server
from weir.wire.http2.frames import Limits
from weir.wire.http2.streams import Body

PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"
REQUEST, RESPONSE = b"q" * 300, b"a" * 100
METADATA = [
    ("x-mq-language", "PYTHON"),
    ("x-mq-protocol", "GRPC_V2"),
    ("x-mq-client-version", "5.1.2"),
    ("x-mq-date-time", "20261116T150000Z"),
    ("x-mq-request-id", "9f0d3a80-6f2b-4d0c-9a6b-0d6a3a6a1c55"),
    ("x-mq-client-id", "host@1234@0@dmwqg6wpxfvx"),
    ("x-mq-namespace", ""),
    (
        "authorization",
        "MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, "
        "Signature=0123456789abcdef0123456789abcdef01234567",
    ),
]
_CALLS = 3_000
_AT_ONCE = 16


class WeirProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self._http2 = Http2Server(Limits())
        self._readers: dict[int, framing.MessageReader] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._http2.receive(data, time.monotonic()):
            if isinstance(event, Body):
                reader = self._readers.setdefault(event.stream, framing.MessageReader(1 << 20))
                if reader.feed(event.data):
                    del self._readers[event.stream]
                    body = framing.message(RESPONSE)
                    self._http2.answer(event.stream, framing.HEAD, body, framing.TRAILERS_OK)
        self._flush()

    def _flush(self) -> None:
        if out := self._http2.take_output():
            self._transport.write(b"".join(out))


class H2Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self._http2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self._readers: dict[int, framing.MessageReader] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._http2.initiate_connection()
        self._transport.write(self._http2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._http2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                reader = self._readers.setdefault(event.stream_id, framing.MessageReader(1 << 20))
                if reader.feed(event.data):
                    del self._readers[event.stream_id]
                    self._answer(event.stream_id)
        self._transport.write(self._http2.data_to_send())

    def _answer(self, stream: int) -> None:
        self._http2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        self._http2.send_data(stream, framing.message(RESPONSE))
        self._http2.send_headers(stream, [("grpc-status", "0")], end_stream=True)


async def _served(kind: str, told: Any) -> None:
    if kind == "grpcio":
        server = grpc.aio.server()

        async def answer(request: bytes, context: Any) -> bytes:
            return RESPONSE

        handler = grpc.unary_unary_rpc_method_handler(answer)
        service, _, method = PATH[1:].partition("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        told.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
    else:
        made = WeirProtocol if kind == "weir" else H2Protocol
        served = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        told.send(served.sockets[0].getsockname()[1])
    while True:
        await asyncio.sleep(0.01)
        if told.poll():
            told.recv()
            told.send(sum(os.times()[:2]))


def _process(kind: str, told: Any) -> None:
    try:
        import uvloop

        if kind != "grpcio":
            uvloop.install()
    except ImportError:
        pass
    asyncio.run(_served(kind, told))


async def _load(port: int, calls: int) -> float:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(PATH)

        async def some() -> None:
            for _ in range(calls // _AT_ONCE):
                await call(REQUEST, metadata=METADATA, timeout=30)

        began = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
        return time.perf_counter() - began


def measured(kind: str) -> dict[str, float]:
    """CPU and wall time per call, in microseconds."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_process, args=(kind, there), daemon=True)
    process.start()
    port = here.recv()
    asyncio.run(_load(port, 500))

    def cpu() -> float:
        here.send(None)
        return float(here.recv())

    before = cpu()
    wall = asyncio.run(_load(port, _CALLS))
    used = cpu() - before
    process.kill()
    return {"cpu_us": round(used / _CALLS * 1e6, 1), "wall_us": round(wall / _CALLS * 1e6, 1)}


def main() -> None:
    found = {
        kind: min((measured(kind) for _ in range(3)), key=lambda one: one["cpu_us"])
        for kind in sys.argv[1:] or ("weir", "h2", "grpcio")
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
