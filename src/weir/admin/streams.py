"""Routes for SQL streams (list, define, pause, drop), for the runner's reports, and for its lease.

To define a stream, a role must administer the namespace of its topic and be allowed to consume its sources. The
runner reads and writes for all streams, so it must be a superuser. Every role may see whether a runner is active.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TOPIC, CONFLICT, namespace_of, topic_of
from weir.admin.runner_leases import RunnerRoutes
from weir.admin.worker_lag import Unread, reader_of_stream
from weir.broker.api.definitions import Described, SqlStreams
from weir.model.definitions import MAX_SQL_CHARACTERS, SqlStream, StreamProgress, Wanted, check_query_size
from weir.model.errors import InvalidNameError, SqlStreamNotFoundError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.rest.routes import Call, Natural, RefusedError, Route

_WEIR = "/admin/weir/v1"
_ALL, _RUNNER = f"{_WEIR}/streams", f"{_WEIR}/stream-runner"
_OF = f"{_ALL}/{{tenant}}/{{namespace}}"
_ONE = f"{_OF}/{{topic}}"
_TAG = "streams"
_NONE_HERE = {501: "no streams are kept here"}

_Text = Annotated[str, Meta(max_length=4_000)]
_Word = Annotated[str, Meta(min_length=1, max_length=200)]


class StreamBody(Struct):
    """A definition. `sources`: the topics that it reads, in full."""

    sql: Annotated[str, Meta(min_length=1, max_length=MAX_SQL_CHARACTERS)]
    sources: Annotated[list[_Text], Meta(max_length=100)]
    options: Annotated[dict[_Word, _Text], Meta(max_length=50)] = field(default_factory=dict)
    state: Literal["running", "paused"] = "running"


class ProgressBody(Struct, rename="camel"):
    """The runner's report on a stream. `id`: the instance of the stream with this name."""

    id: _Word
    state: Literal["starting", "running", "failed", "paused"]
    rows_per_second: Annotated[float, Meta(ge=0, le=1e15)] = 0.0
    rows: Natural = 0
    lag: Natural = 0
    state_rows: Natural = 0
    state_bytes: Natural = 0
    batch: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    batch_ms: Natural = 0
    #: The last failure, the number of consecutive failures, the time of the last one, and the time of the next
    #: attempt (ms since 1970; 0: now, or none).
    error: _Text = ""
    failures: Natural = 0
    failed_ms: Natural = 0
    next_try_ms: Natural = 0


class ProgressAnswer(ProgressBody, rename="camel"):
    reported_ms: int = 0


class StreamAnswer(Struct, rename="camel"):
    #: The topic that it writes, in full.
    name: str
    id: str
    sql: str
    sources: list[str]
    options: dict[str, str]
    #: The desired state; the actual state is in `progress`.
    state: Literal["running", "paused"]
    role: str
    created_ms: int
    progress: ProgressAnswer | None = None
    #: Why the defining role lacks permission to run the stream; empty if it has permission.
    denied: str = ""


