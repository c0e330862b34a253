"""A simulated store of objects that all nodes of a world share: slow, failing, losing and damaging on demand."""

from collections.abc import AsyncIterable, Callable, Mapping
from random import Random

from weir.model.errors import ObjectMissingError, ObjectStoreError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Clock
from weir.runtime.object_store import ObjectStore

#: Called before each request with its kind and the object's name; raises what shall go wrong.
Fault = Callable[[str, str], None]


def _nothing(kind: str, name: str) -> None:
    pass


class SimObjects:
    """Fills `ObjectStores`. The objects outlive every node."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self.objects: dict[tuple[str, str], bytes] = {}
        self.fault: Fault = _nothing
        #: Chance that a request fails, and whether it was done nevertheless is as the dice say.
        self.failing = 0.0
        self.latency_s = 0.02
        self.requests: list[str] = []

    def open(self, url: str, options: Mapping[str, str]) -> ObjectStore:
        return _Store(self, url)

    def damage(self, number: int = 0) -> None:
        """A byte of an object is another one from now on."""
        key = sorted(self.objects)[number]
        data = bytearray(self.objects[key])
        data[len(data) // 3] ^= 0x40
        self.objects[key] = bytes(data)

    async def request(self, kind: str, name: str) -> bool:
        """Take the time that it takes; whether it fails after it is done."""
        self.requests.append(kind)
        self.fault(kind, name)
        await self._clock.sleep(self.latency_s * self._rng.random())
        fails = self._rng.random() < self.failing
        if fails and self._rng.random() < 0.5:
            raise ObjectStoreError(f"the store did not do {kind} {name}")
        return fails


class _Store:
    def __init__(self, objects: SimObjects, url: str) -> None:
        self._all = objects
        self._url = url

    async def put(self, name: str, pieces: AsyncIterable[Buffer]) -> int:
        data = bytearray()
        async for piece in pieces:
            data += piece
        lost = await self._all.request("put", name)
        self._all.objects[self._url, name] = bytes(data)
        self._all.fault("put done", name)
        self._answer("put", lost)
        return len(data)

    async def read(self, name: str, position: int, length: int) -> bytes:
        self._answer("read", await self._all.request("read", name))
        return self._get(name)[position : position + length]

    async def size(self, name: str) -> int:
        self._answer("size", await self._all.request("size", name))
        return len(self._get(name))

    async def delete(self, name: str) -> None:
        lost = await self._all.request("delete", name)
        self._all.objects.pop((self._url, name), None)
        self._answer("delete", lost)

    async def list(self) -> list[str]:
        self._answer("list", await self._all.request("list", ""))
        return sorted(name for url, name in self._all.objects if url == self._url)

    async def clear(self) -> None:
        for name in await self.list():
            await self.delete(name)

    def _get(self, name: str) -> bytes:
        found = self._all.objects.get((self._url, name))
        if found is None:
            raise ObjectMissingError(f"there is no {self._url}/{name}")
        return found

    @staticmethod
    def _answer(kind: str, lost: bool) -> None:
        if lost:
            raise ObjectStoreError(f"the answer to {kind} was lost")
