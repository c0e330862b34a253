"""Definitions of streams in the metadata: what is wanted, what the runner says of them, and which runner it is.

The store is asked each time: these are looked at by people, and by one runner every other second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weir.broker.api import Described
from weir.broker.registry.leased_runner import LeasedRunner
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, read, upsert
from weir.model.errors import (
    MetaConflictError,
    SqlStreamExistsError,
    SqlStreamNotFoundError,
    TooManyError,
)
from weir.model.sql_streams import SqlStream, StreamProgress, Wanted
from weir.model.topics import NamespaceName, TopicName
from weir.runtime import Runtime
from weir.wire.sql_streams import (
    decode_progress,
    decode_stream,
    encode_progress,
    encode_stream,
)

STREAM: Codec[SqlStream] = Codec(encode_stream, decode_stream)
PROGRESS: Codec[StreamProgress] = Codec(encode_progress, decode_progress)

_MAX_STREAMS = 1_000
_DELETE_ATTEMPTS = 20


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
            raise _none(name)
        told = await read(self._meta, keys.sql_progress(name), PROGRESS)
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
                raise _none(name)
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
            raise _none(name)
        stamped = replace(progress, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.sql_progress(name), encode_progress(stamped))


def _none(name: TopicName) -> SqlStreamNotFoundError:
    return SqlStreamNotFoundError(f"there is no stream {name}")
