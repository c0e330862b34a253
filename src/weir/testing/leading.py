"""Who has which bundle in which epoch, as the metadata tells it, and what is promised of that."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.cluster import BundleName
from weir.runtime.interfaces import Runtime
from weir.testing.checking import Violation
from weir.wire.registry import decode_claim


@dataclass(frozen=True, slots=True)
class Led:
    """A claim as it was told. `start`: which start of which broker has it, "" if nobody has; `epoch` is -1 if
    there is no such bundle any more."""

    bundle: str
    start: str
    epoch: int


async def claims_told(core: MemoryCore, runtime: Runtime) -> AsyncIterator[Led]:
    """Every change of a claim, for ever."""
    async for change in MemoryMeta(core, runtime).watch(keys.CLAIMS, since=0):
        bundle = str(keys.bundle_of(change.key))
        if change.value is None:
            yield Led(bundle, "", -1)
            continue
        claim = decode_claim(change.value)
        yield Led(bundle, f"{claim.owner}/{claim.instance}" if claim.owner else "", claim.epoch)


def going_back(told: Iterable[tuple[Any, Led]]) -> list[Violation]:
    """Where the leader epoch of a bundle goes back, or stands still when it changes hands; halves go on where the
    whole was. Each claim comes with the operation that tells it."""
    promise = "a leader epoch never goes back, and grows with each change of hands"
    found = []
    latest: dict[BundleName, tuple[Any, Led]] = {}
    gone: set[BundleName] = set()
    for op, led in told:
        bundle = BundleName.parse(led.bundle)
        if led.epoch < 0:
            gone.add(bundle)
            continue
        if bundle in gone:
            continue  # by somebody who had not heard of the split, and who serves nothing by it
        before = latest.get(bundle) or _split_from(bundle, latest)
        if before is not None:
            was = before[1]
            changed = led.start and led.start != was.start and was.bundle == led.bundle
            if led.epoch < was.epoch or (changed and led.epoch == was.epoch and was.start):
                sentence = f"{led.bundle} is {led.start}'s in epoch {led.epoch} after {was.start}'s {was.epoch}"
                found.append(Violation(promise, sentence, (before[0], op)))
        latest[bundle] = (op, led)
    return found


def _split_from(bundle: BundleName, latest: dict[BundleName, tuple[Any, Led]]) -> tuple[Any, Led] | None:
    """The last that was told of the smallest bundle that this one is a part of."""
    around = [
        b for b in latest if b.namespace == bundle.namespace and b.low <= bundle.low and bundle.high <= b.high
    ]
    return latest[min(around, key=lambda b: b.high - b.low)] if around else None
