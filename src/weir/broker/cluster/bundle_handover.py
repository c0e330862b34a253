"""Bundles change hands, and are made two: what an owner does with what it has.

What handing over asks of the broker itself, and of the broker that gets the bundle.

A bundle is made two, so that a crash in between loses nothing, and no epoch goes back.

The mark in the bundle's own claim comes first. Then come the halves' claims, then the boundaries, and the claim
goes last. If its owner dies meanwhile, whoever is to have the bundle next does not take it, but ends the split:
the halves are that broker's in the next epoch. Had it taken the whole first, the former owner, which may be slow,
could still write halves of the epoch before.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from weir.broker.api.cluster import BundleInfo
from weir.broker.cluster.bundle_placement import choose
from weir.broker.cluster.ownership import BundleOwnership, HeldBundle, SharedWork, gathered
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
    """The topics that this broker serves, or loads at the moment."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def written(self) -> Sequence[TopicName]:
        """Those that have producers."""

    @property
    def last_ledger(self) -> LedgerId:
        """The last ledger of all that it serves, or a later one."""

    async def look_ahead(self, name: TopicName, *, above: LedgerId | None) -> None:
        """Know what can be known of a topic before it is this broker's. `above`: and make a ledger for its
        producers, with a higher id."""

    def was_left(self, name: TopicName, left: Left, epoch: int) -> None:
        """Its broker has let go of it so, for this one to go on, in this leader epoch."""

    def all_passed(self) -> None:
        """The next broker has what was unloaded: what was put off until then may be done."""

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        """Before its clients come: everything that the first of them would wait for. `written`: producers are
        among them."""

    async def write_down(self, name: TopicName) -> None:
        """Store now what is stored when the topic is unloaded, while it is served: unloading is short then."""

    async def unload(
        self, name: TopicName, reason: str = "the topic is unloaded", pass_on: PassOn | None = None
    ) -> None:
        """Finish what is under way, close its ledgers, and let go of it. `pass_on` may tell the next broker how it
        was left: then ledgers are closed later."""


class Successor(Protocol):
    async def get_ready(
        self,
        broker_id: str,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName],
        last_ledger: LedgerId,
    ) -> None:
        """Tell a broker that the bundle is about to be its, which of its topics have clients, and which of those
        producers, whose ledgers come after this one; done when it is ready. That it hears of it is not needed: the
        claim tells it, too."""

    async def pass_on(self, broker_id: str, topic: TopicName, left: Left, epoch: int) -> None:
        """Tell the broker how a topic was left that is about to be its, in this leader epoch. An error if it may
        not have heard."""


class UntoldSuccessor:
    """Fills `Successor` where brokers cannot speak to each other."""

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
        raise PeerUnsupportedError("brokers cannot speak to each other")


class NoTopics:
    """Fills `Topics` before there is a broker."""

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


log = logging.getLogger(__name__)

