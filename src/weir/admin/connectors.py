"""Connectors: list, define, pause, stop, remove; what their runner says of them; and who the runner is.

A connector reads files, variables and other systems from the runner's machine, so only a superuser defines one.
Whoever administers its namespace may look at it, let it pause or run, and remove it.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TOPIC, CONFLICT, namespace_of, topic_of
from weir.admin.runner_leases import RunnerRoutes
from weir.admin.worker_lag import Unread, reader_of_connector
from weir.broker.api.definitions import Connectors as KeptConnectors
from weir.broker.api.definitions import DescribedConnector
from weir.model.definitions import ConnectorProgress, ConnectorWanted
from weir.model.errors import InvalidNameError
from weir.model.topics import TopicName
from weir.rest.routes import Call, Natural, RefusedError, Route

_WEIR = "/admin/weir/v1"
_ALL, _RUNNER = f"{_WEIR}/connectors", f"{_WEIR}/connector-runner"
_OF = f"{_ALL}/{{tenant}}/{{namespace}}"
_ONE = f"{_OF}/{{topic}}"
_TAG = "connectors"
_NONE_HERE = {501: "no connectors are kept here"}

_Text = Annotated[str, Meta(max_length=4_000)]
_Word = Annotated[str, Meta(min_length=1, max_length=200)]
_State = Literal["running", "paused", "stopped"]


class ConnectorBody(Struct):
    """A definition: what the file of `weir connect add` says, as JSON. Secrets are named, never told."""

    config: Annotated[str, Meta(min_length=1, max_length=100_000)]


class WantedBody(Struct):
    state: _State


class ConnectorProgressBody(Struct, rename="camel"):
    """How far a connector is, by its runner. `id`: which connector of this name it is about."""

    id: _Word
    state: Literal["starting", "running", "failed", "paused", "stopped"]
    records: Natural = 0
    records_per_second: Annotated[float, Meta(ge=0, le=1e15)] = 0.0
    #: -1: not known.
    lag: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    dead_letters: Natural = 0
    restarts: Natural = 0
    batch_ms: Natural = 0
    position: _Text = ""
    #: What it last died of, how often in a row, when, and when it is tried again (ms since 1970; 0: now, or not).
    error: _Text = ""
    failures: Natural = 0
    failed_ms: Natural = 0
    next_try_ms: Natural = 0


class ConnectorProgressAnswer(ConnectorProgressBody, rename="camel"):
    reported_ms: int = 0


class ConnectorAnswer(Struct, rename="camel"):
    #: `tenant/namespace/name`.
    name: str
    id: str
    config: str
    #: What it shall do; what it does is its progress.
    state: _State
    role: str
    created_ms: int
    progress: ConnectorProgressAnswer | None = None


class Connectors:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._unread = Unread(context)
        self._runners = RunnerRoutes(context, lambda: self._kept, _RUNNER, runs=_TAG, refusals=_NONE_HERE)

    def routes(self) -> list[Route]:
        about = {**ABOUT_TOPIC, **CONFLICT, **_NONE_HERE}
        within = {**ABOUT_NAMESPACE, **_NONE_HERE}
        one, listed = ConnectorAnswer, list[ConnectorAnswer]

        def route(verb: str, path: str, what: str, work: object, **more: object) -> Route:
            return Route(verb, path, what, work, tag=_TAG, **more)  # type: ignore[arg-type]

        return [
            route(
                "GET",
                _ALL,
                "All connectors that the caller administers.",
                self._all,
                answer=listed,
                refusals=_NONE_HERE,
            ),
            route("GET", _OF, "A namespace's connectors.", self._of, answer=listed, refusals=within),
            route("GET", _ONE, "One connector.", self._get, answer=one, refusals=about),
            route("PUT", _ONE, "Define a connector.", self._put, body=ConnectorBody, answer=one, refusals=about),
            route(
                "POST",
                _ONE,
                "Change a connector's definition; its positions are kept.",
                self._update,
                body=ConnectorBody,
                answer=one,
                refusals=about,
            ),
            route("DELETE", _ONE, "Remove a connector; what it carried stays.", self._delete, refusals=about),
            route(
                "PUT", f"{_ONE}/state", "Let it run, pause or stop.", self._want, body=WantedBody, refusals=about
            ),
            route(
                "PUT",
                f"{_ONE}/progress",
                "The runner says how far it is.",
                self._report,
                body=ConnectorProgressBody,
                refusals=about,
            ),
            route(
                "GET",
                f"{_RUNNER}/removed",
                "Connectors that were removed, and may have left something for the runner to clean.",
                self._removed,
                answer=listed,
                refusals=_NONE_HERE,
            ),
            route(
                "DELETE",
                f"{_RUNNER}/removed/{{connector}}",
                "Nothing is left of a removed connector.",
                self._cleaned,
                refusals=_NONE_HERE,
            ),
            *self._runners.routes(),
        ]

    @property
    def _kept(self) -> KeptConnectors:
        found = self._context.connectors
        if found is None:
            raise RefusedError(501, "this broker keeps no connectors")
        return found

    # --- definitions --------------------------------------------------------------------------------------------

    async def _all(self, call: Call) -> list[ConnectorAnswer]:
        """Those that the caller administers."""
        may = self._context.authoriser.may_administer
        found = [one for one in await self._kept.list() if may(call.role, one.connector.name)]
        return await self._shown(call, found)

    async def _of(self, call: Call) -> list[ConnectorAnswer]:
        namespace = namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, namespace)
        self._context.registry.namespaces.get(namespace)
        return await self._shown(call, await self._kept.list(namespace))

    async def _get(self, call: Call) -> ConnectorAnswer:
        return (await self._shown(call, [await self._kept.get(self._administered(call))]))[0]

    async def _shown(self, call: Call, found: Sequence[DescribedConnector]) -> list[ConnectorAnswer]:
        """With what waits for each, also while no worker runs that would say so."""
        shown = [_shown(one) for one in found]
        if await self._kept.runner() is None:
            for one, answer in zip(found, shown, strict=True):
                if answer.progress is not None:
                    lag = await self._unread.lag(call, reader_of_connector(one.connector))
                    answer.progress.lag = answer.progress.lag if lag is None else lag
        return shown

    async def _put(self, call: Call) -> ConnectorAnswer:
        self._context.authoriser.check_superuser(call.role)
        name = _named(call)
        self._context.registry.namespaces.get(name.namespace)
        await self._kept.add(name, config=call.body.config, role=call.role)
        return _shown(await self._kept.get(name))

    async def _update(self, call: Call) -> ConnectorAnswer:
        self._context.authoriser.check_superuser(call.role)
        name = _named(call)
        await self._kept.update(name, config=call.body.config, role=call.role)
        return _shown(await self._kept.get(name))

    async def _want(self, call: Call) -> None:
        await self._kept.want(self._administered(call), ConnectorWanted(call.body.state))

    async def _delete(self, call: Call) -> None:
        await self._kept.delete(self._administered(call))

    def _administered(self, call: Call) -> TopicName:
        name = _named(call)
        self._context.authoriser.check_admin(call.role, name)
        return name

    # --- the runner ---------------------------------------------------------------------------------------------

    async def _report(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        body: ConnectorProgressBody = call.body
        await self._kept.report(
            topic_of(call.path),
            ConnectorProgress(
                id=body.id,
                state=body.state,
                records=body.records,
                records_per_second=body.records_per_second,
                lag=body.lag,
                dead_letters=body.dead_letters,
                restarts=body.restarts,
                batch_ms=body.batch_ms,
                position=body.position,
                error=body.error,
                failures=body.failures,
                failed_ms=body.failed_ms,
                next_try_ms=body.next_try_ms,
            ),
        )

    async def _removed(self, call: Call) -> list[ConnectorAnswer]:
        self._context.authoriser.check_superuser(call.role)
        return [_shown(DescribedConnector(one, None)) for one in await self._kept.removed()]

    async def _cleaned(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        await self._kept.forget_removed(call.path["connector"])


def _named(call: Call) -> TopicName:
    name = topic_of(call.path)
    if name.partition is not None:
        raise InvalidNameError(f"{name.local} would be a partition", hint="choose another name")
    return name


def _shown(found: DescribedConnector) -> ConnectorAnswer:
    one, told = found.connector, found.progress
    answer = ConnectorAnswer(
        name=f"{one.name.namespace}/{one.name.local}",
        id=one.id,
        config=one.config,
        state=one.wanted.value,
        role=one.role,
        created_ms=one.created_ms,
    )
    if told is not None:
        answer.progress = ConnectorProgressAnswer(
            id=told.id,
            state=told.state,  # type: ignore[arg-type]
            records=told.records,
            records_per_second=told.records_per_second,
            lag=told.lag,
            dead_letters=told.dead_letters,
            restarts=told.restarts,
            batch_ms=told.batch_ms,
            position=told.position,
            error=told.error,
            failures=told.failures,
            failed_ms=told.failed_ms,
            next_try_ms=told.next_try_ms,
            reported_ms=told.reported_ms,
        )
    return answer
