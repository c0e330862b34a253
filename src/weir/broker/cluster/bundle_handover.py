"""Handover and split of bundles by their owner.

A split survives a crash at any step, and no epoch decreases. The owner marks the bundle's claim, creates the
claims of the halves, writes the boundaries, and deletes the claim, in this order. If the owner dies in between,
the next owner does not take the bundle but finishes the split, and owns the halves in the next epoch. If it took
the whole bundle first, a slow former owner could still write halves of the previous epoch.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from weir.broker.api.cluster import BundleInfo
from weir.broker.cluster.bundle_placement import choose
from weir.broker.cluster.ownership import BundleOwnership, OncePerKey, OwnedBundle, gathered
from weir.broker.cluster.registration import FeatureGate
from weir.broker.topics.lifecycle import PassOn
from weir.meta import keys
from weir.model.cluster import LEFT, Boundaries, BundleClaim, BundleName
from weir.model.errors import (
    InvalidNameError,
    MetaConflictError,
    MetaError,
    NotAllowedError,
    NotOwnerError,
    PeerUnsupportedError,
    WeirError,
)
from weir.model.ids import LedgerId
from weir.model.topics import NamespaceName, TopicName
from weir.stream.handover import Left


class Topics(Protocol):
    """The topics that this broker serves or loads."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def written(self) -> Sequence[TopicName]:
        """Topics with producers."""

    @property
    def last_ledger(self) -> LedgerId:
        """The highest ledger id of all served topics, or a higher one."""

    async def look_ahead(self, name: TopicName, *, above: LedgerId | None) -> None:
        """Read the metadata of a topic before this broker owns it. `above`: also create a ledger for its
        producers, with a higher id."""

    def was_left(self, name: TopicName, left: Left, epoch: int) -> None:
        """The former owner released the topic in this state; this broker continues in this leader epoch."""

    def all_passed(self) -> None:
        """The next owner has all unloaded topics: run deferred work, such as the close of ledgers."""

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        """Load a topic before its clients connect, so that the first one does not wait. `written`: it has
        producers."""

    async def write_down(self, name: TopicName) -> None:
        """Flush the state of a topic while it is still served, which shortens the unload."""

    async def unload(
        self, name: TopicName, reason: str = "the topic is unloaded", pass_on: PassOn | None = None
    ) -> None:
        """Finish pending work, close the topic's ledgers, and release it. If `pass_on` hands the final state to
        the next broker, the ledgers are closed later."""


class Successor(Protocol):
    async def get_ready(
        self,
        broker_id: str,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName],
        last_ledger: LedgerId,
    ) -> None:
        """Announce the bundle to its next owner, with the topics that have clients (`topics`) and producers
        (`written`, whose new ledgers follow `last_ledger`); returns when that broker is ready. Delivery is
        optional: the claim also announces the bundle."""

    async def pass_on(self, broker_id: str, topic: TopicName, left: Left, epoch: int) -> None:
        """Send the final state of a topic to its next owner, for this leader epoch. Raises unless the broker has
        confirmed it."""


class UntoldSuccessor:
    """Fills `Successor` if brokers have no peer connections."""

    async def get_ready(
        self,
        broker_id: str,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName],
        last_ledger: LedgerId,
    ) -> None:
        pass

    async def pass_on(self, broker_id: str, topic: TopicName, left: Left, epoch: int) -> None:
        raise PeerUnsupportedError("brokers have no connections to each other")


class NoTopics:
    """Fills `Topics` until `serve` sets the broker."""

    @property
    def names(self) -> Sequence[TopicName]:
        return ()

    @property
    def written(self) -> Sequence[TopicName]:
        return ()

    @property
    def last_ledger(self) -> LedgerId:
        return LedgerId(0)

    async def look_ahead(self, name: TopicName, *, above: LedgerId | None) -> None:
        pass

    def was_left(self, name: TopicName, left: Left, epoch: int) -> None:
        pass

    def all_passed(self) -> None:
        pass

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        pass

    async def write_down(self, name: TopicName) -> None:
        pass

    async def unload(
        self, name: TopicName, reason: str = "the topic is unloaded", pass_on: PassOn | None = None
    ) -> None:
        pass


