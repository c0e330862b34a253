"""Fetch: record batches of any number of partitions, with a wait if there are none."""

from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.fetch_parts import FetchPart, FetchParts
from weir.gateway.kafka.fetch_sessions import FIRST, SESSIONLESS, FetchSession
from weir.gateway.kafka.fetching import Fetching
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.session import Session
from weir.model.errors import TooManyError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_BY_ID_SINCE = 13
_NO_ID = bytes(16)


@handler(ApiKey.FETCH, versions=(4, 18))
async def fetch(session: Session, request: m.FetchRequest, version: int) -> m.FetchResponse:
    if request.session_epoch in (SESSIONLESS, FIRST):
        return await _whole(session, request, version)
    return await _changes(session, request, version)


async def _whole(session: Session, request: m.FetchRequest, version: int) -> m.FetchResponse:
    """A fetch that names everything, and may begin a session."""
    sessions, by_id = session.fetch_sessions, version >= _BY_ID_SINCE
    if request.session_id:
        sessions.close(session, request.session_id)
    parts = FetchParts(lasting=request.session_epoch == FIRST)
    opened: FetchSession | None = None
    try:
        _put(session, parts, request, by_id)
        if request.session_epoch == FIRST:
            opened = sessions.open(session, parts, by_id=by_id)
        fetching = Fetching(session, request, parts)
        await fetching.run()
        response = m.FetchResponse(session_id=opened.number if opened else 0)
        _add(response, fetching, list(parts))
        return response
    finally:
        if opened is None:
            parts.close()


async def _changes(session: Session, request: m.FetchRequest, version: int) -> m.FetchResponse:
    """A session's next fetch: asked and answered with what has changed."""
    by_id = version >= _BY_ID_SINCE
    try:
        found = session.fetch_sessions.resume(session, request.session_id, request.session_epoch, by_id=by_id)
    except RefusedError as refused:
        return m.FetchResponse(error_code=refused.code)
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            found.parts.forget((topic.topic_id if by_id else topic.topic, index))
    _put(session, found.parts, request, by_id)
    fetching = Fetching(session, request, found.parts)
    await fetching.run()
    response = m.FetchResponse(session_id=found.number)
    changed = [part for part in fetching.seen if part.batches or part.error or part.marks != part.told]
    _add(response, fetching, changed)
    for part in changed:
        if part.batches:
            found.parts.move_back(part)
    return response


def _put(session: Session, parts: FetchParts, request: m.FetchRequest, by_id: bool) -> None:
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for wanted in topic.partitions:
            parts.put((name, wanted.partition), wanted)
    if len(parts) > session.limits.max_fetch_partitions:
        raise TooManyError(f"one fetch reads {session.limits.max_fetch_partitions} partitions at the most")


def _add(response: m.FetchResponse, fetching: Fetching, parts: list[FetchPart]) -> None:
    """What the client is told, partitions of one topic together."""
    topics: dict[str | bytes, m.FetchResponse.FetchableTopicResponse] = {}
    for part in parts:
        name = part.key[0]
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = m.FetchResponse.FetchableTopicResponse(
                topic=name if isinstance(name, str) else "",
                topic_id=name if isinstance(name, bytes) else _NO_ID,
            )
            response.responses.append(topic)
        topic.partitions.append(fetching.answer(part))
        part.told = None if part.error == Code.UNKNOWN_TOPIC_OR_PARTITION else part.marks