class Streams:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._unread = Unread(context)
        self._runners = RunnerRoutes(context, lambda: self._streams, _RUNNER, runs=_TAG, refusals=_NONE_HERE)

    def routes(self) -> list[Route]:
        about = {**ABOUT_TOPIC, **CONFLICT, **_NONE_HERE}
        within = {**ABOUT_NAMESPACE, **_NONE_HERE}
        listed = list[StreamAnswer]
        return [
            Route(
                "GET",
                _ALL,
                "All streams that the caller administers.",
                self._all,
                answer=listed,
                refusals=_NONE_HERE,
                tag=_TAG,
            ),
            Route("GET", _OF, "Streams of a namespace.", self._of, answer=listed, refusals=within, tag=_TAG),
            Route("GET", _ONE, "One stream.", self._get, answer=StreamAnswer, refusals=about, tag=_TAG),
            Route(
                "PUT",
                _ONE,
                "Define a stream, or let it run or pause.",
                self._put,
                body=StreamBody,
                answer=StreamAnswer,
                refusals=about,
                tag=_TAG,
            ),
            Route("DELETE", _ONE, "Drop a stream; its topic stays.", self._delete, refusals=about, tag=_TAG),
            Route(
                "PUT",
                f"{_ONE}/progress",
                "Report the progress of a stream (runner only).",
                self._report,
                body=ProgressBody,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_RUNNER}/dropped",
                "Dropped streams whose data the runner must still clean up.",
                self._dropped,
                answer=listed,
                refusals=_NONE_HERE,
                tag=_TAG,
            ),
            Route(
                "DELETE",
                f"{_RUNNER}/dropped/{{stream}}",
                "Confirm that a dropped stream is cleaned up (runner only).",
                self._cleaned,
                refusals=_NONE_HERE,
                tag=_TAG,
            ),
            *self._runners.routes(),
        ]

    @property
    def _streams(self) -> SqlStreams:
        found = self._context.sql_streams
        if found is None:
            raise RefusedError(501, "this broker keeps no streams")
        return found

    # --- definitions --------------------------------------------------------------------------------------------

    async def _all(self, call: Call) -> list[StreamAnswer]:
        """The streams that the caller administers."""
        may = self._context.authoriser.may_administer
        found = [one for one in await self._streams.list() if may(call.role, one.stream.name)]
        return await self._shown(call, found)

    async def _of(self, call: Call) -> list[StreamAnswer]:
        namespace = namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, namespace)
        self._context.registry.namespaces.get(namespace)
        return await self._shown(call, await self._streams.list(namespace))

    async def _get(self, call: Call) -> StreamAnswer:
        return (await self._shown(call, [await self._streams.get(self._administered(call))]))[0]

    async def _put(self, call: Call) -> StreamAnswer:
        name, body = self._administered(call), call.body
        self._context.registry.namespaces.get(name.namespace)
        if not await self._is_stored(name, body.sql):  # what earlier releases stored can still be paused
            check_query_size(body.sql)
        sources = tuple(TopicName.parse(source).base for source in body.sources)
        for source in sources:
            self._context.authoriser.check(call.role, Action.CONSUME, source)
        await self._streams.put(
            name,
            sql=body.sql,
            sources=sources,
            options=body.options,
            wanted=Wanted(body.state),
            role=call.role,
        )
        return self._answer(await self._streams.get(name))

    async def _is_stored(self, name: TopicName, sql: str) -> bool:
        try:
            return (await self._streams.get(name)).stream.sql == sql
        except SqlStreamNotFoundError:
            return False

    async def _delete(self, call: Call) -> None:
        await self._streams.delete(self._administered(call))

    async def _shown(self, call: Call, found: Sequence[Described]) -> list[StreamAnswer]:
        """Answers with the lag of each stream, computed from its subscription if no worker reports it."""
        shown = [self._answer(one) for one in found]
        if await self._streams.runner() is None:
            for one, answer in zip(found, shown, strict=True):
                if answer.progress is not None:
                    lag = await self._unread.lag(call, reader_of_stream(one.stream))
                    answer.progress.lag = answer.progress.lag if lag is None else lag
        return shown

    def _administered(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        if name.partition is not None:
            raise InvalidNameError(f"{name} is a partition", hint="a stream writes a whole topic")
        return name

    # --- the runner ---------------------------------------------------------------------------------------------

    async def _report(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        body: ProgressBody = call.body
        await self._streams.report(
            topic_of(call.path),
            StreamProgress(
                id=body.id,
                state=body.state,
                rows_per_second=body.rows_per_second,
                rows=body.rows,
                lag=body.lag,
                state_rows=body.state_rows,
                state_bytes=body.state_bytes,
                batch=body.batch,
                batch_ms=body.batch_ms,
                error=body.error,
                failures=body.failures,
                failed_ms=body.failed_ms,
                next_try_ms=body.next_try_ms,
            ),
        )

    async def _dropped(self, call: Call) -> list[StreamAnswer]:
        self._context.authoriser.check_superuser(call.role)
        return [self._answer(Described(stream, None)) for stream in await self._streams.dropped()]

    async def _cleaned(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        await self._streams.forget_dropped(call.path["stream"])

    # --- answers ------------------------------------------------------------------------------------------------

    def _answer(self, found: Described) -> StreamAnswer:
        stream, told = found.stream, found.progress
        return StreamAnswer(
            name=str(stream.name),
            id=stream.id,
            sql=stream.sql,
            sources=[str(source) for source in stream.sources],
            options=dict(stream.options),
            state=stream.wanted.value,
            role=stream.role,
            created_ms=stream.created_ms,
            progress=None if told is None else _told(told),
            denied=self._denied(stream),
        )

    def _denied(self, stream: SqlStream) -> str:
        """Why the stream's role lacks permission for it, or "". The runner may access everything, so it must not
        run a stream if the stream's role has no permission."""
        authoriser, role = self._context.authoriser, stream.role
        if not authoriser.may_administer(role, stream.name):
            return f"role {role!r}, which defined the stream, does not administer {stream.name.namespace} any more"
        for source in stream.sources:
            if not authoriser.may(role, Action.CONSUME, source):
                return f"role {role!r}, which defined the stream, may not consume {source} any more"
        return ""


def _told(told: StreamProgress) -> ProgressAnswer:
    return ProgressAnswer(
        id=told.id,
        state=told.state,  # type: ignore[arg-type]  # the runner wrote one of these words
        rows_per_second=told.rows_per_second,
        rows=told.rows,
        lag=told.lag,
        state_rows=told.state_rows,
        state_bytes=told.state_bytes,
        batch=told.batch,
        batch_ms=told.batch_ms,
        error=told.error,
        failures=told.failures,
        failed_ms=told.failed_ms,
        next_try_ms=told.next_try_ms,
        reported_ms=told.reported_ms,
    )
