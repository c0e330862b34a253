"""A bundle that this broker has, and what its topics hold of it."""

import asyncio

from weir.meta.interfaces import Lease
from weir.model.bundles import BundleName


class HeldBundle:
    """Had until it is let go of, handed over, split, or the lease is lost."""

    def __init__(self, name: BundleName, epoch: int, lease: Lease) -> None:
        self.name = name
        self.epoch = epoch
        #: Nothing more of it is loaded here: it is let go of, or handed over to `next`.
        self.leaving = False
        self.next = ""
        #: Topics are closed for `next`: nothing more is served in this epoch, whoever gets the bundle in the end.
        self.closing = False
        self._lease = lease
        self._ended = asyncio.Event()
        self._halves: tuple[HeldBundle, HeldBundle] | None = None

    @property
    def held(self) -> bool:
        return not self._ended.is_set() and self._lease.alive

    @property
    def next_epoch(self) -> int:
        """The epoch in which `next` will serve it, as far as that is sure."""
        return self.epoch + self.closing

    async def lost(self) -> None:
        """Wait until it is no longer held."""
        await self._ended.wait()

    def end(self) -> None:
        self._ended.set()

    def split(self, low: "HeldBundle", high: "HeldBundle") -> None:
        """Its topics are held by these from now on."""
        self._halves = low, high
        self.end()

    def at(self, value: int) -> "HeldBundle":
        """The one by which a topic of this hash is held, however often it was split."""
        now = self
        while now._halves is not None:
            low, high = now._halves
            now = low if low.name.has_hash(value) else high
        return now


class TopicClaim:
    """Fills `ports.Claim`: a topic is held with its bundle, also when that is split."""

    __slots__ = ("_bundle", "_hash")

    def __init__(self, bundle: HeldBundle, value: int) -> None:
        self._bundle = bundle
        self._hash = value

    @property
    def bundle(self) -> HeldBundle:
        self._bundle = self._bundle.at(self._hash)
        return self._bundle

    @property
    def held(self) -> bool:
        return self.bundle.held

    @property
    def epoch(self) -> int:
        return self._bundle.epoch
