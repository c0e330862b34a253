"""Definitions of connectors in the metadata: what is wanted, what the runner says of them, and which runner it is.

The store is asked each time: these are looked at by people, and by one runner every other second.

Functions in the metadata: what is deployed, what the runner says of them, and which runner it is.

The store is asked each time: these are looked at by people, and by one runner every other second.

Definitions of streams in the metadata: what is wanted, what the runner says of them, and which runner it is.

The store is asked each time: these are looked at by people, and by one runner every other second.

Replays in the metadata: what was asked for, by whom, how far it is. The store is asked each time.

The runner of streams, connectors or functions, by a lease in the metadata.
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
    """Fills `api.LeasedRunner`, for who keeps what is run; `runs`: that, in words."""

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

#: Kept at the most; of those that have ended, the oldest goes first.
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
                raise NotAllowedError(f"there is a replay {wanted.id} already")
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
    """What it is by this report. What was fixed stays so, and counts only grow: two processes may go on with
    one replay, and the slower one's word changes nothing."""
    if current.state in _ENDED:
        if current.state is ReplayState.CANCELLED and step.state is None and step.delivered is not None:
            # Who delivers learns only now that it was ended, and what it did until then counts.
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
        raise NotAllowedError(f"replay {current.id} goes to {len(before)} partitions")
    return tuple(max(old, new) for old, new in zip(before, delivered, strict=True))


def _replays_none(topic: TopicName, replay: str) -> ReplayNotFoundError:
    return ReplayNotFoundError(f"{topic} has no replay {replay}", hint="those that there are: weir replay list")


CONNECTOR: Codec[Connector] = Codec(encode_connector, decode_connector)
PROGRESS: Codec[ConnectorProgress] = Codec(encode_connector_progress, decode_connector_progress)

_MAX_CONNECTORS = 1_000
_DELETE_ATTEMPTS = 20


