"""Handler of Fetch: without a session, opening a session, or incremental within one."""

from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.errors import RefusedError
from weir.gateway.kafka.fetch.fetch import Fetching
from weir.gateway.kafka.fetch.fetch_sessions import FIRST, SESSIONLESS, FetchPart, FetchParts
from weir.gateway.kafka.metadata import Node
from weir.gateway.kafka.session import Session
from weir.model.errors import TooManyError
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_BY_ID_SINCE = 13
_NO_ID = bytes(16)


@handler(ApiKey.FETCH, versions=(4, 18))
async def fetch(session: Session, request: m.FetchRequest, version: int) -> m.FetchResponse:
    by_id = version >= _BY_ID_SINCE
    if request.session_epoch == SESSIONLESS:
        return await _everything(session, request, by_id)
    if request.session_epoch == FIRST:
        return await _first(session, request, by_id)
    return await _changes(session, request, by_id)


async def _everything(session: Session, request: m.FetchRequest, by_id: bool) -> m.FetchResponse:
    """A fetch without a session. The client names all partitions each time, and most are unchanged, so the gateway
    reuses its state of the last fetch."""
    sessions = session.fetch_sessions
    if request.session_id:
        sessions.close(session, request.session_id)
    parts = sessions.unsaid(session, by_id=by_id)
    kept = parts is not None
    if parts is None:
        parts = FetchParts()
    parts.next_round()
    wanted = _put(session, parts, request, by_id)
    if len(parts) != len(wanted):
        parts.keep_named()
    try:
        kept = kept or sessions.keep_unsaid(session, parts, by_id=by_id)
        fetching = Fetching(session, request, parts)
        await fetching.run()
        response = m.FetchResponse()
        _add(response, fetching, wanted)
        return response
    finally:
        if not kept:
            parts.close()


async def _first(session: Session, request: m.FetchRequest, by_id: bool) -> m.FetchResponse:
    """A full fetch, which opens a session if the limits permit one."""
    sessions = session.fetch_sessions
    sessions.close(session, request.session_id)
    parts = FetchParts()
    wanted = _put(session, parts, request, by_id)
    opened = sessions.open(session, parts, by_id=by_id)
    try:
        fetching = Fetching(session, request, parts)
        await fetching.run()
        response = m.FetchResponse(session_id=opened.number if opened else 0)
        _add(response, fetching, wanted)
        return response
    finally:
        if opened is None:
            parts.close()


async def _changes(session: Session, request: m.FetchRequest, by_id: bool) -> m.FetchResponse:
    """The next fetch of a session: request and response carry only changed partitions."""
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
    changed = [part for part in fetching.seen if part.batches or part.error or part.marks != part.told]
    for part in changed:
        if part.batches:
            found.parts.move_back(part)
    response = m.FetchResponse(session_id=found.number)
    _add(response, fetching, changed)
    return response


def _put(session: Session, parts: FetchParts, request: m.FetchRequest, by_id: bool) -> list[FetchPart]:
    """The partitions that the request names, in its order."""
    if sum(len(topic.partitions) for topic in request.topics) > session.limits.max_fetch_partitions:
        raise TooManyError(f"a fetch may read at most {session.limits.max_fetch_partitions} partitions")
    named: dict[FetchPart, None] = {}
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for wanted in topic.partitions:
            named[parts.put((name, wanted.partition), wanted)] = None
    return list(named)


def _add(response: m.FetchResponse, fetching: Fetching, parts: list[FetchPart]) -> None:
    """Fill in the response, grouped by topic."""
    topics: dict[str | bytes, m.FetchResponse.FetchableTopicResponse] = {}
    nodes: dict[int, Node] = {}
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
        if part.leader is not None:
            nodes[part.leader[0].node_id] = part.leader[0]
        part.told = None if part.error else part.marks
    response.node_endpoints = [
        m.FetchResponse.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in nodes.values()
    ]
    fetching.done()
