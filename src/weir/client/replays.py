"""Replays by query, asked of the admin REST by code that blocks."""

from collections.abc import Sequence
from typing import Any

from weir.client.admin import Access, ask, join
from weir.model.definitions import Replay, ReplayState
from weir.model.errors import ReplayNotFoundError, WireError
from weir.model.topics import TopicName


def all_replays(access: Access, topic: TopicName | None = None) -> Sequence[Replay]:
    """Those of topics that the caller may consume, or of one topic; the oldest first."""
    found = ask(access, "GET", "replays" if topic is None else _path(topic))
    if not isinstance(found, list):
        raise WireError("the server does not tell replays as expected")
    return [_replay(one) for one in found]


def find_replay(access: Access, replay: str) -> Replay:
    """By its id alone; ReplayNotFoundError if there is none."""
    for one in all_replays(access):
        if one.id == replay:
            return one
    raise ReplayNotFoundError(f"there is no replay {replay}", hint="those that there are: weir replay list")


def begin_replay(access: Access, wanted: Replay) -> Replay:
    body = {
        "target": str(wanted.target),
        "subscription": wanted.subscription,
        "where": wanted.where,
        "sinceMs": wanted.since_ms,
        "untilMs": wanted.until_ms,
        "rate": wanted.rate,
        "batch": wanted.batch,
        "topicId": wanted.topic_id,
        "targetId": wanted.target_id,
    }
    return _replay(ask(access, "PUT", _path(wanted.topic, wanted.id), body))


def report(
    access: Access,
    of: Replay,
    *,
    state: ReplayState | None = None,
    selected: Sequence[int] | None = None,
    delivered: Sequence[int] | None = None,
    producer: tuple[int, int] | None = None,
) -> Replay:
    """Say how far it is; answers what is kept of it then."""
    body: dict[str, Any] = {"state": None if state is None else state.value}
    if selected is not None:
        body["selected"] = list(selected)
    if delivered is not None:
        body["delivered"] = list(delivered)
    if producer is not None:
        body["producerId"], body["producerEpoch"] = producer
    return _replay(ask(access, "PUT", f"{_path(of.topic, of.id)}/progress", body))


def forget_replay(access: Access, of: Replay) -> None:
    ask(access, "DELETE", _path(of.topic, of.id))


def _path(topic: TopicName, *more: str) -> str:
    return join("replays", topic.namespace.tenant, topic.namespace.name, topic.local, *more)


def _replay(told: Any) -> Replay:
    try:
        return Replay(
            id=told["id"],
            topic=TopicName.parse(told["topic"]),
            subscription=told["subscription"],
            target=TopicName.parse(told["target"]),
            where=told["where"],
            since_ms=told["sinceMs"],
            until_ms=told["untilMs"],
            rate=told["rate"],
            role=told["role"],
            created_ms=told["createdMs"],
            state=ReplayState(told["state"]),
            selected=tuple(told["selected"]),
            delivered=tuple(told["delivered"]),
            producer_id=told["producerId"],
            producer_epoch=told["producerEpoch"],
            batch=told["batch"],
            updated_ms=told["updatedMs"],
            topic_id=told.get("topicId", ""),
            target_id=told.get("targetId", ""),
        )
    except (KeyError, TypeError, ValueError) as bad:
        raise WireError(f"the server does not tell replays as expected: {bad!r}") from None
