"""A TCP proxy between a client and its server, for tests of what a client does when the way is cut or silent."""

import asyncio

from weir.model.errors import ConnectionLostError
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.tasks import TaskScope


class Proxy:
    """A TCP proxy whose connections can be cut, or made silent."""

    def __init__(self, runtime: Runtime, port: int) -> None:
        self._net = runtime.net
        self._target = port
        self._tasks = TaskScope("proxy")
        self._open: list[Connection] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.accepted = 0
        self.port = 0

    async def start(self) -> None:
        self._listener = await self._net.listen("127.0.0.1", 0)
        self.port = self._listener.port
        self._tasks.spawn(self._serve(), "serve")

    async def _serve(self) -> None:
        while True:
            near = await self._listener.accept()
            self.accepted += 1
            far = await self._net.connect("127.0.0.1", self._target)
            self._open += [near, far]
            self._tasks.spawn(self._pump(near, far), "up")
            self._tasks.spawn(self._pump(far, near), "down")

    async def _pump(self, source: Connection, sink: Connection) -> None:
        try:
            while data := await source.receive():
                await self._flowing.wait()
                sink.write([data])
                await sink.drain()
        except ConnectionLostError:
            pass
        sink.close()

    def cut(self) -> None:
        for connection in self._open:
            connection.abort()
        self._open.clear()

    def freeze(self) -> None:
        """Connections stand, nothing passes: as when a machine on the way has vanished."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    async def close(self) -> None:
        self._listener.close()
        await self._tasks.close()
        self.cut()
