"""Which broker serves which topic: claims on bundles in the metadata, which count for as long as their owner's
registration is there.

A claim is a hint for liveness, not what keeps data safe: a broker that wrongly believes to own a topic finds its
ledgers fenced by the next owner. So nothing here waits for clocks to agree.

A bundle that this broker has, and what its topics hold of it.

Work that several may wait for, and that goes on when they do not; and many small pieces of it, a few at a
time.
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
from weir.broker.cluster.registration import OwnershipSettings, Registration, SilentBrokers
from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.meta.mirror import Bells, Mirror
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


class SharedWork(Generic[K]):
    """One piece of work at a time for each key."""

    def __init__(self, tasks: TaskScope) -> None:
        self._tasks = tasks
        self._under_way: dict[K, asyncio.Task[WeirError | None]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._under_way

    def begin(self, key: K, work: Coroutine[Any, Any, None]) -> "asyncio.Task[WeirError | None]":
        """There must be none under way for the key."""
        task = self._under_way[key] = self._tasks.spawn(_outcome(work), str(key))
        task.add_done_callback(lambda _: self._under_way.pop(key))
        return task

    def under_way(self, key: K) -> "asyncio.Task[WeirError | None] | None":
        return self._under_way.get(key)

    @staticmethod
    async def ended(task: "asyncio.Task[WeirError | None]") -> None:
        """Wait for it, and raise what it raised. Whoever gives up waiting does not end it."""
        await asyncio.wait([task])
        if task.cancelled():
            raise NotOwnerError("the broker is going down")
        failure = task.result()
        if failure is not None:
            raise failure


async def _outcome(work: Coroutine[Any, Any, None]) -> WeirError | None:
    """A refusal is an answer for who waits, not the failure of a task."""
    try:
        await work
    except WeirError as refused:
        return refused
    return None


async def gathered(works: Iterable[Coroutine[Any, Any, T]], at_once: int) -> list[T]:
    """What they answer, so many of them at a time."""
    left, answers = iter(works), list[T]()
    while some := list(islice(left, at_once)):
        answers += await asyncio.gather(*some)
    return answers


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


log = logging.getLogger(__name__)

CLAIM: Codec[BundleClaim] = Codec(encode_claim, decode_claim)

#: A store may end a lease this long after it has run out.
_LEASE_GRACE_S = 1.0


class BundleOwnership:
    """Fills `ports.Ownership`. What this broker has, and what it knows of the others'."""

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
        self.held: dict[BundleName, HeldBundle] = {}
        self.tasks = TaskScope(f"ownership {info.broker_id}")
        self.bells = Bells()
        #: Called with each bundle that this broker has from now on; with each that is said to go to another one,
        #: although it does not; and with each whose split is to be ended.
        self.on_arrival: Callable[[HeldBundle], None] = lambda bundle: None
        self.on_stray: Callable[[HeldBundle], None] = lambda bundle: None
        self.end_split: Callable[[BundleName, BundleClaim], None] = lambda bundle, claim: None
        #: Whether its owner said that it is about to give it to this broker.
        self.is_expected: Callable[[BundleName], bool] = lambda bundle: False
        self.clock = runtime.clock
        #: How long the lease of a broker that is gone may last, and is waited for.
        self._lease_ends_s = self.settings.ttl_s + _LEASE_GRACE_S
        self.silent = SilentBrokers(runtime.clock, self.tasks, believed_s=self._lease_ends_s)
        self._isolation_of = isolation_of
        self._choices = Choices()
        self._taking: SharedWork[BundleName] = SharedWork(self.tasks)
        self._started = False

    @property
    def me(self) -> BrokerInfo:
        return self.registration.info

    async def start(self) -> None:
        """Register, and know the others. A lost lease is replaced from now on; what it held is not."""
        await self.boundaries.start()
        await self.claims.start()
        await self.registration.start()
        self._started = True

    async def close(self) -> None:
        """Let go of everything at once."""
        self._started = False
        await self.tasks.close()
        await self.registration.close()
        await self.claims.close()
        await self.boundaries.close()

    # --- having -------------------------------------------------------------------------------------------------

    async def own(self, topic: TopicName) -> TopicClaim:
        """Hold the topic's bundle from now on, or NotOwnerError with the addresses of the broker that has it, or
        should."""
        for _ in range(self.settings.claim_attempts):
            bundle = self.boundaries.bundle_of(topic)
            held = self.held.get(bundle)
            if held is not None and held.held:
                if held.leaving:
                    raise self.elsewhere(topic, held.next)
                return TopicClaim(held, topic_hash(topic))
            await self._taking.ended(self.take(bundle))
        raise NotOwnerError(f"this broker does not get hold of {topic}", hint="try again")

    async def arrived(self, bundle: BundleName) -> None:
        """Wait for a bundle that is on its way here, within a limit; fine if none is."""
        held, claim = self.held.get(bundle), self.claims.get(keys.claim(bundle))
        if (held is not None and held.held) or claim is None:
            return
        if self.registration.is_mine(claim) or claim.next == self.me.broker_id:
            with suppress(NotOwnerError):
                await self._taking.ended(self.take(bundle))

    async def sought(self, bundle: BundleName) -> None:
        """`arrived`; and one that nobody has is taken, or NotOwnerError names who is to. There must be such a
        bundle."""
        holder = self.registration.holder(self.claims.get(keys.claim(bundle)))
        if holder is None:
            held = self.held.get(bundle)
            if held is None or not held.held:
                await self._taking.ended(self.take(bundle))
        else:
            await self.arrived(bundle)

    def take(self, bundle: BundleName) -> "asyncio.Task[WeirError | None]":
        """Take the bundle, if it is nobody's and everybody would choose this broker for it. Those who want it at
        the same time share one attempt."""
        return self._taking.under_way(bundle) or self._taking.begin(bundle, self._take(bundle))

    async def _take(self, bundle: BundleName) -> None:
        waited = False
        for _ in range(self.settings.claim_attempts):
            lease = self.registration.lease
            if lease is None:
                raise NotOwnerError(f"this broker is not registered, so it cannot take {bundle}", hint="try again")
            given = self._given_now(bundle)
            if given is not None:
                return self._holds(bundle, given, lease)
            try:
                found, there = await self._look(bundle)
                claim = await self._claimed(bundle, found, waited)
                if claim is None:
                    waited = True
                    continue  # somebody else's is on its way here
                if there is None or claim is not found:
                    there = await self.boundaries.confirmed(bundle)
                if not there:
                    return await self._drop(claim)
            except (MetaConflictError, MetaUnavailableError) as again:
                log.info("taking %s once more: %s", bundle, again)
                await self.clock.sleep(self.settings.retry_s)
                continue
            now = self.claims.get(keys.claim(bundle))
            if now != claim.value and self.registration.is_mine(now):
                continue  # a hand-over, or a split, that this broker began with its last lease is stored by now
            if claim.value.split:
                self.end_split(bundle, claim.value)
                await self._change_of(bundle, claim.value, None, self.settings.arrival_s)
                return None
            return self._holds(bundle, claim.value, lease)
        raise NotOwnerError(f"the metadata store did not let this broker take {bundle}", hint="try again")

    async def _look(self, bundle: BundleName) -> tuple[VersionedValue[BundleClaim] | None, bool | None]:
        """The claim by the store's own word; and whether there is such a bundle, if the claim was known to be this
        broker's before (another gave it, say): that is to be read when one has the claim."""
        key = keys.claim(bundle)
        known = self.claims.get(key)
        if not self.registration.is_mine(known):
            return await self.claims.refresh(key), None
        found, there = await asyncio.gather(self.claims.refresh(key), self.boundaries.confirmed(bundle))
        return found, there if found is not None and found.value == known else None

    async def _claimed(
        self, bundle: BundleName, found: VersionedValue[BundleClaim] | None, waited: bool
    ) -> VersionedValue[BundleClaim] | None:
        """The claim with this broker's name in it, or one whose split is to be ended, as it is; None if it was
        waited for and may be there now. Who has waited takes what nobody has, whomever everybody would choose by
        now: its clients are here."""
        key = keys.claim(bundle)
        claim = None if found is None else found.value
        if found is not None and claim is not None and self.registration.is_mine(claim):
            # A put whose reply was lost, what another broker gave, or what was lost with a lease that is replaced.
            if not claim.next:
                return found
            # It was being handed over then: clients, and who was to have it, may know the next epoch already.
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
        """Wait for a bundle that another broker has, within a limit, if it is to be this broker's next: it is
        being handed over, or its owner is gone, and only its lease is left."""
        if claim.next == self.me.broker_id:
            return await self._change_of(bundle, claim, holder, self.settings.arrival_s)
        if self._heir(bundle, holder) == self.me.broker_id:
            return await self._change_of(bundle, claim, holder, self._lease_ends_s)
        return False

    async def _change_of(
        self, bundle: BundleName, claim: BundleClaim, holder: BrokerInfo | None, limit_s: float
    ) -> bool:
        """Wait until the bundle's claim, or the registration of its holder, is another one than was read. It may
        be so already: something else was read after it, and a change is told once."""
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
        """It was split while it was taken: there is no such bundle any more."""
        await self.claims.delete(claim.key, expect=claim.version)

    def _given_now(self, bundle: BundleName) -> BundleClaim | None:
        """The claim that its last owner gave to this broker, as the watch tells. That one foretold it, so it had
        the bundle when it gave it, and nobody but an owner gives or splits one."""
        claim = self.claims.get(keys.claim(bundle))
        if claim is None or not self.registration.is_mine(claim) or claim.next or claim.split:
            return None
        return claim if self.is_expected(bundle) and self.boundaries.has(bundle) else None

    def _holds(self, bundle: BundleName, claim: BundleClaim, lease: Lease) -> None:
        if lease is not self.registration.lease:
            raise NotOwnerError(f"this broker lost its lease while it took {bundle}", hint="try again")
        now = self.claims.get(keys.claim(bundle))
        if now is not None and not self.registration.is_mine(now):
            return  # lost already
        self.hold(HeldBundle(bundle, claim.epoch, lease))

    def hold(self, bundle: HeldBundle) -> None:
        """This broker has it from now on."""
        known = self.held.get(bundle.name)
        if known is None or not known.held:
            self.held[bundle.name] = bundle
            self.on_arrival(bundle)

    def forget(self, held: HeldBundle) -> None:
        """This broker has it no longer."""
        held.end()
        if self.held.get(held.name) is held:
            del self.held[held.name]

    # --- who has what -------------------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerInfo]:
        """Every registered broker, this one among them, in the order of their node ids."""
        return list(self.registration.live.values())

    def former_brokers(self) -> list[BrokerInfo]:
        """Those that were until some seconds ago, and went without a word."""
        return self.registration.former()

    def candidates(self, namespace: NamespaceName) -> list[str]:
        """The brokers that may have the namespace's bundles now."""
        return self._choices.candidates(self.registration.live, self._isolation_of(namespace))

    def chosen(self, bundle: BundleName, claim: BundleClaim | None) -> str:
        """Who is to take a bundle that nobody has: who was to have it next, else whom everybody would choose; ""
        if nobody may. A broker that was started anew without having handed it over gets it if there are no others:
        clients try the others at once, and that one after the pauses that they have got used to."""
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
        """Who gets the bundle when the lease of its owner, which is gone, has ended; "" if it is not gone."""
        if not self.silent.is_silent(holder):
            return ""
        there = [broker for broker in self.brokers() if not self.silent.is_silent(broker)]
        return choose(bundle, candidates(there, self._isolation_of(bundle.namespace))) or ""

    async def owner(self, topic: TopicName) -> Owner:
        """Who serves the topic, or, if nobody does or its owner is gone, who should: whoever goes there waits for
        the end of the lease. It may be a moment out of date."""
        bundle = self.boundaries.bundle_of(topic)
        claim = self.claims.get(keys.claim(bundle))
        holder = self.registration.holder(claim)
        if claim is not None and holder is not None and holder.broker_id != self.me.broker_id:
            await self.silent.looked(holder)
            if claim.next not in self.registration.live and (heir := self._heir(bundle, holder)):
                return self._owner_of(heir, claim.epoch, taken=False)
        return self.owner_now(topic)

    def owner_now(self, topic: TopicName) -> Owner:
        """Who has the topic, or should, from memory: it may be a moment out of date."""
        return self._owner_in(self.boundaries.bundle_of(topic))

    def owners_now(self, topic: TopicName, partitions: Sequence[int]) -> list[Owner]:
        """`owner_now` of these partitions, all at one moment: it is looked once per bundle who has it."""
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
        """Whoever wants it shall go to that broker."""
        if not broker_id:
            return NotOwnerError(f"no broker has {what} now", hint="try again")
        found = self.registration.live.get(broker_id)
        return NotOwnerError(f"{what} is broker {broker_id}'s", listeners=found.listeners if found else None)

    # --- what the metadata tells --------------------------------------------------------------------------------

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
                    log.warning("%s is another broker's now", bundle)
                self.forget(held)
            elif claim.next and not held.leaving:
                self.on_stray(held)
        elif mine:
            self._given(bundle)

    def _given(self, bundle: BundleName) -> None:
        """Another broker, or a split, gave it to this one. Halves count from when the boundaries tell of them."""
        if self.registration.lease is not None and self.boundaries.has(bundle):
            self.take(bundle)

    def _boundaries_changed(self, namespace: NamespaceName) -> None:
        """There are others now. A split that this broker began, and of which it heard no more, may be made."""
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
        """Nothing counts any more, before anybody else may take it."""
        for held in list(self.held.values()):
            self.forget(held)

    def _lease_gained(self) -> None:
        """What nobody took while there was no lease is this broker's again."""
        if not self._started:
            return
        for key, claim in self.claims.items().items():
            if self.registration.is_mine(claim):
                self._claim_changed(key, True)
