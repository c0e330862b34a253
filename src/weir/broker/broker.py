"""The broker: topics, loaded when they are first asked for, each once."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from weir.broker.api.broker import BrokerFlows, Owner
from weir.broker.api.cluster import Bundles
from weir.broker.api.security import Identity
from weir.broker.api.stats import TopicStats
from weir.broker.api.topics import HalfCheckers
from weir.broker.context import BrokerContext
from weir.broker.metadata.topic_lists import check_size
from weir.broker.ports import Authenticator, Claim, Ownership, Registry
from weir.broker.prepared.marked_topics import HasHalf, MarkedTopics
from weir.broker.standalone import SoleBundles
from weir.broker.topics.lifecycle import LeftLedgers, PassOn
from weir.broker.topics.topic import AnyTopic, BrokerTopic, open_topic, stream_name
from weir.broker.topics.topic_deletion import Deletions
from weir.broker.topics.topic_overviews import Overviews
from weir.broker.upkeep.background_tasks import GrantRevocation, IdleTopics, Leftovers, Maintenance, UnusedTopics
from weir.meta import keys
from weir.model.errors import (
    NamespaceNotFoundError,
    NotAuthenticatedError,
    TenantNotFoundError,
    TopicClosedError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.ids import LedgerId
from weir.model.registry import SYSTEM_NAMESPACE, BrokerInfo, TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.tasks import TaskScope, Turns, log_about
from weir.stream.chain import take_ahead
from weir.stream.handover import Left

log = logging.getLogger(__name__)

#: Topics that are closed at the same time when the broker goes down.
_CLOSED_AT_ONCE = 64
#: Topics that are swept before everyone else gets a turn.
_SWEPT_AT_ONCE = 256
#: Units of a step of loading a topic: a turn has sixteen of them.
_LOAD_UNITS = 16


class _HalfDeletedError(WeirError):
    """The topic is marked as being deleted; what is left of it must go before anything has its name."""


class Broker:
    """Fills `api.Broker`."""

    def __init__(
        self,
        context: BrokerContext,
        registry: Registry,
        ownership: Ownership,
        authenticator: Authenticator | None = None,
        bundles: Bundles | None = None,
    ) -> None:
        self._bundles = bundles or SoleBundles()
        self._context = context
        self._registry = registry
        self._ownership = ownership
        self._topics: dict[TopicName, asyncio.Task[AnyTopic]] = {}
        self._claims: dict[TopicName, Claim] = {}
        #: Topics that are being let go of: loading one again waits, lest it fences itself.
        self._ending: dict[TopicName, asyncio.Future[None]] = {}
        self.deletions = Deletions(context, registry, ownership, self)
        self._left_ledgers = LeftLedgers()
        self._tasks = TaskScope("broker")
        #: Of all loads together.
        self._turns = Turns(context.runtime.clock)
        self._closing = False
        self._authenticator = authenticator
        self._maintenance = Maintenance(context, lambda: self.loaded)
        clock = context.runtime.clock
        self._revoking = GrantRevocation(context.guard, clock, lambda: self.loaded)
        self._unused = UnusedTopics(clock, context.settings.unload_s, lambda: self.loaded, self.unload)
        self._overviews = Overviews(context.streams)
        self._idle = IdleTopics(
            context,
            registry,
            self._overviews,
            lambda name: name not in self._topics and self.owner_now(name).here,
            self._borrowed,
        )
        self._half_topics = MarkedTopics(
            context.streams.meta, clock, lambda name: name in self._topics, self._load_half
        )
        self._leftovers = Leftovers(clock, registry, self.deletions.finish)

    def start(self) -> None:
        """Look after topics from now on: retention, expiry, quotas, changes of policies."""
        self._tasks.spawn(self._maintenance.run(), "maintenance")
        self._tasks.spawn(self._sweep(), "sweep")
        self._tasks.spawn(self._revoking.run(), "revoking")
        self._tasks.spawn(self._leftovers.run(), "leftovers")
        self._tasks.spawn(self._half_topics.run(), "topics with half messages")
        self._tasks.spawn(self._idle.run(), "idle topics")
        self._tasks.spawn(self._unused.run(), "unused topics")

    @property
    def bundles(self) -> Bundles:
        return self._bundles

    @property
    def flows(self) -> BrokerFlows:
        return self._context.flows

    @property
    def half_checkers(self) -> HalfCheckers:
        return self._context.half_checkers

    def served_now(self, name: TopicName) -> AnyTopic | None:
        task = self._topics.get(name)
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    @property
    def loaded(self) -> list[AnyTopic]:
        """The topics that are served now, without brokers' own."""
        return [topic for topic in self.served if topic.name.namespace != SYSTEM_NAMESPACE]

    @property
    def names(self) -> list[TopicName]:
        """The topics that are served or being loaded, brokers' own among them."""
        return list(self._topics)

    @property
    def served(self) -> list[AnyTopic]:
        """The topics that are served now, brokers' own among them."""
        return [
            task.result()
            for task in self._topics.values()
            if task.done() and not task.cancelled() and task.exception() is None
        ]

    @property
    def written(self) -> list[TopicName]:
        """The topics that have producers."""
        return [topic.name for topic in self.served if len(topic.producers)]

    async def topic(self, name: TopicName, *, role: str, create: bool = True) -> AnyTopic:
        self._check(role, name)
        return await self.load(name, create=create)

    def _check(self, role: str, name: TopicName) -> None:
        """Whether a user may know of the topic."""
        self._context.guard.check(role, name, None)
        if name.namespace == SYSTEM_NAMESPACE:
            raise TopicNotFoundError(f"{name} is kept by brokers for themselves")

    async def load(self, name: TopicName, *, create: bool = True, written: bool = False) -> AnyTopic:
        """The topic, whoever asks; callers at the same time share one load. `written`: with a ledger, so that the
        first message does not wait for one, if it is not loaded yet."""
        self._unused.used(name)
        return await self._loaded_topic(name, create=create, written=written)

    async def stats(self, name: TopicName) -> TopicStats:
        """The stats of a topic. One that no broker has loaded stays so if the metadata have its overview; else
        this broker loads it, and unloads it again unless a client uses it meanwhile. NotOwnerError if another
        broker has it."""
        topic, claim = self.served_now(name), self._claims.get(name)
        if topic is not None and topic.alive and (claim is None or claim.held):
            return topic.stats()
        if name.persistent:
            await self._check_stored(name)
            overview = await self._overviews.look(name)
            if overview is not None:
                return overview
        async with self._borrowed(name) as topic:
            return topic.stats()

    @asynccontextmanager
    async def _borrowed(self, name: TopicName) -> AsyncIterator[AnyTopic]:
        """A topic that the broker loads for itself; afterwards it is unloaded, unless a client asked for it
        meanwhile or the topic is needed."""
        uses = self._unused.used(name)
        topic = await self._loaded_topic(name, create=False, written=False)
        yield topic
        await self._unused.release(topic, uses)

    async def _check_stored(self, name: TopicName) -> None:
        """TopicNotFoundError unless there is a topic of this name that holds messages."""
        record = await self._registry.ensure_topic(name, create=False)
        if record.deleting:
            raise TopicNotFoundError(f"{name} is being deleted")
        self._check_holds(record, name)

    @staticmethod
    def _check_holds(record: TopicRecord, name: TopicName) -> None:
        if not record.holds(name) or (record.partitions and name.partition is None):
            raise TopicNotFoundError(f"{name} holds no messages: {record.name} has {record.partitions} partitions")

    async def _loaded_topic(self, name: TopicName, *, create: bool, written: bool) -> AnyTopic:
        while True:
            await self._free(name)
            if self._closing:
                raise TopicClosedError("the broker is going down")
            loading = self._topics.get(name)
            if loading is None:
                loading = asyncio.get_running_loop().create_task(
                    self._load(name, create, written), name=f"load {name}"
                )
                self._topics[name] = loading
                loading.add_done_callback(lambda done, name=name: self._loaded(name, done))  # type: ignore[misc]
            # One caller that gives up must not take the others' load with it.
            try:
                topic = await asyncio.shield(loading)
            except _HalfDeletedError:
                with suppress(TopicNotFoundError):  # another broker was faster
                    await self.deletions.finish(name.base)
                continue
            claim = self._claims.get(name)
            if topic.alive and (claim is None or claim.held):
                await self._apply_policies(topic)
                return topic
            await self._forget(name, loading, "the topic moved to another broker")

    async def _load_half(self, name: TopicName) -> HasHalf | None:
        topic = await self.load(name, create=False)
        return topic.half if isinstance(topic, BrokerTopic) else None

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        """Load a topic whose clients are about to come; `written`: with a ledger."""
        topic = await self.load(name, create=name.namespace == SYSTEM_NAMESPACE, written=written)
        if written and isinstance(topic, BrokerTopic):
            topic.stream.prepare()

    async def look_ahead(self, name: TopicName, *, above: LedgerId | None) -> None:
        """Know of a topic that is about to be this broker's; `above`: make a ledger for it, with a higher id."""
        if above is not None and name.persistent:
            await self._context.streams.coming.make_ledger(stream_name(name), above)
        await self._registry.ensure_topic(name, create=name.namespace == SYSTEM_NAMESPACE)

    def was_left(self, name: TopicName, left: Left, epoch: int) -> None:
        """Its broker has let go of it so, and this one is to serve it in this leader epoch: take it over."""
        if not self._closing and self.served_now(name) is None:
            take_ahead(self._context.streams, stream_name(name), left, epoch)

    def all_passed(self) -> None:
        """Nobody waits any more for what was passed on: its ledgers can be closed."""
        self._left_ledgers.close_soon()

    @property
    def last_ledger(self) -> LedgerId:
        """The last ledger of all topics that are served, or a later one."""
        topics = (topic for topic in self.served if isinstance(topic, BrokerTopic))
        return max(
            (span.ledger_id for topic in topics for span in topic.stream.chain.spans[-1:]), default=LedgerId(0)
        )

    async def write_down(self, name: TopicName) -> None:
        """Store now what is stored when a topic that is served is unloaded."""
        loaded = self._topics.get(name)
        if loaded is not None and loaded.done() and not loaded.cancelled() and loaded.exception() is None:
            topic = loaded.result()
            if isinstance(topic, BrokerTopic):
                await topic.write_down()

    async def _load(self, name: TopicName, create: bool, written: bool) -> AnyTopic:
        log_about(topic=str(name))  # not the connection that happened to ask first
        record = await self._registry.ensure_topic(name, create=create)
        if record.deleting:
            raise _HalfDeletedError(f"the deletion of {record.name} was cut short")
        self._check_holds(record, name)
        await self._turns.pause(_LOAD_UNITS)  # a client may ask for thousands of topics at once
        claim = self._claims[name] = await self._ownership.own(name)
        self._registry.hold_topic(name)
        try:
            await self._turns.pause(_LOAD_UNITS)
            # One that was taken over from its last broker is not deleted: that takes whoever has it.
            if not await self._context.streams.coming.is_taken(stream_name(name)):
                await self._confirm(name)
            await self._turns.pause(_LOAD_UNITS)
            policies = self._registry.policies(name)
            return await open_topic(self._context, name, policies, claim.epoch, written=written)
        except BaseException:
            self._registry.let_go_of_topic(name)
            raise

    async def _free(self, name: TopicName) -> None:
        """Wait until the topic is neither being let go of nor deleted. What is decided right after holds."""
        while (busy := self.deletions.under_way.get(name.base) or self._ending.get(name)) is not None:
            await asyncio.wait([busy])

    async def _confirm(self, name: TopicName) -> None:
        """Another broker may have deleted the topic a moment ago, and the watch has not told yet. Whoever deletes
        holds the topic's claims to the end, so what the store says under a claim stays so."""
        record = await self._registry.confirm_topic(name)
        if record is None:
            raise TopicClosedError(f"{name} was deleted just now", hint="try again")
        if record.deleting:
            raise _HalfDeletedError(f"the deletion of {name} was cut short")

    def _loaded(self, name: TopicName, done: "asyncio.Task[AnyTopic]") -> None:
        if done.cancelled() or done.exception() is not None:
            if self._topics.get(name) is done:
                del self._topics[name]
                self._claims.pop(name, None)
                self._unused.forget(name)
        else:
            done.result().on_death(lambda: self._died(name, done))

    def _died(self, name: TopicName, loaded: "asyncio.Task[AnyTopic]") -> None:
        """Another broker has it: let go of it."""
        if self._topics.get(name) is loaded:
            forgetting = self._forget(name, loaded, "the topic moved to another broker")
            self._tasks.spawn(forgetting, f"forget {name}")

    async def _sweep(self) -> None:
        """Apply new policies, and let go of what was lost with a lease. One task for all topics: one for each
        would cost more memory than the topic."""
        clock, applied = self._context.runtime.clock, (-1, -1)
        while True:
            await clock.sleep(self._context.settings.sweep_s)
            revision = self._registry.policies_revision
            if await self._sweep_once(changed=revision != applied):
                applied = revision

    async def _sweep_once(self, *, changed: bool) -> bool:
        """`changed`: whether there may be new policies; answers whether all topics have them now."""
        applied = True
        for number, topic in enumerate(self.served, 1):
            claim = self._claims.get(topic.name)
            if claim is not None and not claim.held:
                await self.unload(topic.name, "this broker lost the topic")
            elif changed:
                applied &= await self._apply_policies(topic)
            if not number % _SWEPT_AT_ONCE:
                await self._context.runtime.clock.sleep(0)
        return applied

    async def _apply_policies(self, topic: AnyTopic) -> bool:
        """Whether they hold now."""
        if isinstance(topic, BrokerTopic):
            rules = self._context.queue_rules.of(topic.name)
            if rules is not topic.queue_rules and rules != topic.queue_rules:
                topic.apply_queue(rules)
        policies = self._registry.policies(topic.name)
        if policies is not topic.policies and policies != topic.policies:
            try:
                await topic.apply(policies)
            except WeirError as failed:
                log.warning("the policies of %s could not be applied yet: %s", topic.name, failed)
                return False
        return True

    async def _forget(
        self, name: TopicName, loaded: "asyncio.Task[AnyTopic]", reason: str, pass_on: PassOn | None = None
    ) -> None:
        if self._topics.get(name) is loaded:
            del self._topics[name]
            await self._end(loaded.result(), reason, pass_on)

    async def unload(
        self, name: TopicName, reason: str = "the topic is unloaded", pass_on: PassOn | None = None
    ) -> None:
        """Let go of a topic; the next who asks loads it again, here or elsewhere. `pass_on` may tell that broker
        how it was left."""
        loading = self._topics.get(name)
        if loading is not None:
            await asyncio.shield(loading)
            await self._forget(name, loading, reason, pass_on)

    async def _end(self, topic: AnyTopic, reason: str, pass_on: PassOn | None = None) -> None:
        ending = self._ending[topic.name] = asyncio.get_running_loop().create_future()
        try:
            if isinstance(topic, BrokerTopic):
                await topic.close(reason, pass_on)
                self._left_ledgers.add(topic.left_open)
                if pass_on is None and topic.name.namespace != SYSTEM_NAMESPACE:
                    await self._overviews.note(topic)
            else:
                await topic.close(reason)
        except WeirError as failed:
            log.warning("%s did not close cleanly: %s", topic.name, failed)
        finally:
            self._claims.pop(topic.name, None)
            self._unused.forget(topic.name)
            self._registry.let_go_of_topic(topic.name)
            ending.set_result(None)
            if self._ending.get(topic.name) is ending:
                del self._ending[topic.name]

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """End a topic with all of its partitions and everything in them. Those that are connected are a reason not
        to, unless forced (NotAllowedError)."""
        await self.deletions.delete(name, force=force)

    async def check_unused(self, part: TopicName) -> None:
        """NotAllowedError if somebody is connected to the topic; NotOwnerError if it is another broker's."""
        (await self.load(part, create=False)).check_unused()

    async def erase(self, part: TopicName) -> None:
        """Close a part of a topic that is being deleted, and delete what it holds; NotOwnerError if it is another
        broker's."""
        await self.deletions.erase(part)

    async def put_down(self, part: TopicName) -> None:
        """Close a topic that is being deleted, if it is served here."""
        loading = self._topics.get(part)
        if loading is not None:
            await asyncio.wait([loading])
            if self._topics.get(part) is loading and not loading.cancelled() and loading.exception() is None:
                del self._topics[part]
                await self._end(loading.result(), "the topic is deleted")
        while (ending := self._ending.get(part)) is not None:
            await asyncio.wait([ending])

    async def partitions(self, name: TopicName, *, role: str, create: bool = True) -> int:
        self._check(role, name)
        if name.partition is not None:
            return 0  # a partition has no partitions
        while True:
            await self._free(name)
            record = await self._registry.ensure_topic(name, create=create)
            if not record.deleting:
                return record.partitions
            await self.deletions.finish(record.name)

    async def owner(self, name: TopicName, *, role: str) -> Owner:
        self._context.guard.check(role, name, None)
        return await self._ownership.owner(name)

    async def holder(self, name: TopicName) -> Owner:
        """Who has the topic, whoever asks."""
        return self._ownership.owner_now(name)

    def owner_now(self, name: TopicName) -> Owner:
        """`holder`, from memory."""
        return self._ownership.owner_now(name)

    def owners_now(self, name: TopicName, partitions: Sequence[int]) -> list[Owner]:
        return self._ownership.owners_now(name, partitions)

    def brokers(self) -> list[BrokerInfo]:
        return self._ownership.brokers()

    def former_brokers(self) -> list[BrokerInfo]:
        return self._ownership.former_brokers()

    async def is_stored(self, name: TopicName) -> bool:
        """Whether there is anything of the topic, loaded or not."""
        return await self._context.streams.meta.get(keys.stream(stream_name(name))) is not None

    async def topics(self, namespace: str, *, role: str, pattern: str | None = None) -> list[TopicName]:
        name = NamespaceName.parse(namespace)
        self._context.guard.check_listing(role, name)
        found: list[TopicName] = []
        size = 0
        try:
            async for some in self._registry.topic_names(name, pattern=pattern):
                found += some
                size += sum(len(part.local) + len(namespace) for part in some)
                check_size(size)
        except (NamespaceNotFoundError, TenantNotFoundError):
            return []  # a client that subscribes by pattern may come before the namespace
        return found

    async def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        if self._authenticator is None:
            raise NotAuthenticatedError(f"authentication method {method!r} is not known here")
        return self._authenticator.authenticate(method, credentials, certificate=certificate)

    async def close(self) -> None:
        """Let go of every topic."""
        self._closing = True
        await self.deletions.close()
        names = list(self._topics)
        for first in range(0, len(names), _CLOSED_AT_ONCE):
            await asyncio.gather(*map(self._unload_quietly, names[first : first + _CLOSED_AT_ONCE]))
        await self._left_ledgers.close()
        await self._context.streams.coming.close()
        await self._tasks.close()

    async def _unload_quietly(self, name: TopicName) -> None:
        try:
            await self.unload(name, "the broker is going down")
        except WeirError as failed:
            log.warning("%s was not unloaded: %s", name, failed)
