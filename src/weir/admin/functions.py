"""Routes for functions (list, deploy, update, start, stop, delete), for the runner's reports, and for its lease.

The runner executes deployed code with its own permissions, so both the deploying role and the runner must be
superusers. Administrators of a namespace may see, start, stop and delete its functions.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, structs

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TOPIC, CONFLICT, namespace_of, topic_of
from weir.admin.runner_leases import RunnerRoutes
from weir.admin.worker_lag import Unread, reader_of_function
from weir.broker.api.definitions import Definition, Deployed, Functions
from weir.model.definitions import PREFIX, Function, FunctionStats, FunctionWanted, check_reachable
from weir.model.errors import InvalidNameError, NotAuthorisedError
from weir.model.topics import TopicName
from weir.rest.routes import BadRequestError, Call, Natural, RefusedError, Route

_WEIR = "/admin/weir/v1"
_ALL, _RUNNER = f"{_WEIR}/functions", f"{_WEIR}/function-runner"
_OF = f"{_ALL}/{{tenant}}/{{namespace}}"
_ONE = f"{_OF}/{{topic}}"
_TAG = "functions"
_NONE_HERE = {501: "no functions are kept here"}
#: Workers report at least every 10 s; after this time without a report a worker counts as silent.
_SILENT_MS = 30_000

_Text = Annotated[str, Meta(max_length=4_000)]
_Word = Annotated[str, Meta(min_length=1, max_length=200)]
_Rate = Annotated[float, Meta(ge=0, le=1e15)]


class FunctionBody(Struct):
    """A definition. `code`: the text of a Python file; `entry`: the function in it. `inputs`, `output`: topics, in
    full."""

    code: Annotated[str, Meta(min_length=1, max_length=500_000)]
    entry: _Word
    inputs: Annotated[list[_Text], Meta(max_length=100)]
    file: _Word = "function.py"
    output: _Text | None = None
    options: Annotated[dict[_Word, _Text], Meta(max_length=100)] = field(default_factory=dict)


class WantedBody(Struct):
    state: Literal["running", "stopped"]


class StatsBody(Struct, rename="camel"):
    """The runner's report on a function. `id`: the instance of the function with this name."""

    id: _Word
    version: Natural
    state: Literal["starting", "running", "failed", "stopped"]
    received: Natural = 0
    sent: Natural = 0
    failed: Natural = 0
    retried: Natural = 0
    dead: Natural = 0
    received_per_second: _Rate = 0.0
    lag: Natural = 0
    latency_p50_ms: _Rate = 0.0
    latency_p99_ms: _Rate = 0.0
    state_keys: Natural = 0
    state_bytes: Natural = 0
    instances: Natural = 0
    restarts: Natural = 0
    error: _Text = ""
    failures: Natural = 0
    next_try_ms: Natural = 0
    where: Annotated[str, Meta(max_length=200)] = ""
    started_ms: Natural = 0


class StatsAnswer(StatsBody, rename="camel"):
    reported_ms: int = 0


class FunctionAnswer(Struct, rename="camel"):
    name: str
    id: str
    version: int
    code: str
    file: str
    entry: str
    inputs: list[str]
    output: str | None
    options: dict[str, str]
    #: The desired state; the actual state is in `stats`.
    state: Literal["running", "stopped"]
    role: str
    created_ms: int
    updated_ms: int
    #: Its subscription of the inputs.
    subscription: str
    stats: StatsAnswer | None = None


