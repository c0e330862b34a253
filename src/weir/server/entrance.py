"""One address for newcomers: what comes there is passed on to one broker after the other.

Clients of Kafka and Pulsar learn there which broker has what, and then go to that broker's own address; so only
the first words of each client, and admin requests, go this way.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from weir.model.errors import ConnectionLostError, NetworkError
from weir.runtime.interfaces import Connection, Listener, Runtime
from weir.runtime.tasks import TaskScope
from weir.server.addresses import Address

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 2.0
_ACCEPT_PAUSE_S = 0.1
_MAX_CONNECTIONS = 10_000


class Entrance:
    """Listens at one address and knows where brokers are. `start`, then `close`."""

    def __init__(self, runtime: Runtime, at: Address, brokers: Callable[[], Sequence[Address]]) -> None:
        """`brokers`: those that are worth trying, asked for every newcomer."""
        self._runtime = runtime
        self._at = at
        self._brokers = brokers
        self._listener: Listener | None = None
        self._turn = 0
        self._open = 0
        self._tasks = TaskScope(f"entrance {at}")

    @property
    def address(self) -> Address:
        port = self._at.port if self._listener is None else self._listener.port
        return Address(self._at.host, port)

    async def bind(self) -> None:
        """Take the address, or raise AddressInUseError; who comes early waits."""
        self._listener = await self._runtime.net.listen(self._at.host, self._at.port)

    def start(self) -> None:
        if self._listener is not None:
            self._tasks.spawn(self._accept(self._listener), "accept")

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._tasks.close()

    async def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = await listener.accept()
            except ConnectionLostError:
                return
            except NetworkError as failure:
                log.warning("cannot accept a connection: %s", failure)
                await self._runtime.clock.sleep(_ACCEPT_PAUSE_S)
                continue
            if self._open >= _MAX_CONNECTIONS:
                connection.abort()
                continue
            self._open += 1
            self._tasks.spawn(self._serve(connection), "newcomer")

    async def _serve(self, near: Connection) -> None:
        far: Connection | None = None
        try:
            far = await self._reach()
            if far is None:
                near.abort()
                return
            passing = [asyncio.ensure_future(_pass(near, far)), asyncio.ensure_future(_pass(far, near))]
            try:
                await asyncio.wait(passing)
            finally:
                for task in passing:
                    task.cancel()
        finally:
            self._open -= 1
            near.close()
            if far is not None:
                far.close()

    async def _reach(self) -> Connection | None:
        """A connection to the broker whose turn it is, or to the next that answers."""
        brokers = self._brokers()
        self._turn += 1
        for step in range(len(brokers)):
            where = brokers[(self._turn + step) % len(brokers)]
            try:
                return await self._runtime.net.connect(where.host, where.port, timeout_s=_CONNECT_TIMEOUT_S)
            except NetworkError as failure:
                log.debug("%s does not answer: %s", where, failure)
        return None


async def _pass(source: Connection, sink: Connection) -> None:
    try:
        while data := await source.receive():
            sink.write([data])
            await sink.drain()
    except NetworkError:
        sink.abort()
        return
    sink.close()
