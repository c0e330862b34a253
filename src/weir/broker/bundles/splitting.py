"""A bundle is made two, so that a crash in between loses nothing, and no epoch goes back.

The mark in the bundle's own claim comes first. Then come the halves' claims, then the boundaries, and the claim
goes last. If its owner dies meanwhile, whoever is to have the bundle next does not take it, but ends the split:
the halves are that broker's in the next epoch. Had it taken the whole first, the former owner, which may be slow,
could still write halves of the epoch before."""

from contextlib import suppress

from weir.broker.bundles.held import HeldBundle
from weir.broker.bundles.ownership import BundleOwnership
from weir.meta import keys
from weir.model.bundles import BundleClaim, BundleName
from weir.model.errors import MetaConflictError


class Splitting:
    def __init__(self, ownership: BundleOwnership) -> None:
        self._ownership = ownership

    async def finish(self, bundle: BundleName, at: int, epoch: int) -> None:
        """End a split of a bundle whose marked claim is this broker's in this epoch, or was somebody else's in the
        one before. Fine to do again."""
        ownership = self._ownership
        halves = bundle.halves(at)
        claims = [await self._claim(half, epoch) for half in halves]
        await ownership.boundaries.split(bundle, at)
        self._hold(bundle, halves, claims)
        found = await ownership.claims.refresh(keys.claim(bundle))
        if found is not None:
            with suppress(MetaConflictError):  # somebody else ends it, too
                await ownership.claims.delete(found.key, expect=found.version)

    async def _claim(self, half: BundleName, epoch: int) -> BundleClaim:
        me = self._ownership.me
        mine = BundleClaim(me.broker_id, me.instance, epoch)

        def first(now: BundleClaim | None) -> BundleClaim:
            """It may be there already: by who began the split, in the same epoch or one before, or of a later
            one."""
            return mine if now is None or now.epoch < epoch else now

        return (await self._ownership.claims.upsert(keys.claim(half), first)).value

    def _hold(self, bundle: BundleName, halves: tuple[BundleName, BundleName], claims: list[BundleClaim]) -> None:
        """Topics that are loaded stay so, and are held by the halves."""
        ownership = self._ownership
        lease, parent = ownership.registration.lease, ownership.held.get(bundle)
        if lease is None:
            return
        held = []
        for half, claim in zip(halves, claims, strict=True):
            if ownership.registration.is_mine(claim):
                ownership.hold(HeldBundle(half, claim.epoch, lease))
                held.append(ownership.held[half])
        if parent is not None:
            if parent.held and len(held) == 2 and all(half.epoch == parent.epoch for half in held):
                parent.split(*held)
            ownership.forget(parent)
