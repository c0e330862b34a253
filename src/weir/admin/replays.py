"""Replays by query: who asked for what, and how far it is. The command `weir replay` does them.

Whoever may consume a topic may know of its replays. To begin one takes the right to produce where it goes, too,
and to administer the topic, beside which its selection is kept; to change one, to be who began it, or an
administrator.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_TOPIC, CONFLICT, topic_of
from weir.broker.api.definitions import Replays, ReplayStep
from weir.model.definitions import Replay, ReplayState
from weir.model.errors import InvalidNameError, NotAllowedError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.rest.routes import Call, Natural, RefusedError, Route

_ALL = "/admin/weir/v1/replays"
_OF = f"{_ALL}/{{tenant}}/{{namespace}}/{{topic}}"
_ONE = f"{_OF}/{{replay}}"
_TAG = "replays"
_NONE_HERE = {501: "no replays are kept here"}
_MAX_ID = 64
_MAX_TOPIC_ID = 64
#: What only who began a replay may say of one that has no messages yet.
_PICKING = ("selecting", "delivering")

_Count = Annotated[list[Natural], Meta(max_length=100_000)]
_Name = Annotated[str, Meta(min_length=1, max_length=4_000)]


class ReplayBody(Struct, rename="camel"):
    """What is asked for. `target`: the topic that it goes to; None: the topic itself."""

    target: _Name | None = None
    subscription: Annotated[str, Meta(min_length=1, max_length=4_000)] | None = None
    where: Annotated[str, Meta(max_length=100_000)] = ""
    since_ms: Natural | None = None
    until_ms: Natural | None = None
    rate: Natural = 0
    batch: Annotated[int, Meta(ge=1, le=100_000)] = 500
    #: Which topics of their names the topic and the target are; empty: unknown.
    topic_id: Annotated[str, Meta(max_length=_MAX_TOPIC_ID)] = ""
    target_id: Annotated[str, Meta(max_length=_MAX_TOPIC_ID)] = ""


class StepBody(Struct, rename="camel"):
    state: Literal["selecting", "delivering", "done", "cancelled"] | None = None
    selected: _Count | None = None
    delivered: _Count | None = None
    producer_id: Natural | None = None
    producer_epoch: Natural | None = None


class ReplayAnswer(Struct, rename="camel"):
    id: str
    topic: str
    target: str
    subscription: str | None
    where: str
    since_ms: int | None
    until_ms: int | None
    rate: int
    batch: int
    role: str
    created_ms: int
    state: Literal["selecting", "delivering", "done", "cancelled"]
    #: By partition of where it goes.
    selected: list[int]
    delivered: list[int]
    producer_id: int
    producer_epoch: int
    updated_ms: int
    topic_id: str
    target_id: str


class ReplayRoutes:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        about = {**ABOUT_TOPIC, **CONFLICT, **_NONE_HERE}
        listed = list[ReplayAnswer]
        return [
            Route(
                "GET",
                _ALL,
                "Replays of all topics that the caller may consume.",
                self._every,
                answer=listed,
                refusals=_NONE_HERE,
                tag=_TAG,
            ),
            Route("GET", _OF, "A topic's replays.", self._of, answer=listed, refusals=about, tag=_TAG),
            Route("GET", _ONE, "One replay.", self._get, answer=ReplayAnswer, refusals=about, tag=_TAG),
            Route(
                "PUT",
                _ONE,
                "Keep that a replay was asked for.",
                self._begin,
                body=ReplayBody,
                answer=ReplayAnswer,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "PUT",
                f"{_ONE}/progress",
                "Whoever does it says how far it is.",
                self._report,
                body=StepBody,
                answer=ReplayAnswer,
                refusals=about,
                tag=_TAG,
            ),
            Route("DELETE", _ONE, "Forget a replay.", self._forget, refusals=about, tag=_TAG),
        ]

    @property
    def _replays(self) -> Replays:
        found = self._context.replays
        if found is None:
            raise RefusedError(501, "this broker keeps no replays")
        return found

    async def _every(self, call: Call) -> list[ReplayAnswer]:
        may = self._context.authoriser.may
        return [_shown(one) for one in await self._replays.list() if may(call.role, Action.CONSUME, one.topic)]

    async def _of(self, call: Call) -> list[ReplayAnswer]:
        return [_shown(one) for one in await self._replays.list(self._consumed(call))]

    async def _get(self, call: Call) -> ReplayAnswer:
        return _shown(await self._replays.get(self._consumed(call), call.path["replay"]))

    async def _begin(self, call: Call) -> ReplayAnswer:
        topic, body, name = self._consumed(call), call.body, call.path["replay"]
        if len(name) > _MAX_ID:
            raise InvalidNameError(f"a replay's id has {_MAX_ID} characters at the most")
        named = None if body.subscription is not None else body.target
        target = topic if named is None else TopicName.parse(named).base
        self._context.authoriser.check(call.role, Action.PRODUCE, target)
        self._context.authoriser.check_admin(call.role, topic)
        if body.subscription is None and target == topic:
            raise NotAllowedError(
                f"the messages of {topic} would go into it again, to all of its subscriptions",
                hint="name one of them, or another topic",
            )
        wanted = Replay(
            name,
            topic,
            body.subscription,
            target,
            where=body.where,
            since_ms=body.since_ms,
            until_ms=body.until_ms,
            rate=body.rate,
            batch=body.batch,
            role=call.role,
            topic_id=body.topic_id,
            target_id=body.target_id,
        )
        return _shown(await self._replays.begin(wanted))

    async def _report(self, call: Call) -> ReplayAnswer:
        topic, name, body = await self._own(call)
        now = await self._replays.get(topic, name)
        if now.state is ReplayState.SELECTING and body.state in _PICKING and now.role != call.role:
            raise NotAllowedError(
                f"the messages of replay {name} are picked by {now.role!r}, who began it",
                hint="cancel it, and begin another one",
            )
        step = ReplayStep(
            None if body.state is None else ReplayState(body.state),
            None if body.selected is None else tuple(body.selected),
            None if body.delivered is None else tuple(body.delivered),
            None if body.producer_id is None else (body.producer_id, body.producer_epoch or 0),
        )
        return _shown(await self._replays.report(topic, name, step))

    async def _forget(self, call: Call) -> None:
        topic, name, _ = await self._own(call)
        await self._replays.forget(topic, name)

    def _consumed(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        if name.partition is not None:
            raise InvalidNameError(f"{name} is a partition", hint="a replay is of a whole topic")
        return name

    async def _own(self, call: Call) -> tuple[TopicName, str, StepBody]:
        topic, name = self._consumed(call), call.path["replay"]
        begun = [one.role for one in await self._replays.list(topic) if one.id == name]
        if begun != [call.role]:
            self._context.authoriser.check_admin(call.role, topic)
        return topic, name, call.body


def _shown(one: Replay) -> ReplayAnswer:
    return ReplayAnswer(
        id=one.id,
        topic=str(one.topic),
        target=str(one.target),
        subscription=one.subscription,
        where=one.where,
        since_ms=one.since_ms,
        until_ms=one.until_ms,
        rate=one.rate,
        batch=one.batch,
        role=one.role,
        created_ms=one.created_ms,
        state=one.state.value,
        selected=list(one.selected),
        delivered=list(one.delivered),
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        updated_ms=one.updated_ms,
        topic_id=one.topic_id,
        target_id=one.target_id,
    )