#: Topics of a bundle that are closed, or loaded, at the same time.
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
        #: What is being done with a bundle: one thing at a time.
        self._under_way: SharedWork[BundleName] = SharedWork(ownership.tasks)
        #: Topics of bundles that are about to come, and whether they are written to: they are loaded before
        #: clients ask.
        self._expected: dict[BundleName, dict[TopicName, bool]] = {}
        ownership.on_arrival = self._arrived
        ownership.on_stray = self._put_straight
        ownership.end_split = self._end_split
        ownership.is_expected = self._expected.__contains__

    def serve(self, topics: Topics, successor: Successor | None = None) -> None:
        """These are the topics that go with the bundles, and this is how another broker is told to expect them."""
        self._topics = topics
        self._successor = successor or self._successor

    # --- what there is ------------------------------------------------------------------------------------------

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
                log.error("%s is no bundle's claim: %s", key, bad)
        return found

    def info(self, bundle: BundleName) -> BundleInfo:
        if not self.ownership.boundaries.has(bundle):
            raise NotAllowedError(f"there is no bundle {bundle}", hint="look at the namespace's bundles")
        return self._info(bundle)

    def _info(self, bundle: BundleName) -> BundleInfo:
        claim = self.ownership.claims.get(keys.claim(bundle)) or BundleClaim()
        holder = self.ownership.registration.holder(claim)
        owner = "" if holder is None else holder.broker_id
        return BundleInfo(bundle, owner, claim.epoch, claim.next)

    # --- one thing at a time ------------------------------------------------------------------------------------

    def _mine(self, bundle: BundleName) -> HeldBundle:
        held = self.ownership.held.get(bundle)
        if held is not None and held.held:
            return held
        self.info(bundle)
        claim = self.ownership.claims.get(keys.claim(bundle))
        holder = self.ownership.registration.holder(claim)
        raise self.ownership.elsewhere(bundle, "" if holder is None else holder.broker_id)

    async def _sought(self, bundle: BundleName) -> None:
        """It is this broker's, by now; NotOwnerError names whose it is, or is to be, by the store's own word: two
        brokers whose watches are late must not send who asks to each other, again and again."""
        if bundle not in self.ownership.held:
            self.info(bundle)
            with suppress(MetaError):
                await self.ownership.claims.refresh(keys.claim(bundle))
            await self.ownership.sought(bundle)
        self._mine(bundle)

    async def _alone(self, bundle: BundleName, work: Callable[[HeldBundle], Coroutine[Any, Any, None]]) -> None:
        """Do something with a bundle that is this broker's. It goes on, even if nobody waits for it any more."""
        while (busy := self._under_way.under_way(bundle)) is not None:
            await asyncio.wait([busy])
        await self._under_way.ended(self._under_way.begin(bundle, work(self._mine(bundle))))

    # --- handing over -------------------------------------------------------------------------------------------

    async def hand_over(self, bundle: BundleName, to: str) -> None:
        await self._sought(bundle)
        if to not in self.ownership.registration.live:
            raise NotAllowedError(f"there is no broker {to!r} now", hint="look at the brokers that there are")
        if to not in self.ownership.candidates(bundle.namespace):
            raise NotAllowedError(f"broker {to!r} may not have {bundle}", hint="look at the namespace's isolation")
        if to != self.ownership.me.broker_id:
            await self._alone(bundle, lambda held: self._hand_over(held, to))

    async def let_go(self, bundle: BundleName) -> None:
        await self.ownership.arrived(bundle)
        self._mine(bundle)
        await self._alone(bundle, lambda held: self._hand_over(held, ""))

    async def _hand_over(self, held: HeldBundle, to: str) -> None:
        held.leaving, held.next = True, to
        try:
            if to:
                await self._change(held, lambda claim: replace(claim, next=to))
                await self._get_ready(held.name, to)
            if not held.held:  # what there is of it now is had anew, in an epoch that may be the same
                raise NotOwnerError(f"{held.name} was lost while it was handed over", hint="try again")
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
            log.warning("topics of %s did not close in time; the next owner fences them", held.name)
        await self._pass(held, to)
        self._topics.all_passed()

    def _put_straight(self, held: HeldBundle) -> None:
        """A hand-over of which nobody knows whether it had begun does not go on: nobody is to have it next."""
        self.ownership.tasks.spawn(self._clear_next(held), f"keep {held.name}")

    async def _clear_next(self, held: HeldBundle) -> None:
        while held.held and not held.leaving:
            try:
                await self._change(held, lambda claim: replace(claim, next="") if claim.next else claim)
                break
            except NotOwnerError:
                break
            except WeirError as failed:
                log.warning("%s is still said to go elsewhere: %s", held.name, failed)
                await self.ownership.clock.sleep(self._settings.retry_s)

    async def _get_ready(self, bundle: BundleName, to: str) -> None:
        """What can be done while clients are still served here: none of it is needed."""
        names = [name for name in self._topics.names if bundle.holds(name)]
        written = [name for name in self._topics.written if bundle.holds(name)]
        try:
            async with asyncio.timeout(self._settings.ready_s):
                await asyncio.gather(
                    self._tell(bundle, to, names, written),
                    gathered((self._write_down(name) for name in names), _TOPICS_AT_ONCE),
                )
        except TimeoutError:
            log.info("%s and broker %s are not ready for each other", bundle, to)

    async def _tell(
        self, bundle: BundleName, to: str, names: Sequence[TopicName], written: Sequence[TopicName]
    ) -> None:
        try:
            await self._successor.get_ready(to, bundle, names, written, self._topics.last_ledger)
        except WeirError as failed:
            log.info("broker %s could not be told to expect %s: %s", to, bundle, failed)

    async def _write_down(self, name: TopicName) -> None:
        try:
            await self._topics.write_down(name)
        except WeirError as failed:
            log.info("%s is written down when it is unloaded: %s", name, failed)

    async def _put_down(self, held: HeldBundle, reason: str, to: str) -> None:
        """Until nothing of it is loaded: what was being loaded when it began comes, and goes, too."""
        while held.held and (names := [name for name in self._topics.names if held.name.holds(name)]):
            passing = ((name, self._passing(name, to, held) if to else None) for name in names)
            await gathered((self._unload(name, reason, pass_on) for name, pass_on in passing), _TOPICS_AT_ONCE)

    async def _unload(self, name: TopicName, reason: str, pass_on: PassOn | None) -> None:
        try:
            await self._topics.unload(name, reason, pass_on)
        except WeirError as failed:
            log.info("%s was not unloaded: %s", name, failed)

    def _passing(self, name: TopicName, to: str, held: HeldBundle) -> PassOn:
        async def pass_on(left: Left) -> bool:
            if not held.held or not self._features.uses(LEFT):
                return False
            try:
                await self._successor.pass_on(to, name, left, held.next_epoch)
            except WeirError as failed:
                log.info("%s is closed, since broker %s does not know how it was left: %s", name, to, failed)
                return False
            return True

        return pass_on

    async def _pass(self, held: HeldBundle, to: str) -> None:
        """Tried for as long as the lease lasts: without the claim it is nobody's before that."""
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
                log.warning("%s could not be passed on yet: %s", held.name, failed)
                await self.ownership.clock.sleep(self._settings.retry_s)
        self.ownership.forget(held)

    async def _change(self, held: HeldBundle, change: Callable[[BundleClaim], BundleClaim]) -> None:
        """Change this broker's claim; NotOwnerError if it is no longer its."""

        def mine(claim: BundleClaim) -> BundleClaim:
            if not self.ownership.registration.is_mine(claim) or claim.epoch != held.epoch:
                raise self.ownership.elsewhere(held.name, claim.owner)
            return change(claim)

        await self.ownership.claims.change(keys.claim(held.name), mine)

    # --- being handed over to -----------------------------------------------------------------------------------

    async def expect(
        self,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName] = (),
        last_ledger: LedgerId = _NO_LEDGER,
    ) -> None:
        """Another broker is about to give this one a bundle with these topics, some of which are written to; done
        when this one is ready for them."""
        held = self.ownership.held.get(bundle)
        self._expected[bundle] = dict.fromkeys(topics, False) | dict.fromkeys(written, True)
        if held is not None and held.held:
            self._arrived(held)
        else:
            above = dict.fromkeys(topics, None) | dict.fromkeys(written, last_ledger)
            looks = (self._look_ahead(name, ledger) for name, ledger in above.items())
            looking = self.ownership.tasks.spawn(gathered(looks, _TOPICS_AT_ONCE), f"look at {bundle}")
            await asyncio.wait([looking])  # it goes on, should the other broker not wait any more

    async def was_left(self, topic: TopicName, left: Left, epoch: int) -> None:
        """Another broker has let go of a topic so, and is about to give this one its bundle, in this epoch."""
        self._topics.was_left(topic, left, epoch)

    async def _look_ahead(self, name: TopicName, above: LedgerId | None) -> None:
        try:
            await self._topics.look_ahead(name, above=above)
        except WeirError as failed:
            log.info("nothing is known of %s ahead: %s", name, failed)

    def _arrived(self, held: HeldBundle) -> None:
        topics = self._expected.pop(held.name, {})
        if topics:
            self.ownership.tasks.spawn(self._load_all(topics), f"load {held.name}")

    async def _load_all(self, topics: dict[TopicName, bool]) -> None:
        """Those that are written to first: their producers wait."""
        ordered = sorted(topics.items(), key=lambda item: not item[1])
        await gathered((self._load(name, written) for name, written in ordered), _TOPICS_AT_ONCE)

    async def _load(self, name: TopicName, written: bool) -> None:
        try:
            await self._topics.load_ahead(name, written=written)
        except WeirError as failed:
            log.info("%s was not loaded ahead: %s", name, failed)

    # --- splitting ----------------------------------------------------------------------------------------------

    async def split(self, bundle: BundleName, at: int | None = None) -> tuple[BundleName, BundleName]:
        halves = bundle.halves(at)
        await self._sought(bundle)
        await self._alone(bundle, lambda held: self._split(held, halves[1].low))
        return halves

    async def _split(self, held: HeldBundle, at: int) -> None:
        def marked(claim: BundleClaim) -> BundleClaim:
            if claim.split not in (0, at):
                raise NotAllowedError(f"{held.name} is being split elsewhere", hint="try again")
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
        """`divide`, into these."""
        if any(bundle.namespace == namespace for bundle in self._known()):
            raise NotAllowedError(f"{namespace} has its bundles already", hint="split those that it has")
        await self.ownership.boundaries.divide(namespace, boundaries)

    async def look_again(self, namespace: NamespaceName) -> None:
        """Know the namespace's bundles by the store's own word."""
        await self.ownership.boundaries.refresh(namespace)

    # --- going down ---------------------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        return self.ownership.me.draining

    async def drain(self, reason: str = "the broker is drained") -> None:
        registration, me = self.ownership.registration, self.ownership.me.broker_id
        if all(broker.draining or broker.broker_id == me for broker in registration.live.values()):
            raise NotAllowedError("there is no other broker to hand anything over to")
        log.info("broker %s hands everything over: %s", me, reason)
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
        """Before the broker goes down: hand everything over, if there is anybody to have it, within a limit."""
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await self.drain("it goes down")
        except (WeirError, TimeoutError) as failed:
            log.info("not everything was handed over: %s", failed)
