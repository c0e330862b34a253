"""What holds a writer back is Weir's own count, whichever transport of whichever interpreter carries the bytes."""

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from weir.client.access import trusting
from weir.model.errors import ConnectionLostError
from weir.model.ids import Buffer
from weir.runtime.real_net import PIECE_BYTES, RealConnection, RealNetwork, Sender
from weir.testing.certificates import make_certificate

HIGH = 1024 * 1024
MUCH = 64 * HIGH


class Transport:
    """Sends nothing until told to; says that it is full only when asked by `write` or told its limits."""

    def __init__(self) -> None:
        self.held: list[Buffer] = []
        self.sent = bytearray()
        self.sender: Sender | None = None
        self._high = 0
        self._paused = False

    def write(self, data: Buffer) -> None:
        assert len(data), "an empty buffer is never done"
        self.held.append(data)
        self._look()

    def writelines(self, data: Sequence[Buffer]) -> None:
        assert all(map(len, data)), "an empty buffer is never done"
        self.held += data

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.held))

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high
        self._look()

    def send(self) -> None:
        for each in self.held:
            self.sent += each
        self.held = []
        if self._paused and self.sender is not None:
            self._paused = False
            self.sender.resume()

    def _look(self) -> None:
        if self.get_write_buffer_size() > self._high and not self._paused and self.sender is not None:
            self._paused = True
            self.sender.pause()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def sender(transport: Transport) -> Sender:
    transport.sender = Sender(transport, HIGH)  # type: ignore[arg-type]
    return transport.sender


@pytest.mark.parametrize("buffers", [1, 2, 100])
def test_a_transport_that_does_not_say_it_is_full_is_given_no_more_than_its_mark_and_a_piece(
    transport: Transport, sender: Sender, buffers: int
) -> None:
    for n in range(200):
        sender.write([bytes([n]) * (200_000 // buffers)] * buffers)
    assert HIGH < transport.get_write_buffer_size() <= HIGH + PIECE_BYTES
    assert transport.get_write_buffer_size() + sender.waiting_bytes == 200 * 200_000


def test_what_waits_follows_in_order_when_the_transport_has_room(transport: Transport, sender: Sender) -> None:
    said = [bytes([n]) * size for n in range(100) for size in (1, 70_000, 3)]
    for at in range(0, len(said), 3):
        sender.write([*said[at : at + 3], b""])
    while transport.held:
        transport.send()
    assert transport.sent == b"".join(said)
    assert sender.waiting_bytes == 0


async def test_a_writer_waits_until_everything_was_given_and_the_transport_has_room(
    transport: Transport, sender: Sender
) -> None:
    sender.write([bytes(HIGH)] * 3)
    draining = asyncio.create_task(sender.drain())
    while sender.waiting_bytes:
        await asyncio.sleep(0)
        assert not draining.done()
        transport.send()
    transport.send()
    await draining


def test_one_large_buffer_is_given_in_pieces_and_not_copied(transport: Transport, sender: Sender) -> None:
    large = bytes(8 * HIGH)
    sender.write([large])
    assert all(isinstance(each, memoryview) and each.obj is large for each in transport.held)
    assert max(map(len, transport.held)) == PIECE_BYTES


def test_before_it_closes_a_transport_is_given_all_that_waits(transport: Transport, sender: Sender) -> None:
    sender.write([b"a" * 5 * HIGH, b"b"])
    sender.finish()
    transport.send()
    assert transport.sent == b"a" * 5 * HIGH + b"b"


# --- the transports there are -------------------------------------------------------------------------------

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main)

    return run


@pytest.fixture(params=["plain", "tls"])
def contexts(request: pytest.FixtureRequest, tmp_path: Path) -> "Contexts":
    """Of a server and of its client."""
    if request.param == "plain":
        return None, None
    made = make_certificate(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(made.file, made.key_file)
    return serving, trusting(str(made.file))


Run = Callable[[Coroutine[Any, Any, None]], None]
Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]


async def pair(contexts: Contexts) -> tuple[RealConnection, RealConnection]:
    net = RealNetwork()
    listener = await net.listen("127.0.0.1", 0, tls=contexts[0])
    far = await net.connect("127.0.0.1", listener.port, tls=contexts[1])
    near = await listener.accept()
    listener.close()
    return near, far


@pytest.mark.slow
@pytest.mark.parametrize("buffers", [1, 16])
def test_a_peer_that_reads_nothing_costs_a_transport_its_mark_and_not_what_was_said(
    run: Run, contexts: Contexts, buffers: int
) -> None:
    async def main() -> None:
        near, far = await pair(contexts)
        said = [bytes([n]) * (MUCH // 64 // buffers) for n in range(64)]
        for each in said:
            near.write([each] * buffers)
        draining = asyncio.create_task(near.drain())
        transport = near._transport
        assert transport is not None
        for _ in range(10):
            await asyncio.sleep(0)
            assert transport.get_write_buffer_size() <= 2 * (HIGH + PIECE_BYTES)
        assert not draining.done()
        digest, came = hashlib.sha256(), 0
        while came < MUCH:
            piece = await far.receive()
            digest.update(piece)
            came += len(piece)
        await draining
        assert digest.digest() == hashlib.sha256(b"".join(each * buffers for each in said)).digest()
        far.abort()
        near.abort()

    run(main())


@pytest.mark.slow
def test_who_closes_or_breaks_while_much_waits_is_rid_of_it(run: Run, contexts: Contexts) -> None:
    async def main() -> None:
        near, far = await pair(contexts)
        near.write([b"a" * MUCH, b"b"])
        near.close()
        near.write([b"too late"])
        came = 0
        while piece := await far.receive():
            came += len(piece)
        assert came == MUCH + 1
        far.close()
        near, far = await pair(contexts)
        near.write([bytes(MUCH)] * 2)
        draining = asyncio.create_task(near.drain())
        await asyncio.sleep(0)
        near.abort()
        with pytest.raises(ConnectionLostError):
            while await far.receive():
                pass
        with pytest.raises(ConnectionLostError):
            await draining
        far.close()

    run(main())