class Connectors(LeasedRunner):
    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        super().__init__(meta, runtime, keys.CONNECTOR_RUNNER, "connectors")

    # --- definitions --------------------------------------------------------------------------------------------

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[DescribedConnector]:
        """All of them, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        told = await self._meta.list(f"{keys.CONNECTOR_PROGRESS}{within}")
        progress = {one.id: one for one in (decode_connector_progress(item.value) for item in told.items)}
        found = await self._meta.list(f"{keys.CONNECTORS}{within}")
        connectors = [decode_connector(item.value) for item in found.items]
        return [DescribedConnector(one, progress.get(one.id)) for one in connectors]

    async def get(self, name: TopicName) -> DescribedConnector:
        """ConnectorNotFoundError if there is none."""
        found = await read(self._meta, keys.connector(name), CONNECTOR)
        if found is None:
            raise _none(name)
        told = await read(self._meta, keys.connector_progress(name), PROGRESS)
        progress = told.value if told is not None and told.value.id == found.value.id else None
        return DescribedConnector(found.value, progress)

    async def add(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Define it. Asking twice is fine; ConnectorExistsError if there is another of this name."""
        listed = await self._meta.list(keys.CONNECTORS)
        if len(listed.items) >= _MAX_CONNECTORS and all(item.key != keys.connector(name) for item in listed.items):
            raise TooManyError(f"there are {_MAX_CONNECTORS} connectors", hint="remove one first")
        connector_id = f"{self._runtime.rng.getrandbits(96):024x}"
        wanted, now_ms = ConnectorWanted.RUNNING, self._runtime.clock.wall_ms()
        new = Connector(name, connector_id, config, wanted, role, now_ms)

        def changed(current: Connector | None) -> Connector:
            if current is not None and current.config != config:
                raise ConnectorExistsError(f"there is a connector {name.local} already")
            return current or new

        return (await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)).value

    async def update(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Change its definition. It keeps its id, and with it its positions. ConnectorNotFoundError."""

        def changed(current: Connector | None) -> Connector:
            if current is None:
                raise _none(name)
            return current if current.config == config else replace(current, config=config, role=role)

        return (await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)).value

    async def want(self, name: TopicName, wanted: ConnectorWanted) -> None:
        """Change what it shall do; ConnectorNotFoundError if there is none."""

        def changed(current: Connector | None) -> Connector:
            if current is None:
                raise _none(name)
            return current if current.wanted is wanted else replace(current, wanted=wanted)

        await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)

    async def delete(self, name: TopicName) -> None:
        """ConnectorNotFoundError if there is none. What it carried stays; the rest its runner cleans."""
        for _ in range(_DELETE_ATTEMPTS):
            found = await self._meta.get(keys.connector(name))
            if found is None:
                raise _none(name)
            await self._note_removed(decode_connector(found.value))
            try:
                await self._meta.delete(found.key, expect=found.version)
            except MetaConflictError:
                continue  # it was paused or resumed meanwhile
            await self._meta.delete(keys.connector_progress(name))
            return
        raise MetaConflictError(f"{name} is changed again and again", hint="try again")

    # --- what removed ones left ---------------------------------------------------------------------------------

    async def _note_removed(self, connector: Connector) -> None:
        """Before it is gone, so that no crash leaves something that nobody knows of."""
        listed = await self._meta.list(keys.CONNECTORS_REMOVED)
        if len(listed.items) < _MAX_CONNECTORS:
            await self._meta.put(keys.connector_removed(connector.id), encode_connector(connector))

    async def removed(self) -> Sequence[Connector]:
        """Connectors that are no more, and may have left something."""
        defined = {one.connector.id for one in await self.list()}
        listed = await self._meta.list(keys.CONNECTORS_REMOVED)
        found = [decode_connector(item.value) for item in listed.items]
        return [connector for connector in found if connector.id not in defined]

    async def forget_removed(self, connector_id: str) -> None:
        """Nothing is left of it; fine if it was forgotten before."""
        await self._meta.delete(keys.connector_removed(connector_id))

    # --- the runner's word --------------------------------------------------------------------------------------

    async def report(self, name: TopicName, progress: ConnectorProgress) -> None:
        """ConnectorNotFoundError unless it is about the connector that has this name now."""
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
        """All of them, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        told = await self._meta.list(f"{keys.FUNCTION_STATS}{within}")
        stats = {one.id: one for one in (decode_stats(item.value) for item in told.items)}
        found = await self._meta.list(f"{keys.FUNCTIONS}{within}")
        functions = [decode_function(item.value) for item in found.items]
        return [Deployed(one, stats.get(one.id)) for one in functions]

    async def get(self, name: TopicName) -> Deployed:
        """FunctionNotFoundError if there is none."""
        found = await read(self._meta, keys.function(name), FUNCTION)
        if found is None:
            raise _functions_none(name)
        told = await read(self._meta, keys.function_stats(name), STATS)
        stats = told.value if told is not None and told.value.id == found.value.id else None
        return Deployed(found.value, stats)

    async def deploy(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """A new one. Asking twice is fine; FunctionExistsError if there is another of this name."""
        listed = await self._meta.list(keys.FUNCTIONS)
        if len(listed.items) >= _MAX_FUNCTIONS and all(item.key != keys.function(name) for item in listed.items):
            raise TooManyError(f"there are {_MAX_FUNCTIONS} functions", hint="delete one first")
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
                raise FunctionExistsError(f"there is a function {name.local} already")
            return current or new

        return (await upsert(self._meta, keys.function(name), FUNCTION, deployed, runtime=self._runtime)).value

    async def update(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """Its next version, if anything is different; FunctionNotFoundError if there is none."""
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
        """What it shall do; FunctionNotFoundError if there is none."""

        def changed(current: Function | None) -> Function:
            if current is None:
                raise _functions_none(name)
            return replace(current, wanted=wanted)

        return (await upsert(self._meta, keys.function(name), FUNCTION, changed, runtime=self._runtime)).value

    async def delete(self, name: TopicName) -> None:
        """FunctionNotFoundError if there is none. Its topics stay."""
        found = await self._meta.get(keys.function(name))
        if found is None:
            raise _functions_none(name)
        await self._meta.delete(found.key)
        await self._meta.delete(keys.function_stats(name))

    # --- the runner's word --------------------------------------------------------------------------------------

    async def report(self, name: TopicName, stats: FunctionStats) -> None:
        """FunctionNotFoundError unless it is about the function that has this name now."""
        found = await read(self._meta, keys.function(name), FUNCTION)
        if found is None or found.value.id != stats.id:
            raise _functions_none(name)
        stamped = replace(stats, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.function_stats(name), encode_stats(stamped))


def _check_alone(name: TopicName, what: Definition, others: Sequence[Function]) -> None:
    """A function's name is its subscription's: two of one name in two namespaces would move each other's position
    in a topic that both read, and whoever is deleted first would take what is kept for the other."""
    for other in others:
        shared = [topic for topic in what.inputs if topic in other.inputs]
        if shared and other.name.local == name.local and other.name != name:
            raise FunctionExistsError(
                f"the function {name.local} of {other.name.namespace} reads {shared[0]} by the same subscription",
                hint="give this one another name",
            )


def _definition(function: Function) -> tuple[object, ...]:
    """What an update can change."""
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
        """All of them, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        told = await self._meta.list(f"{keys.SQL_PROGRESS}{within}")
        progress = {one.id: one for one in (decode_progress(item.value) for item in told.items)}
        found = await self._meta.list(f"{keys.SQL_STREAMS}{within}")
        streams = [decode_stream(item.value) for item in found.items]
        return [Described(stream, progress.get(stream.id)) for stream in streams]

    async def get(self, name: TopicName) -> Described:
        """SqlStreamNotFoundError if there is none."""
        found = await read(self._meta, keys.sql_stream(name), STREAM)
        if found is None:
            raise _sql_streams_none(name)
        told = await read(self._meta, keys.sql_progress(name), SQL_STREAMS_PROGRESS)
        progress = told.value if told is not None and told.value.id == found.value.id else None
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
        """Define it, or change what it shall do. Asking twice is fine; SqlStreamExistsError if there is another of
        this name."""
        listed = await self._meta.list(keys.SQL_STREAMS)
        if len(listed.items) >= _MAX_STREAMS and all(item.key != keys.sql_stream(name) for item in listed.items):
            raise TooManyError(f"there are {_MAX_STREAMS} streams", hint="drop one first")
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
        """SqlStreamNotFoundError if there is none. What it wrote stays; the rest its runner cleans."""
        for _ in range(_DELETE_ATTEMPTS):
            found = await self._meta.get(keys.sql_stream(name))
            if found is None:
                raise _sql_streams_none(name)
            await self._note_dropped(decode_stream(found.value))
            try:
                await self._meta.delete(found.key, expect=found.version)
            except MetaConflictError:
                continue  # it was paused or resumed meanwhile
            await self._meta.delete(keys.sql_progress(name))
            return
        raise MetaConflictError(f"{name} is changed again and again", hint="try again")

    # --- what dropped ones left ---------------------------------------------------------------------------------

    async def _note_dropped(self, stream: SqlStream) -> None:
        """Before it is gone, so that no crash leaves something that nobody knows of."""
        listed = await self._meta.list(keys.SQL_DROPPED)
        if len(listed.items) < _MAX_STREAMS:
            await self._meta.put(keys.sql_dropped(stream.id), encode_stream(stream))

    async def dropped(self) -> Sequence[SqlStream]:
        """Streams that are no more, and may have left something."""
        defined = {one.stream.id for one in await self.list()}
        listed = await self._meta.list(keys.SQL_DROPPED)
        found = [decode_stream(item.value) for item in listed.items]
        return [stream for stream in found if stream.id not in defined]

    async def forget_dropped(self, stream_id: str) -> None:
        """Nothing is left of it; fine if it was forgotten before."""
        await self._meta.delete(keys.sql_dropped(stream_id))

    # --- the runner's word --------------------------------------------------------------------------------------

    async def report(self, name: TopicName, progress: StreamProgress) -> None:
        """SqlStreamNotFoundError unless it is about the stream that has this name now."""
        found = await read(self._meta, keys.sql_stream(name), STREAM)
        if found is None or found.value.id != progress.id:
            raise _sql_streams_none(name)
        stamped = replace(progress, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.sql_progress(name), encode_progress(stamped))


def _sql_streams_none(name: TopicName) -> SqlStreamNotFoundError:
    return SqlStreamNotFoundError(f"there is no stream {name}")
