"""Ownership of topics by bundle: claims in the metadata, each valid while its owner's registration exists.

Claims provide liveness, not safety: the next owner of a topic fences its ledgers, so a broker that wrongly
believes to own it cannot write. Therefore this module needs no synchronized clocks.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, TypeVar

from weir.broker.api.broker import Owner
from weir.broker.cluster.bundle_placement import BundleBoundaries, Choices, candidates, choose
from weir.broker.cluster.registration import OwnershipSettings, Registration, SuspectedBrokers
from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.meta.mirror import ChangeWaiters, Mirror
from weir.meta.update import Codec, VersionedValue
from weir.model.cluster import BundleClaim, BundleName, partition_hashes, topic_hash
from weir.model.errors import InvalidNameError, MetaConflictError, MetaUnavailableError, NotOwnerError, WeirError
from weir.model.policies import Isolation
from weir.model.registry import BrokerInfo
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.registry import decode_claim, encode_claim

K = TypeVar("K")
T = TypeVar("T")


class OncePerKey(Generic[K]):
    """Runs at most one task per key; several callers may wait for it, and it continues without them."""

    def __init__(self, tasks: TaskScope) -> None:
        self._tasks = tasks
        self._under_way: dict[K, asyncio.Task[WeirError | None]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._under_way

    def begin(self, key: K, work: Coroutine[Any, Any, None]) -> "asyncio.Task[WeirError | None]":
        """Start a task. The key must have no running one."""
        task = self._under_way[key] = self._tasks.spawn(_outcome(work), str(key))
        task.add_done_callback(lambda _: self._under_way.pop(key))
        return task

    def under_way(self, key: K) -> "asyncio.Task[WeirError | None] | None":
        return self._under_way.get(key)

    @staticmethod
    async def ended(task: "asyncio.Task[WeirError | None]") -> None:
        """Wait for the task, and raise its error. Cancellation of the caller does not end the task."""
        await asyncio.wait([task])
        if task.cancelled():
            raise NotOwnerError("the broker is shutting down")
        failure = task.result()
        if failure is not None:
            raise failure


async def _outcome(work: Coroutine[Any, Any, None]) -> WeirError | None:
    """Return an error as a result for the callers, so that the task does not fail."""
    try:
        await work
    except WeirError as refused:
        return refused
    return None


async def gathered(works: Iterable[Coroutine[Any, Any, T]], at_once: int) -> list[T]:
    """Results of the coroutines; runs at most `at_once` of them concurrently."""
    left, answers = iter(works), list[T]()
    while some := list(islice(left, at_once)):
        answers += await asyncio.gather(*some)
    return answers


class OwnedBundle:
    """A bundle that this broker owns until release, handover, split, or loss of the lease."""

    def __init__(self, name: BundleName, epoch: int, lease: Lease) -> None:
        self.name = name
        self.epoch = epoch
        #: Set during release, or handover to `next`: no more topics are loaded.
        self.leaving = False
        self.next = ""
        #: Set while topics close for `next`: this epoch ends, whichever broker owns the bundle then.
        self.closing = False
        self._lease = lease
        self._ended = asyncio.Event()
        self._halves: tuple[OwnedBundle, OwnedBundle] | None = None

    @property
    def held(self) -> bool:
        return not self._ended.is_set() and self._lease.alive

    @property
    def next_epoch(self) -> int:
        """The epoch of `next`, if it is certain; else the current one."""
        return self.epoch + self.closing

    async def lost(self) -> None:
        """Wait until the ownership ends."""
        await self._ended.wait()

    def end(self) -> None:
        self._ended.set()

    def split(self, low: "OwnedBundle", high: "OwnedBundle") -> None:
        """Move the topics to the two halves."""
        self._halves = low, high
        self.end()

    def at(self, value: int) -> "OwnedBundle":
        """The current part of the bundle, after any number of splits, that contains this hash."""
        now = self
        while now._halves is not None:
            low, high = now._halves
            now = low if low.name.has_hash(value) else high
        return now


class TopicClaim:
    """Fills `ports.Claim`: ownership of a topic by its bundle, also after splits."""

    __slots__ = ("_bundle", "_hash")

    def __init__(self, bundle: OwnedBundle, value: int) -> None:
        self._bundle = bundle
        self._hash = value

    @property
    def bundle(self) -> OwnedBundle:
        self._bundle = self._bundle.at(self._hash)
        return self._bundle

    @property
    def held(self) -> bool:
        return self.bundle.held

    @property
    def epoch(self) -> int:
        return self._bundle.epoch


log = logging.getLogger(__name__)

CLAIM: Codec[BundleClaim] = Codec(encode_claim, decode_claim)

#: A store may remove an expired lease with this delay.
_LEASE_GRACE_S = 1.0


class BundleOwnership:
    """Fills `ports.Ownership`: the bundles of this broker, and a view of the owners of all others."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        info: BrokerInfo,
        settings: OwnershipSettings | None = None,
        *,
        isolation_of: Callable[[NamespaceName], Isolation | None] = lambda namespace: None,
    ) -> None:
        """`info.instance` must differ from that of any earlier start of the same broker."""
        self.settings = settings or OwnershipSettings()
        self.registration = Registration(
            meta,
            runtime,
            info,
            self.settings,
            on_loss=self._lease_lost,
            on_gain=self._lease_gained,
            on_change=self._broker_changed,
        )
        self.boundaries = BundleBoundaries(meta, runtime, self._boundaries_changed)
        self.claims = Mirror(meta, runtime, keys.CLAIMS, CLAIM, self._claim_changed)
        self.held: dict[BundleName, OwnedBundle] = {}
        self.tasks = TaskScope(f"ownership {info.broker_id}")
        self.bells = ChangeWaiters()
        #: Callbacks: a bundle that this broker now owns; an owned bundle whose claim names a successor without a
        #: running handover; a bundle with an unfinished split.
        self.on_arrival: Callable[[OwnedBundle], None] = lambda bundle: None
        self.on_stray: Callable[[OwnedBundle], None] = lambda bundle: None
        self.end_split: Callable[[BundleName, BundleClaim], None] = lambda bundle, claim: None
        #: Whether the owner of a bundle has announced its handover to this broker.
        self.is_expected: Callable[[BundleName], bool] = lambda bundle: False
        self.clock = runtime.clock
        #: Maximum wait for the end of a dead broker's lease.
        self._lease_ends_s = self.settings.ttl_s + _LEASE_GRACE_S
        self.silent = SuspectedBrokers(runtime.clock, self.tasks, believed_s=self._lease_ends_s)
        self._isolation_of = isolation_of
        self._choices = Choices()
        self._taking: OncePerKey[BundleName] = OncePerKey(self.tasks)
        self._started = False

    @property
    def me(self) -> BrokerInfo:
        return self.registration.info

    async def start(self) -> None:
        """Register, and load all claims. After a lost lease, the broker registers again without its former
        bundles."""
        await self.boundaries.start()
        await self.claims.start()
        await self.registration.start()
        self._started = True

    async def close(self) -> None:
        """Release all bundles at once."""
        self._started = False
        await self.tasks.close()
        await self.registration.close()
        await self.claims.close()
        await self.boundaries.close()

    # --- ownership ----------------------------------------------------------------------------------------------

    async def own(self, topic: TopicName) -> TopicClaim:
        """Own the topic's bundle, or raise NotOwnerError with the addresses of its owner, or of the broker that
        should own it."""
        for _ in range(self.settings.claim_attempts):
            bundle = self.boundaries.bundle_of(topic)
            held = self.held.get(bundle)
            if held is not None and held.held:
                if held.leaving:
                    raise self.elsewhere(topic, held.next)
                return TopicClaim(held, topic_hash(topic))
            await self._taking.ended(self.take(bundle))
        raise NotOwnerError(f"this broker could not acquire the bundle of {topic}", hint="try again")

    async def arrived(self, bundle: BundleName) -> None:
        """Wait, with a timeout, for the handover of a bundle to this broker, if one is in progress."""
        held, claim = self.held.get(bundle), self.claims.get(keys.claim(bundle))
        if (held is not None and held.held) or claim is None:
            return
        if self.registration.is_mine(claim) or claim.next == self.me.broker_id:
            with suppress(NotOwnerError):
                await self._taking.ended(self.take(bundle))

    async def sought(self, bundle: BundleName) -> None:
        """Like `arrived`, but also claims an unowned bundle; NotOwnerError names the broker that should own it.
        The bundle must exist."""
        holder = self.registration.holder(self.claims.get(keys.claim(bundle)))
        if holder is None:
            held = self.held.get(bundle)
            if held is None or not held.held:
                await self._taking.ended(self.take(bundle))
        else:
            await self.arrived(bundle)

    def take(self, bundle: BundleName) -> "asyncio.Task[WeirError | None]":
        """Claim an unowned bundle if this broker is the chosen one. Concurrent callers share one attempt."""
        return self._taking.under_way(bundle) or self._taking.begin(bundle, self._take(bundle))

    async def _take(self, bundle: BundleName) -> None:
        waited = False
        for _ in range(self.settings.claim_attempts):
            lease = self.registration.lease
            if lease is None:
                raise NotOwnerError(f"this broker is not registered and cannot own {bundle}", hint="try again")
            given = self._given_now(bundle)
            if given is not None:
                return self._holds(bundle, given, lease)
            try:
                found, there = await self._look(bundle)
                claim = await self._claimed(bundle, found, waited)
                if claim is None:
                    waited = True
                    continue  # another broker's bundle may have arrived
                if there is None or claim is not found:
                    there = await self.boundaries.confirmed(bundle)
                if not there:
                    return await self._drop(claim)
            except (MetaConflictError, MetaUnavailableError) as again:
                log.info("claim of %s failed (next attempt after a pause): %s", bundle, again)
                await self.clock.sleep(self.settings.retry_s)
                continue
            now = self.claims.get(keys.claim(bundle))
            if now != claim.value and self.registration.is_mine(now):
                continue  # a handover or split that this broker began with its last lease was stored meanwhile
            if claim.value.split:
                self.end_split(bundle, claim.value)
                await self._change_of(bundle, claim.value, None, self.settings.arrival_s)
                return None
            return self._holds(bundle, claim.value, lease)
        raise NotOwnerError(f"this broker could not store its claim of {bundle}", hint="try again")

    async def _look(self, bundle: BundleName) -> tuple[VersionedValue[BundleClaim] | None, bool | None]:
        """Read the claim from the store. Also read whether the bundle exists if the claim was this broker's
        already (after a handover, say): that check is valid only after the claim."""
        key = keys.claim(bundle)
        known = self.claims.get(key)
        if not self.registration.is_mine(known):
            return await self.claims.refresh(key), None
        found, there = await asyncio.gather(self.claims.refresh(key), self.boundaries.confirmed(bundle))
        return found, there if found is not None and found.value == known else None

    async def _claimed(
        self, bundle: BundleName, found: VersionedValue[BundleClaim] | None, waited: bool
    ) -> VersionedValue[BundleClaim] | None:
        """This broker's claim, or an unchanged claim with an unfinished split; None after a wait for a handover,
        which may have arrived. A broker that has waited claims an unowned bundle even if it is not the chosen one:
        the clients are connected to it."""
        key = keys.claim(bundle)
        claim = None if found is None else found.value
        if found is not None and claim is not None and self.registration.is_mine(claim):
            # A put with a lost reply, a handover from another broker, or a bundle of the previous lease.
            if not claim.next:
                return found
            # A handover was in progress: clients and the successor may know the next epoch already.
            anew = replace(claim, next="", epoch=claim.epoch + 1)
            return await self.claims.put(key, anew, expect=found.version)
        holder = await self.registration.confirmed_holder(claim)
        if claim is not None and holder is not None:
            if not await self._comes(bundle, claim, holder):
                raise self.elsewhere(bundle, holder.broker_id)
            return None
        chosen = self.chosen(bundle, claim)
        if chosen != self.me.broker_id and not waited:
            raise self.elsewhere(bundle, chosen)
        if claim is not None and claim.split:
            return found
        epoch = 0 if claim is None else claim.epoch + 1
        mine = BundleClaim(self.me.broker_id, self.me.instance, epoch)
        return await self.claims.put(key, mine, expect=ABSENT if found is None else found.version)

    async def _comes(self, bundle: BundleName, claim: BundleClaim, holder: BrokerInfo) -> bool:
        """Wait, with a timeout, for a bundle of another broker if this broker is the next owner: a handover is in
        progress, or the owner is dead and its lease has not ended."""
        if claim.next == self.me.broker_id:
            return await self._change_of(bundle, claim, holder, self.settings.arrival_s)
        if self._heir(bundle, holder) == self.me.broker_id:
            return await self._change_of(bundle, claim, holder, self._lease_ends_s)
        return False

    async def _change_of(
        self, bundle: BundleName, claim: BundleClaim, holder: BrokerInfo | None, limit_s: float
    ) -> bool:
        """Wait until the bundle's claim or the registration of its holder differs from the given one. It may
        differ already: the watch reports each change only once, and other reads came between."""
        key = keys.claim(bundle)
        what = [key] if holder is None else [key, keys.broker(holder.broker_id)]
        try:
            async with asyncio.timeout(limit_s):
                while self.claims.get(key) == claim and (holder is None or self.registration.holder(claim)):
                    await self.bells.wait(what)
        except TimeoutError:
            return False
        return True

    async def _drop(self, claim: VersionedValue[BundleClaim]) -> None:
        """Delete a claim of a bundle that was split meanwhile and no longer exists."""
        await self.claims.delete(claim.key, expect=claim.version)

    def _given_now(self, bundle: BundleName) -> BundleClaim | None:
        """The claim that the last owner passed to this broker, according to the watch. That broker announced the
        handover, so it owned the bundle then, and only an owner hands over or splits a bundle."""
        claim = self.claims.get(keys.claim(bundle))
        if claim is None or not self.registration.is_mine(claim) or claim.next or claim.split:
            return None
        return claim if self.is_expected(bundle) and self.boundaries.has(bundle) else None

    def _holds(self, bundle: BundleName, claim: BundleClaim, lease: Lease) -> None:
        if lease is not self.registration.lease:
            raise NotOwnerError(f"this broker lost its lease during the claim of {bundle}", hint="try again")
        now = self.claims.get(keys.claim(bundle))
        if now is not None and not self.registration.is_mine(now):
            return  # lost already
        self.hold(OwnedBundle(bundle, claim.epoch, lease))

    def hold(self, bundle: OwnedBundle) -> None:
        """Record the ownership of a bundle."""
        known = self.held.get(bundle.name)
        if known is None or not known.held:
            self.held[bundle.name] = bundle
            self.on_arrival(bundle)

    def forget(self, held: OwnedBundle) -> None:
        """Record the end of the ownership of a bundle."""
        held.end()
        if self.held.get(held.name) is held:
            del self.held[held.name]

    # --- owner lookup -------------------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerInfo]:
        """All registered brokers, including this one, in the order of node ids."""
        return list(self.registration.live.values())

    def former_brokers(self) -> list[BrokerInfo]:
        """Brokers that lost their registration some seconds ago without a drain."""
        return self.registration.former()

    def candidates(self, namespace: NamespaceName) -> list[str]:
        """The brokers that may own the namespace's bundles now."""
        return self._choices.candidates(self.registration.live, self._isolation_of(namespace))

    def chosen(self, bundle: BundleName, claim: BundleClaim | None) -> str:
        """The broker that should claim an unowned bundle: the successor in the claim, else the chosen broker; ""
        if none may own it. A broker that restarted without a handover gets its former bundles only if no other
        broker is available: clients try other brokers at once, but that one after their grown backoff."""
        live, isolation = self.registration.live, self._isolation_of(bundle.namespace)
        if claim is not None:
            may = self._choices.candidates(live, isolation)
            if claim.next in may:
                return claim.next
            if claim.owner in may and live[claim.owner].instance != claim.instance:
                others = [broker for broker in may if broker != claim.owner]
                return choose(bundle, others) or claim.owner
        return self._choices.chosen(live, isolation, bundle)

    def _heir(self, bundle: BundleName, holder: BrokerInfo) -> str:
        """The next owner of a suspected broker's bundle, after the end of its lease; "" if it is not suspected."""
        if not self.silent.is_silent(holder):
            return ""
        there = [broker for broker in self.brokers() if not self.silent.is_silent(broker)]
        return choose(bundle, candidates(there, self._isolation_of(bundle.namespace))) or ""

    async def owner(self, topic: TopicName) -> Owner:
        """The owner of the topic, or the next one if it is unowned or its owner is suspected: clients wait there
        for the end of the lease. May be slightly out of date."""
        bundle = self.boundaries.bundle_of(topic)
        claim = self.claims.get(keys.claim(bundle))
        holder = self.registration.holder(claim)
        if claim is not None and holder is not None and holder.broker_id != self.me.broker_id:
            await self.silent.looked(holder)
            if claim.next not in self.registration.live and (heir := self._heir(bundle, holder)):
                return self._owner_of(heir, claim.epoch, taken=False)
        return self.owner_now(topic)

    def owner_now(self, topic: TopicName) -> Owner:
        """The owner of the topic, or the broker that should own it, from memory. May be slightly out of date."""
        return self._owner_in(self.boundaries.bundle_of(topic))

    def owners_now(self, topic: TopicName, partitions: Sequence[int]) -> list[Owner]:
        """`owner_now` of these partitions, consistently; evaluates each bundle once."""
        boundaries = self.boundaries.of(topic.namespace)
        owners: dict[int, Owner] = {}
        found: list[Owner] = []
        for value in partition_hashes(topic, partitions):
            at = boundaries.index_of(value)
            owner = owners.get(at)
            if owner is None:
                owner = owners[at] = self._owner_in(boundaries.bundle_at(topic.namespace, at))
            found.append(owner)
        return found

    def _owner_in(self, bundle: BundleName) -> Owner:
        held = self.held.get(bundle)
        if held is not None and held.held:
            return self._owner_of(held.next or self.me.broker_id, held.next_epoch if held.next else held.epoch)
        claim = self.claims.get(keys.claim(bundle))
        epoch = 0 if claim is None else claim.epoch
        holder = self.registration.holder(claim)
        if claim is None or holder is None:
            return self._owner_of(self.chosen(bundle, claim), epoch, taken=False)
        moving = claim.next in self.registration.live
        return self._owner_of(claim.next if moving else holder.broker_id, epoch)

    def _owner_of(self, broker_id: str, epoch: int, *, taken: bool = True) -> Owner:
        broker = self.registration.live.get(broker_id)
        if broker is None:
            return Owner(False, {}, broker_id, epoch=epoch, taken=taken)
        here = broker_id == self.me.broker_id
        return Owner(here, broker.listeners, broker_id, broker.node_id, epoch, taken)

    def elsewhere(self, what: object, broker_id: str) -> NotOwnerError:
        """The error that redirects a client to that broker."""
        if not broker_id:
            return NotOwnerError(f"no broker owns {what} now", hint="try again")
        found = self.registration.live.get(broker_id)
        return NotOwnerError(
            f"{what} is owned by broker {broker_id}", listeners=found.listeners if found else None
        )

    # --- changes of the metadata --------------------------------------------------------------------------------

    def _broker_changed(self, key: str) -> None:
        self.bells.ring(key)

    def _claim_changed(self, key: str, present: bool) -> None:
        self.bells.ring(key)
        if not self._started:
            return
        try:
            bundle = keys.bundle_of(key)
        except InvalidNameError:
            return
        claim = self.claims.get(key)
        mine, held = self.registration.is_mine(claim), self.held.get(bundle)
        if held is not None and held.held:
            if not mine or claim is None or claim.epoch != held.epoch:
                if not held.leaving:
                    log.warning("ownership of %s lost: another broker has claimed it", bundle)
                self.forget(held)
            elif claim.next and not held.leaving:
                self.on_stray(held)
        elif mine:
            self._given(bundle)

    def _given(self, bundle: BundleName) -> None:
        """This broker got a bundle by a handover or a split. Halves are valid after the change of the
        boundaries."""
        if self.registration.lease is not None and self.boundaries.has(bundle):
            self.take(bundle)

    def _boundaries_changed(self, namespace: NamespaceName) -> None:
        """The bundles of a namespace changed; a split of this broker with an unknown outcome may be complete."""
        if not self._started:
            return
        for bundle in self.boundaries.of(namespace).bundles(namespace):
            if bundle not in self.held and self.registration.is_mine(self.claims.get(keys.claim(bundle))):
                self._given(bundle)
        for bundle in [name for name in self.held if name.namespace == namespace]:
            claim = self.claims.get(keys.claim(bundle))
            mine = self.registration.is_mine(claim)
            if claim is not None and mine and claim.split and not self.boundaries.has(bundle):
                self.end_split(bundle, claim)

    def _lease_lost(self) -> None:
        """End the ownership of all bundles, before another broker may claim them."""
        for held in list(self.held.values()):
            self.forget(held)

    def _lease_gained(self) -> None:
        """Own former bundles again that no other broker claimed without the lease."""
        if not self._started:
            return
        for key, claim in self.claims.items().items():
            if self.registration.is_mine(claim):
                self._claim_changed(key, True)