class Splitting:
    def __init__(self, ownership: BundleOwnership) -> None:
        self._ownership = ownership

    async def finish(self, bundle: BundleName, at: int, epoch: int) -> None:
        """Finish the split of a bundle. Its marked claim is this broker's in this epoch, or was another broker's
        in the previous one. Idempotent."""
        ownership = self._ownership
        halves = bundle.halves(at)
        claims = [await self._claim(half, epoch) for half in halves]
        await ownership.boundaries.split(bundle, at)
        self._hold(bundle, halves, claims)
        found = await ownership.claims.refresh(keys.claim(bundle))
        if found is not None:
            with suppress(MetaConflictError):  # another broker finishes the split, too
                await ownership.claims.delete(found.key, expect=found.version)

    async def _claim(self, half: BundleName, epoch: int) -> BundleClaim:
        me = self._ownership.me
        mine = BundleClaim(me.broker_id, me.instance, epoch)

        def first(now: BundleClaim | None) -> BundleClaim:
            """Keep a claim of the same or a later epoch: the broker that began the split may have created it."""
            return mine if now is None or now.epoch < epoch else now

        return (await self._ownership.claims.upsert(keys.claim(half), first)).value

    def _hold(self, bundle: BundleName, halves: tuple[BundleName, BundleName], claims: list[BundleClaim]) -> None:
        """Own the halves; loaded topics stay loaded and belong to their half."""
        ownership = self._ownership
        lease, parent = ownership.registration.lease, ownership.held.get(bundle)
        if lease is None:
            return
        held = []
        for half, claim in zip(halves, claims, strict=True):
            if ownership.registration.is_mine(claim):
                ownership.hold(OwnedBundle(half, claim.epoch, lease))
                held.append(ownership.held[half])
        if parent is not None:
            if parent.held and len(held) == 2 and all(half.epoch == parent.epoch for half in held):
                parent.split(*held)
            ownership.forget(parent)


log = logging.getLogger(__name__)

#: Topics of a bundle that are closed or loaded concurrently.
_TOPICS_AT_ONCE = 64
_NO_LEDGER = LedgerId(0)


