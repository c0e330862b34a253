"""Definitions of SQL streams, connectors, functions and replays in the metadata, with their reported progress.

One runner at a time runs all streams, all connectors or all functions; it owns a lease in the metadata. Every call
reads the store: callers are administrators, and a runner every two seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weir.broker.api.definitions import Definition, Deployed, Described, DescribedConnector, ReplayStep
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, read, upsert
from weir.model.definitions import (
    Connector,
    ConnectorProgress,
    ConnectorWanted,
    Function,
    FunctionStats,
    FunctionWanted,
    Replay,
    ReplayState,
    RunnerLease,
    SqlStream,
    StreamProgress,
    Wanted,
)
from weir.model.errors import (
    ConnectorExistsError,
    ConnectorNotFoundError,
    FunctionExistsError,
    FunctionNotFoundError,
    MetaConflictError,
    NotAllowedError,
    ReplayNotFoundError,
    RunnerBusyError,
    SqlStreamExistsError,
    SqlStreamNotFoundError,
    TooManyError,
)
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.definitions import (
    decode_connector,
    decode_connector_progress,
    decode_function,
    decode_progress,
    decode_replay,
    decode_runner,
    decode_stats,
    decode_stream,
    encode_connector,
    encode_connector_progress,
    encode_function,
    encode_progress,
    encode_replay,
    encode_runner,
    encode_stats,
    encode_stream,
)

RUNNER: Codec[RunnerLease] = Codec(encode_runner, decode_runner)


class LeasedRunner:
    """Fills `api.LeasedRunner` for one kind of definitions; `runs`: the kind as a plural, for messages."""

    def __init__(self, meta: MetaStore, runtime: Runtime, key: str, runs: str) -> None:
        self._meta = meta
        self._runtime = runtime
        self._lease_key = key
        self._runs = runs

    async def runner(self) -> RunnerLease | None:
        found = await read(self._meta, self._lease_key, RUNNER)
        return found.value if found is not None and self._alive(found.value) else None

    async def take_runner(self, runner: str, where: str, ttl_ms: int) -> RunnerLease:
        expires_ms = self._runtime.clock.wall_ms() + ttl_ms

        def taken(current: RunnerLease | None) -> RunnerLease:
            if current is not None and current.runner != runner and self._alive(current):
                raise RunnerBusyError(f"the {self._runs} are run by {current.where}")
            return RunnerLease(runner, where, expires_ms)

        return (await upsert(self._meta, self._lease_key, RUNNER, taken, runtime=self._runtime)).value

    async def release_runner(self, runner: str) -> None:
        def released(current: RunnerLease | None) -> RunnerLease:
            if current is None or current.runner != runner:
                return current or RunnerLease(runner, "", 0)
            return replace(current, expires_ms=0)

        await upsert(self._meta, self._lease_key, RUNNER, released, runtime=self._runtime)

    def _alive(self, lease: RunnerLease) -> bool:
        return lease.expires_ms > self._runtime.clock.wall_ms()


REPLAY: Codec[Replay] = Codec(encode_replay, decode_replay)

#: Limit of stored replays; the oldest ended ones are deleted first.
_MAX_REPLAYS = 1_000
_ENDED = (ReplayState.DONE, ReplayState.CANCELLED)


class Replays:
    """Fills `api.Replays`."""

    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        self._meta = meta
        self._runtime = runtime

    async def list(self, topic: TopicName | None = None) -> Sequence[Replay]:
        within = "" if topic is None else f"{topic.namespace}/{topic.local}/"
        found = await self._meta.list(f"{keys.REPLAYS}{within}")
        listed = [decode_replay(item.value) for item in found.items]
        return sorted(listed, key=lambda one: (one.created_ms, one.id))

    async def get(self, topic: TopicName, replay: str) -> Replay:
        found = await read(self._meta, keys.replay(topic, replay), REPLAY)
        if found is None:
            raise _replays_none(topic, replay)
        return found.value

    async def begin(self, wanted: Replay) -> Replay:
        await self._make_room()
        now_ms = self._runtime.clock.wall_ms()
        new = replace(wanted, created_ms=now_ms, updated_ms=now_ms, state=ReplayState.SELECTING)

        def made(current: Replay | None) -> Replay:
            if current is None:
                return new
            if replace(current, created_ms=0, updated_ms=0) != replace(new, created_ms=0, updated_ms=0):
                raise NotAllowedError(f"replay {wanted.id} exists already with another definition")
            return current

        key = keys.replay(wanted.topic, wanted.id)
        return (await upsert(self._meta, key, REPLAY, made, runtime=self._runtime)).value

    async def report(self, topic: TopicName, replay: str, step: ReplayStep) -> Replay:
        def moved(current: Replay | None) -> Replay:
            if current is None:
                raise _replays_none(topic, replay)
            return _after(current, step, self._runtime.clock.wall_ms())

        done = await upsert(self._meta, keys.replay(topic, replay), REPLAY, moved, runtime=self._runtime)
        return done.value

    async def forget(self, topic: TopicName, replay: str) -> None:
        await self.get(topic, replay)
        await self._meta.delete(keys.replay(topic, replay))

    async def _make_room(self) -> None:
        listed = await self.list()
        ended = [one for one in listed if one.state in _ENDED]
        over = len(listed) - _MAX_REPLAYS + 1
        if over > len(ended):
            raise TooManyError(f"{_MAX_REPLAYS} replays have not ended", hint="cancel some: weir replay cancel ID")
        for one in ended[: max(0, over)]:
            await self._meta.delete(keys.replay(one.topic, one.id))


def _after(current: Replay, step: ReplayStep, now_ms: int) -> Replay:
    """The replay after this report. Fixed values do not change, and counts only increase: if two processes
    continue one replay, reports of the slower one have no effect."""
    if current.state in _ENDED:
        if current.state is ReplayState.CANCELLED and step.state is None and step.delivered is not None:
            # The executor learns of the cancellation only now; its deliveries until then count.
            return replace(current, delivered=_more(current, step.delivered), updated_ms=now_ms)
        if step.state is not current.state:
            raise NotAllowedError(f"replay {current.id} is {current.state.value}")
        return current
    found = replace(current, state=step.state or current.state, updated_ms=now_ms)
    if current.state is ReplayState.DELIVERING and step.state is ReplayState.SELECTING:
        raise NotAllowedError(f"replay {current.id} has its messages already")
    if step.selected is not None:
        if current.selected and current.selected != step.selected:
            raise NotAllowedError(f"replay {current.id} has its messages already")
        found = replace(found, selected=step.selected, delivered=current.delivered or (0,) * len(step.selected))
    if step.producer is not None:
        if current.producer_id >= 0 and step.producer != (current.producer_id, current.producer_epoch):
            raise NotAllowedError(f"replay {current.id} has a producer already")
        found = replace(found, producer_id=step.producer[0], producer_epoch=step.producer[1])
    if step.delivered is not None:
        found = replace(found, delivered=_more(found, step.delivered))
    return found


def _more(current: Replay, delivered: tuple[int, ...]) -> tuple[int, ...]:
    before = current.delivered or (0,) * len(delivered)
    if len(before) != len(delivered):
        raise NotAllowedError(f"replay {current.id} has {len(before)} partitions, the report has {len(delivered)}")
    return tuple(max(old, new) for old, new in zip(before, delivered, strict=True))


def _replays_none(topic: TopicName, replay: str) -> ReplayNotFoundError:
    return ReplayNotFoundError(f"{topic} has no replay {replay}", hint="list them with: weir replay list")


CONNECTOR: Codec[Connector] = Codec(encode_connector, decode_connector)
PROGRESS: Codec[ConnectorProgress] = Codec(encode_connector_progress, decode_connector_progress)

_MAX_CONNECTORS = 1_000
_DELETE_ATTEMPTS = 20


class Connectors(LeasedRunner):
    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        super().__init__(meta, runtime, keys.CONNECTOR_RUNNER, "connectors")

    # --- definitions --------------------------------------------------------------------------------------------

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[DescribedConnector]:
        """All definitions, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        reported = await self._meta.list(f"{keys.CONNECTOR_PROGRESS}{within}")
        progress = {one.id: one for one in (decode_connector_progress(item.value) for item in reported.items)}
        found = await self._meta.list(f"{keys.CONNECTORS}{within}")
        connectors = [decode_connector(item.value) for item in found.items]
        return [DescribedConnector(one, progress.get(one.id)) for one in connectors]

    async def get(self, name: TopicName) -> DescribedConnector:
        """The connector and its progress; ConnectorNotFoundError."""
        found = await read(self._meta, keys.connector(name), CONNECTOR)
        if found is None:
            raise _none(name)
        reported = await read(self._meta, keys.connector_progress(name), PROGRESS)
        progress = reported.value if reported is not None and reported.value.id == found.value.id else None
        return DescribedConnector(found.value, progress)

    async def add(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Define a connector. Idempotent; ConnectorExistsError if another one has this name."""
        listed = await self._meta.list(keys.CONNECTORS)
        if len(listed.items) >= _MAX_CONNECTORS and all(item.key != keys.connector(name) for item in listed.items):
            raise TooManyError(f"the limit of {_MAX_CONNECTORS} connectors is reached", hint="remove one first")
        connector_id = f"{self._runtime.rng.getrandbits(96):024x}"
        wanted, now_ms = ConnectorWanted.RUNNING, self._runtime.clock.wall_ms()
        new = Connector(name, connector_id, config, wanted, role, now_ms)

        def changed(current: Connector | None) -> Connector:
            if current is not None and current.config != config:
                raise ConnectorExistsError(f"connector {name.local} exists already")
            return current or new

        return (await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)).value

    async def update(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Change the definition. The connector keeps its id, and with it its positions. ConnectorNotFoundError."""

        def changed(current: Connector | None) -> Connector:
            if current is None:
                raise _none(name)
            return current if current.config == config else replace(current, config=config, role=role)

        return (await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)).value

    async def want(self, name: TopicName, wanted: ConnectorWanted) -> None:
        """Set the wanted state; ConnectorNotFoundError."""

        def changed(current: Connector | None) -> Connector:
            if current is None:
                raise _none(name)
            return current if current.wanted is wanted else replace(current, wanted=wanted)

        await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)

    async def delete(self, name: TopicName) -> None:
        """Delete the definition; ConnectorNotFoundError. Copied data stays; the runner deletes the connector's
        state."""
        for _ in range(_DELETE_ATTEMPTS):
            found = await self._meta.get(keys.connector(name))
            if found is None:
                raise _none(name)
            await self._note_removed(decode_connector(found.value))
            try:
                await self._meta.delete(found.key, expect=found.version)
            except MetaConflictError:
                continue  # paused or resumed meanwhile
            await self._meta.delete(keys.connector_progress(name))
            return
        raise MetaConflictError(f"{name} was changed concurrently", hint="try again")

    # --- removed connectors -------------------------------------------------------------------------------------

    async def _note_removed(self, connector: Connector) -> None:
        """Record the connector before its deletion, so that a crash leaves no unknown state behind."""
        listed = await self._meta.list(keys.CONNECTORS_REMOVED)
        if len(listed.items) < _MAX_CONNECTORS:
            await self._meta.put(keys.connector_removed(connector.id), encode_connector(connector))

    async def removed(self) -> Sequence[Connector]:
        """Removed connectors that may have state left."""
        defined = {one.connector.id for one in await self.list()}
        listed = await self._meta.list(keys.CONNECTORS_REMOVED)
        found = [decode_connector(item.value) for item in listed.items]
        return [connector for connector in found if connector.id not in defined]

    async def forget_removed(self, connector_id: str) -> None:
        """Delete the record of a removed connector without remaining state. Idempotent."""
        await self._meta.delete(keys.connector_removed(connector_id))

    # --- reports of the runner ----------------------------------------------------------------------------------

    async def report(self, name: TopicName, progress: ConnectorProgress) -> None:
        """Store the progress. ConnectorNotFoundError unless the current connector of this name has the id."""
        found = await read(self._meta, keys.connector(name), CONNECTOR)
        if found is None or found.value.id != progress.id:
            raise _none(name)
        stamped = replace(progress, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.connector_progress(name), encode_connector_progress(stamped))