class FunctionRoutes:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._unread = Unread(context)
        self._runners = RunnerRoutes(context, lambda: self._functions, _RUNNER, runs=_TAG, refusals=_NONE_HERE)

    def routes(self) -> list[Route]:
        about = {**ABOUT_TOPIC, **CONFLICT, **_NONE_HERE}
        within = {**ABOUT_NAMESPACE, **_NONE_HERE}

        def route(method: str, path: str, text: str, work: Any, **more: Any) -> Route:
            more.setdefault("refusals", about)
            return Route(method, path, text, work, tag=_TAG, **more)

        listed = list[FunctionAnswer]
        one: dict[str, Any] = {"answer": FunctionAnswer}
        return [
            route(
                "GET",
                _ALL,
                "All functions that the caller administers.",
                self._all,
                answer=listed,
                refusals=_NONE_HERE,
            ),
            route("GET", _OF, "Functions of a namespace.", self._of, answer=listed, refusals=within),
            route("GET", _ONE, "One function.", self._get, **one),
            route("POST", _ONE, "Deploy a function.", self._deploy, body=FunctionBody, **one),
            route("PUT", _ONE, "Update a function to a new version.", self._update, body=FunctionBody, **one),
            route("PUT", f"{_ONE}/state", "Start or stop a function.", self._want, body=WantedBody, **one),
            route("DELETE", _ONE, "Delete a function; its topics stay.", self._delete),
            route(
                "PUT",
                f"{_ONE}/stats",
                "Report the state of a function (runner only).",
                self._report,
                body=StatsBody,
            ),
            *self._runners.routes(),
        ]

    @property
    def _functions(self) -> Functions:
        found = self._context.functions
        if found is None:
            raise RefusedError(501, "this broker keeps no functions")
        return found

    # --- definitions --------------------------------------------------------------------------------------------

    async def _all(self, call: Call) -> list[FunctionAnswer]:
        """The functions that the caller administers."""
        may = self._context.authoriser.may_administer
        found = [one for one in await self._functions.list() if may(call.role, one.function.name)]
        return await self._shown(call, found)

    async def _of(self, call: Call) -> list[FunctionAnswer]:
        namespace = namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, namespace)
        self._context.registry.namespaces.get(namespace)
        return await self._shown(call, await self._functions.list(namespace))

    async def _get(self, call: Call) -> FunctionAnswer:
        return (await self._shown(call, [await self._functions.get(self._administered(call))]))[0]

    async def _shown(self, call: Call, found: Sequence[Deployed]) -> list[FunctionAnswer]:
        """Answers with the lag of each function, computed from its subscription if no worker reports it."""
        shown = [_shown(one) for one in found]
        nobody = await self._functions.runner() is None
        for one, answer in zip(found, shown, strict=True):
            stats = answer.stats
            if stats is not None and (nobody or self._is_silent(stats)):
                lag = await self._unread.lag(call, reader_of_function(one.function))
                stats.lag = stats.lag if lag is None else lag
        return shown

    def _is_silent(self, stats: StatsAnswer) -> bool:
        """Whether the function's own worker has stopped reporting."""
        return self._context.clock.wall_ms() - stats.reported_ms > _SILENT_MS

    async def _deploy(self, call: Call) -> FunctionAnswer:
        name, what = self._defined(call)
        await self._functions.deploy(name, what, role=call.role)
        return _shown(await self._functions.get(name))

    async def _update(self, call: Call) -> FunctionAnswer:
        name, what = self._defined(call)
        await self._functions.update(name, what, role=call.role)
        return _shown(await self._functions.get(name))

    def _defined(self, call: Call) -> tuple[TopicName, Definition]:
        self._context.authoriser.check_superuser(call.role)
        deployers = self._context.settings.function_deployers
        if deployers and call.role not in deployers:
            raise NotAuthorisedError(
                f"{call.role!r} may not deploy functions", hint="functions.deployers names the roles that may"
            )
        name, body = self._administered(call), call.body
        self._context.registry.namespaces.get(name.namespace)
        check_reachable(TopicName(name.namespace, f"{PREFIX}{name.local}-retry"))
        if not body.inputs:
            raise BadRequestError("a function needs a topic to read", hint="name one in inputs")
        inputs = tuple(dict.fromkeys(self._used(one) for one in body.inputs))
        output = None if body.output is None else self._used(body.output)
        if output in inputs:
            raise BadRequestError(f"{output} is read and written", hint="that would go round for ever")
        return name, Definition(body.code, body.file, body.entry, inputs, output, body.options)

    def _used(self, text: str) -> TopicName:
        """A topic that a worker can read or write; its namespace must exist, the topic need not."""
        topic = check_reachable(TopicName.parse(text))
        self._context.registry.namespaces.get(topic.namespace)
        return topic

    async def _want(self, call: Call) -> FunctionAnswer:
        name = self._administered(call)
        await self._functions.want(name, FunctionWanted(call.body.state))
        return _shown(await self._functions.get(name))

    async def _delete(self, call: Call) -> None:
        await self._functions.delete(self._administered(call))

    def _administered(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        if name.partition is not None:
            raise InvalidNameError(f"{name} is a partition", hint="give the function another name")
        return name

    # --- the runner ---------------------------------------------------------------------------------------------

    async def _report(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        await self._functions.report(topic_of(call.path), FunctionStats(**structs.asdict(call.body)))


def _shown(found: Deployed) -> FunctionAnswer:
    function, told = found.function, found.stats
    return FunctionAnswer(
        name=str(function.name),
        id=function.id,
        version=function.version,
        code=function.code,
        file=function.file,
        entry=function.entry,
        inputs=[str(one) for one in function.inputs],
        output=_text(function),
        options=dict(function.options),
        state=function.wanted.value,
        role=function.role,
        created_ms=function.created_ms,
        updated_ms=function.updated_ms,
        subscription=function.subscription,
        stats=None if told is None else _told(told),
    )


def _text(function: Function) -> str | None:
    return None if function.output is None else str(function.output)


def _told(told: FunctionStats) -> StatsAnswer:
    names = StatsAnswer.__struct_fields__
    return StatsAnswer(**{name: getattr(told, name) for name in names})