class BundleMoves:
    """Fills `api.Bundles`."""

    def __init__(self, ownership: BundleOwnership) -> None:
        self.ownership = ownership
        self._settings = ownership.settings
        self._successor: Successor = UntoldSuccessor()
        self._topics: Topics = NoTopics()
        self._splitting = Splitting(ownership)
        self._features = FeatureGate(lambda: ownership.registration.live)
        #: The running operation of each bundle; at most one.
        self._under_way: OncePerKey[BundleName] = OncePerKey(ownership.tasks)
        #: Topics of announced bundles, and whether they have producers: this broker loads them on arrival, before
        #: clients connect.
        self._expected: dict[BundleName, dict[TopicName, bool]] = {}
        ownership.on_arrival = self._arrived
        ownership.on_stray = self._put_straight
        ownership.end_split = self._end_split
        ownership.is_expected = self._expected.__contains__

    def serve(self, topics: Topics, successor: Successor | None = None) -> None:
        """Set the broker's topics, and the connection to successors."""
        self._topics = topics
        self._successor = successor or self._successor

    # --- lookup -------------------------------------------------------------------------------------------------

    def bundle_of(self, topic: TopicName) -> BundleName:
        return self.ownership.boundaries.bundle_of(topic)

    def of(self, namespace: NamespaceName) -> list[BundleInfo]:
        return [self._info(bundle) for bundle in self.ownership.boundaries.of(namespace).bundles(namespace)]

    def all(self) -> list[BundleInfo]:
        return [self._info(bundle) for bundle in self._known() if self.ownership.boundaries.has(bundle)]

    def _known(self) -> list[BundleName]:
        found = []
        for key in self.ownership.claims.items():
            try:
                found.append(keys.bundle_of(key))
            except InvalidNameError as bad:
                log.error("%s is not a valid key of a claim: %s", key, bad)
        return found

    def info(self, bundle: BundleName) -> BundleInfo:
        if not self.ownership.boundaries.has(bundle):
            raise NotAllowedError(f"bundle {bundle} does not exist", hint="list the namespace's bundles")
        return self._info(bundle)

    def _info(self, bundle: BundleName) -> BundleInfo:
        claim = self.ownership.claims.get(keys.claim(bundle)) or BundleClaim()
        holder = self.ownership.registration.holder(claim)
        owner = "" if holder is None else holder.broker_id
        return BundleInfo(bundle, owner, claim.epoch, claim.next)

    # --- exclusive operations -----------------------------------------------------------------------------------

    def _mine(self, bundle: BundleName) -> OwnedBundle:
        held = self.ownership.held.get(bundle)
        if held is not None and held.held:
            return held
        self.info(bundle)
        claim = self.ownership.claims.get(keys.claim(bundle))
        holder = self.ownership.registration.holder(claim)
        raise self.ownership.elsewhere(bundle, "" if holder is None else holder.broker_id)

    async def _sought(self, bundle: BundleName) -> None:
        """Wait until this broker owns the bundle; NotOwnerError names the owner or the next one. Reads the store:
        two brokers with late watches must not redirect a client to each other repeatedly."""
        if bundle not in self.ownership.held:
            self.info(bundle)
            with suppress(MetaError):
                await self.ownership.claims.refresh(keys.claim(bundle))
            await self.ownership.sought(bundle)
        self._mine(bundle)

    async def _alone(self, bundle: BundleName, work: Callable[[OwnedBundle], Coroutine[Any, Any, None]]) -> None:
        """Run an exclusive operation on an owned bundle. It continues if the caller is cancelled."""
        while (busy := self._under_way.under_way(bundle)) is not None:
            await asyncio.wait([busy])
        await self._under_way.ended(self._under_way.begin(bundle, work(self._mine(bundle))))

    # --- handover -----------------------------------------------------------------------------------------------

    async def hand_over(self, bundle: BundleName, to: str) -> None:
        await self._sought(bundle)
        if to not in self.ownership.registration.live:
            raise NotAllowedError(f"broker {to!r} is not registered", hint="list the registered brokers")
        if to not in self.ownership.candidates(bundle.namespace):
            raise NotAllowedError(
                f"broker {to!r} may not own {bundle}", hint="check the isolation policy of the namespace"
            )
        if to != self.ownership.me.broker_id:
            await self._alone(bundle, lambda held: self._hand_over(held, to))

    async def let_go(self, bundle: BundleName) -> None:
        await self.ownership.arrived(bundle)
        self._mine(bundle)
        await self._alone(bundle, lambda held: self._hand_over(held, ""))

    async def _hand_over(self, held: OwnedBundle, to: str) -> None:
        held.leaving, held.next = True, to
        try:
            if to:
                await self._change(held, lambda claim: replace(claim, next=to))
                await self._get_ready(held.name, to)
            if not held.held:  # lost and possibly acquired again, even in the same epoch
                raise NotOwnerError(f"ownership of {held.name} was lost during the handover", hint="try again")
        except WeirError:
            held.leaving, held.next = False, ""
            self._put_straight(held)
            raise
        held.closing = True
        reason = f"the topic moves to broker {to}" if to else "the bundle is unloaded"
        try:
            async with asyncio.timeout(self._settings.put_down_s):
                await self._put_down(held, reason, to)
        except TimeoutError:
            log.warning("topics of %s did not close in time (the next owner fences them)", held.name)
        await self._pass(held, to)
        self._topics.all_passed()

    def _put_straight(self, held: OwnedBundle) -> None:
        """Cancel a handover with an unknown outcome of its announcement: clear the successor in the claim."""
        self.ownership.tasks.spawn(self._clear_next(held), f"cancel handover of {held.name}")

    async def _clear_next(self, held: OwnedBundle) -> None:
        while held.held and not held.leaving:
            try:
                await self._change(held, lambda claim: replace(claim, next="") if claim.next else claim)
                break
            except NotOwnerError:
                break
            except WeirError as failed:
                log.warning(
                    "cancellation of the handover of %s not stored (repeated after a pause): %s", held.name, failed
                )
                await self.ownership.clock.sleep(self._settings.retry_s)

    async def _get_ready(self, bundle: BundleName, to: str) -> None:
        """Prepare the handover while this broker still serves clients; optional."""
        names = [name for name in self._topics.names if bundle.holds(name)]
        written = [name for name in self._topics.written if bundle.holds(name)]
        try:
            async with asyncio.timeout(self._settings.ready_s):
                await asyncio.gather(
                    self._tell(bundle, to, names, written),
                    gathered((self._write_down(name) for name in names), _TOPICS_AT_ONCE),
                )
        except TimeoutError:
            log.info("handover of %s to broker %s continues without preparation: timeout", bundle, to)

    async def _tell(
        self, bundle: BundleName, to: str, names: Sequence[TopicName], written: Sequence[TopicName]
    ) -> None:
        try:
            await self._successor.get_ready(to, bundle, names, written, self._topics.last_ledger)
        except WeirError as failed:
            log.info("announcement to broker %s of bundle %s failed: %s", to, bundle, failed)

    async def _write_down(self, name: TopicName) -> None:
        try:
            await self._topics.write_down(name)
        except WeirError as failed:
            log.info("early flush of %s failed (the unload repeats it): %s", name, failed)

    async def _put_down(self, held: OwnedBundle, reason: str, to: str) -> None:
        """Unload topics until none is loaded, including topics whose load had begun before."""
        while held.held and (names := [name for name in self._topics.names if held.name.holds(name)]):
            passing = ((name, self._passing(name, to, held) if to else None) for name in names)
            await gathered((self._unload(name, reason, pass_on) for name, pass_on in passing), _TOPICS_AT_ONCE)

    async def _unload(self, name: TopicName, reason: str, pass_on: PassOn | None) -> None:
        try:
            await self._topics.unload(name, reason, pass_on)
        except WeirError as failed:
            log.info("unload of %s failed: %s", name, failed)

    def _passing(self, name: TopicName, to: str, held: OwnedBundle) -> PassOn:
        async def pass_on(left: Left) -> bool:
            if not held.held or not self._features.uses(LEFT):
                return False
            try:
                await self._successor.pass_on(to, name, left, held.next_epoch)
            except WeirError as failed:
                log.info(
                    "handover of the state of %s to broker %s failed (the topic is closed instead): %s",
                    name,
                    to,
                    failed,
                )
                return False
            return True

        return pass_on

    async def _pass(self, held: OwnedBundle, to: str) -> None:
        """Pass the claim on; retry until the lease ends, because no other broker can own the bundle before."""
        epoch, registration = held.epoch, self.ownership.registration

        def passed(claim: BundleClaim) -> BundleClaim:
            heir = registration.live.get(to)
            if heir is None:
                return BundleClaim(epoch=epoch)
            return BundleClaim(heir.broker_id, heir.instance, epoch + 1)

        while held.held:
            try:
                await self._change(held, passed)
                break
            except NotOwnerError:
                break
            except WeirError as failed:
                log.warning("new claim of %s not stored (repeated after a pause): %s", held.name, failed)
                await self.ownership.clock.sleep(self._settings.retry_s)
        self.ownership.forget(held)

    async def _change(self, held: OwnedBundle, change: Callable[[BundleClaim], BundleClaim]) -> None:
        """Change this broker's claim; NotOwnerError if another broker owns the bundle."""

        def mine(claim: BundleClaim) -> BundleClaim:
            if not self.ownership.registration.is_mine(claim) or claim.epoch != held.epoch:
                raise self.ownership.elsewhere(held.name, claim.owner)
            return change(claim)

        await self.ownership.claims.change(keys.claim(held.name), mine)

    # --- handover to this broker --------------------------------------------------------------------------------

    async def expect(
        self,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName] = (),
        last_ledger: LedgerId = _NO_LEDGER,
    ) -> None:
        """Prepare for the handover of a bundle to this broker, with these topics, of which some have producers
        (`written`); returns when ready."""
        held = self.ownership.held.get(bundle)
        self._expected[bundle] = dict.fromkeys(topics, False) | dict.fromkeys(written, True)
        if held is not None and held.held:
            self._arrived(held)
        else:
            above = dict.fromkeys(topics, None) | dict.fromkeys(written, last_ledger)
            looks = (self._look_ahead(name, ledger) for name, ledger in above.items())
            looking = self.ownership.tasks.spawn(gathered(looks, _TOPICS_AT_ONCE), f"prepare {bundle}")
            await asyncio.wait([looking])  # continues if the other broker stops waiting

    async def was_left(self, topic: TopicName, left: Left, epoch: int) -> None:
        """Receive the final state of a topic from its owner, before the handover of its bundle in this epoch."""
        self._topics.was_left(topic, left, epoch)

    async def _look_ahead(self, name: TopicName, above: LedgerId | None) -> None:
        try:
            await self._topics.look_ahead(name, above=above)
        except WeirError as failed:
            log.info("prefetch of %s failed (it loads after the handover): %s", name, failed)

    def _arrived(self, held: OwnedBundle) -> None:
        topics = self._expected.pop(held.name, {})
        if topics:
            self.ownership.tasks.spawn(self._load_all(topics), f"load {held.name}")

    async def _load_all(self, topics: dict[TopicName, bool]) -> None:
        """Load the topics, those with producers first."""
        ordered = sorted(topics.items(), key=lambda item: not item[1])
        await gathered((self._load(name, written) for name, written in ordered), _TOPICS_AT_ONCE)

    async def _load(self, name: TopicName, written: bool) -> None:
        try:
            await self._topics.load_ahead(name, written=written)
        except WeirError as failed:
            log.info("early load of %s failed (the first client loads it): %s", name, failed)

    # --- split --------------------------------------------------------------------------------------------------

    async def split(self, bundle: BundleName, at: int | None = None) -> tuple[BundleName, BundleName]:
        halves = bundle.halves(at)
        await self._sought(bundle)
        await self._alone(bundle, lambda held: self._split(held, halves[1].low))
        return halves

    async def _split(self, held: OwnedBundle, at: int) -> None:
        def marked(claim: BundleClaim) -> BundleClaim:
            if claim.split not in (0, at):
                raise NotAllowedError(f"a split of {held.name} at another hash is in progress", hint="try again")
            return claim if claim.split == at else replace(claim, split=at)

        await self._change(held, marked)
        await self._splitting.finish(held.name, at, held.epoch)

    def _end_split(self, bundle: BundleName, claim: BundleClaim) -> None:
        if bundle not in self._under_way:
            epoch = claim.epoch if self.ownership.registration.is_mine(claim) else claim.epoch + 1
            self._under_way.begin(bundle, self._splitting.finish(bundle, claim.split, epoch))

    async def divide(self, namespace: NamespaceName, bundles: int) -> None:
        await self.divide_at(namespace, Boundaries.even(bundles))

    async def divide_at(self, namespace: NamespaceName, boundaries: Boundaries) -> None:
        """`divide`, with these boundaries."""
        if any(bundle.namespace == namespace for bundle in self._known()):
            raise NotAllowedError(f"{namespace} is divided into bundles already", hint="split a bundle instead")
        await self.ownership.boundaries.divide(namespace, boundaries)

    async def look_again(self, namespace: NamespaceName) -> None:
        """Read the namespace's boundaries from the store."""
        await self.ownership.boundaries.refresh(namespace)

    # --- shutdown -----------------------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        return self.ownership.me.draining

    async def drain(self, reason: str = "the broker is drained") -> None:
        registration, me = self.ownership.registration, self.ownership.me.broker_id
        if all(broker.draining or broker.broker_id == me for broker in registration.live.values()):
            raise NotAllowedError("no other broker can take the bundles over")
        log.info("broker %s hands over all bundles: %s", me, reason)
        await registration.drain(True)
        while mine := list(self.ownership.held):
            outcomes = await gathered((self._move_away(bundle) for bundle in mine), self._settings.moves_at_once)
            failures = [failure for failure in outcomes if failure is not None]
            if len(failures) == len(mine):
                raise failures[0]

    async def _move_away(self, bundle: BundleName) -> WeirError | None:
        me = self.ownership.me.broker_id
        try:
            to = choose(bundle, [name for name in self.ownership.candidates(bundle.namespace) if name != me])
            await (self.let_go(bundle) if to is None else self.hand_over(bundle, to))
        except NotOwnerError:
            return None
        except WeirError as failed:
            return failed
        return None

    async def resume(self) -> None:
        await self.ownership.registration.drain(False)

    async def leave(self) -> None:
        """Hand over all bundles before the shutdown, if another broker can own them, with a timeout."""
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await self.drain("the broker shuts down")
        except (WeirError, TimeoutError) as failed:
            log.info("not all bundles were handed over (the rest is released with the lease): %s", failed)