def _none(name: TopicName) -> ConnectorNotFoundError:
    return ConnectorNotFoundError(f"there is no connector {name.namespace}/{name.local}")


FUNCTION: Codec[Function] = Codec(encode_function, decode_function)
STATS: Codec[FunctionStats] = Codec(encode_stats, decode_stats)

_MAX_FUNCTIONS = 1_000


class Functions(LeasedRunner):
    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        super().__init__(meta, runtime, keys.FUNCTION_RUNNER, "functions")

    # --- definitions --------------------------------------------------------------------------------------------

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[Deployed]:
        """All definitions, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        reported = await self._meta.list(f"{keys.FUNCTION_STATS}{within}")
        stats = {one.id: one for one in (decode_stats(item.value) for item in reported.items)}
        found = await self._meta.list(f"{keys.FUNCTIONS}{within}")
        functions = [decode_function(item.value) for item in found.items]
        return [Deployed(one, stats.get(one.id)) for one in functions]

    async def get(self, name: TopicName) -> Deployed:
        """The function and its stats; FunctionNotFoundError."""
        found = await read(self._meta, keys.function(name), FUNCTION)
        if found is None:
            raise _functions_none(name)
        reported = await read(self._meta, keys.function_stats(name), STATS)
        stats = reported.value if reported is not None and reported.value.id == found.value.id else None
        return Deployed(found.value, stats)

    async def deploy(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """Deploy a new function. Idempotent; FunctionExistsError if another one has this name."""
        listed = await self._meta.list(keys.FUNCTIONS)
        if len(listed.items) >= _MAX_FUNCTIONS and all(item.key != keys.function(name) for item in listed.items):
            raise TooManyError(f"the limit of {_MAX_FUNCTIONS} functions is reached", hint="delete one first")
        _check_alone(name, what, [decode_function(item.value) for item in listed.items])
        now_ms = self._runtime.clock.wall_ms()
        new = Function(
            name=name,
            id=f"{self._runtime.rng.getrandbits(96):024x}",
            version=1,
            code=what.code,
            file=what.file,
            entry=what.entry,
            inputs=what.inputs,
            output=what.output,
            options=dict(what.options),
            role=role,
            created_ms=now_ms,
            updated_ms=now_ms,
        )

        def deployed(current: Function | None) -> Function:
            if current is not None and _definition(current) != _definition(new):
                raise FunctionExistsError(f"function {name.local} exists already")
            return current or new

        return (await upsert(self._meta, keys.function(name), FUNCTION, deployed, runtime=self._runtime)).value

    async def update(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """Store the next version if the definition differs; FunctionNotFoundError."""
        listed = await self._meta.list(keys.FUNCTIONS)
        _check_alone(name, what, [decode_function(item.value) for item in listed.items])
        now_ms = self._runtime.clock.wall_ms()

        def updated(current: Function | None) -> Function:
            if current is None:
                raise _functions_none(name)
            new = replace(
                current,
                version=current.version + 1,
                code=what.code,
                file=what.file,
                entry=what.entry,
                inputs=what.inputs,
                output=what.output,
                options=dict(what.options),
                role=role,
                updated_ms=now_ms,
            )
            return current if _definition(new) == _definition(current) else new

        return (await upsert(self._meta, keys.function(name), FUNCTION, updated, runtime=self._runtime)).value

    async def want(self, name: TopicName, wanted: FunctionWanted) -> Function:
        """Set the wanted state; FunctionNotFoundError."""

        def changed(current: Function | None) -> Function:
            if current is None:
                raise _functions_none(name)
            return replace(current, wanted=wanted)

        return (await upsert(self._meta, keys.function(name), FUNCTION, changed, runtime=self._runtime)).value

    async def delete(self, name: TopicName) -> None:
        """Delete the function, without its topics; FunctionNotFoundError."""
        found = await self._meta.get(keys.function(name))
        if found is None:
            raise _functions_none(name)
        await self._meta.delete(found.key)
        await self._meta.delete(keys.function_stats(name))

    # --- reports of the runner ----------------------------------------------------------------------------------

    async def report(self, name: TopicName, stats: FunctionStats) -> None:
        """Store the stats. FunctionNotFoundError unless the current function of this name has the id."""
        found = await read(self._meta, keys.function(name), FUNCTION)
        if found is None or found.value.id != stats.id:
            raise _functions_none(name)
        stamped = replace(stats, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.function_stats(name), encode_stats(stamped))


def _check_alone(name: TopicName, what: Definition, others: Sequence[Function]) -> None:
    """FunctionExistsError if a function of the same name in another namespace reads one of these topics. The
    subscription has the name of the function: both would move one cursor, and a deletion would affect the
    other."""
    for other in others:
        shared = [topic for topic in what.inputs if topic in other.inputs]
        if shared and other.name.local == name.local and other.name != name:
            raise FunctionExistsError(
                f"the function {name.local} of {other.name.namespace} reads {shared[0]} by the same subscription",
                hint="give this one another name",
            )


def _definition(function: Function) -> tuple[object, ...]:
    """The fields that an update can change."""
    options = dict(function.options)
    return function.code, function.file, function.entry, function.inputs, function.output, options


def _functions_none(name: TopicName) -> FunctionNotFoundError:
    return FunctionNotFoundError(f"there is no function {name.local}")


STREAM: Codec[SqlStream] = Codec(encode_stream, decode_stream)
SQL_STREAMS_PROGRESS: Codec[StreamProgress] = Codec(encode_progress, decode_progress)

_MAX_STREAMS = 1_000


class SqlStreams(LeasedRunner):
    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        super().__init__(meta, runtime, keys.SQL_RUNNER, "streams")

    # --- definitions --------------------------------------------------------------------------------------------

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[Described]:
        """All definitions, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        reported = await self._meta.list(f"{keys.SQL_PROGRESS}{within}")
        progress = {one.id: one for one in (decode_progress(item.value) for item in reported.items)}
        found = await self._meta.list(f"{keys.SQL_STREAMS}{within}")
        streams = [decode_stream(item.value) for item in found.items]
        return [Described(stream, progress.get(stream.id)) for stream in streams]

    async def get(self, name: TopicName) -> Described:
        """The stream and its progress; SqlStreamNotFoundError."""
        found = await read(self._meta, keys.sql_stream(name), STREAM)
        if found is None:
            raise _sql_streams_none(name)
        reported = await read(self._meta, keys.sql_progress(name), SQL_STREAMS_PROGRESS)
        progress = reported.value if reported is not None and reported.value.id == found.value.id else None
        return Described(found.value, progress)

    async def put(
        self,
        name: TopicName,
        *,
        sql: str,
        sources: tuple[TopicName, ...],
        options: Mapping[str, str],
        wanted: Wanted,
        role: str,
    ) -> SqlStream:
        """Define the stream, or set its wanted state. Idempotent; SqlStreamExistsError if another stream has this
        name."""
        listed = await self._meta.list(keys.SQL_STREAMS)
        if len(listed.items) >= _MAX_STREAMS and all(item.key != keys.sql_stream(name) for item in listed.items):
            raise TooManyError(f"the limit of {_MAX_STREAMS} streams is reached", hint="drop one first")
        stream_id = f"{self._runtime.rng.getrandbits(96):024x}"
        new = SqlStream(name, stream_id, sql, sources, dict(options), wanted, role, self._runtime.clock.wall_ms())

        def changed(current: SqlStream | None) -> SqlStream:
            if current is None:
                return new
            if (current.sql, current.sources, dict(current.options)) != (sql, sources, dict(options)):
                raise SqlStreamExistsError(f"there is a stream {name} already")
            return current if current.wanted is wanted else replace(current, wanted=wanted)

        done = await upsert(self._meta, keys.sql_stream(name), STREAM, changed, runtime=self._runtime)
        return done.value

    async def delete(self, name: TopicName) -> None:
        """Delete the definition; SqlStreamNotFoundError. Written messages stay; the runner deletes the stream's
        state."""
        for _ in range(_DELETE_ATTEMPTS):
            found = await self._meta.get(keys.sql_stream(name))
            if found is None:
                raise _sql_streams_none(name)
            await self._note_dropped(decode_stream(found.value))
            try:
                await self._meta.delete(found.key, expect=found.version)
            except MetaConflictError:
                continue  # paused or resumed meanwhile
            await self._meta.delete(keys.sql_progress(name))
            return
        raise MetaConflictError(f"{name} was changed concurrently", hint="try again")

    # --- dropped streams ----------------------------------------------------------------------------------------

    async def _note_dropped(self, stream: SqlStream) -> None:
        """Record the stream before its deletion, so that a crash leaves no unknown state behind."""
        listed = await self._meta.list(keys.SQL_DROPPED)
        if len(listed.items) < _MAX_STREAMS:
            await self._meta.put(keys.sql_dropped(stream.id), encode_stream(stream))

    async def dropped(self) -> Sequence[SqlStream]:
        """Dropped streams that may have state left."""
        defined = {one.stream.id for one in await self.list()}
        listed = await self._meta.list(keys.SQL_DROPPED)
        found = [decode_stream(item.value) for item in listed.items]
        return [stream for stream in found if stream.id not in defined]

    async def forget_dropped(self, stream_id: str) -> None:
        """Delete the record of a dropped stream without remaining state. Idempotent."""
        await self._meta.delete(keys.sql_dropped(stream_id))

    # --- reports of the runner ----------------------------------------------------------------------------------

    async def report(self, name: TopicName, progress: StreamProgress) -> None:
        """Store the progress. SqlStreamNotFoundError unless the current stream of this name has the id."""
        found = await read(self._meta, keys.sql_stream(name), STREAM)
        if found is None or found.value.id != progress.id:
            raise _sql_streams_none(name)
        stamped = replace(progress, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.sql_progress(name), encode_progress(stamped))


def _sql_streams_none(name: TopicName) -> SqlStreamNotFoundError:
    return SqlStreamNotFoundError(f"there is no stream {name}")
