"""DeleteTopics: with their messages, subscriptions and groups' positions; by name, or by id."""

from weir.gateway.kafka.admin.common import NAMED_TWICE, administered, each, named_once
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.model.errors import InvalidNameError, TopicNotFoundError, WeirError
from weir.model.registry import TopicRecord
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Topic = m.DeleteTopicsRequest.DeleteTopicState
_Result = m.DeleteTopicsResponse.DeletableTopicResult

_BY_ID_SINCE = 6
_NO_ID = bytes(16)


@handler(ApiKey.DELETE_TOPICS, versions=(1, 6))
async def delete_topics(session: Session, request: m.DeleteTopicsRequest, version: int) -> m.DeleteTopicsResponse:
    wanted = request.topics if version >= _BY_ID_SINCE else [_Topic(name=name) for name in request.topic_names]
    called = {id(topic): await _key(session, topic) for topic in wanted}
    once, twice = named_once(wanted, lambda topic: called[id(topic)])

    async def delete(topic: _Topic) -> _Result:
        record = await _meant(session, topic)
        topic_id = session.services.catalog.id_of(record)
        await session.services.broker.delete(record.name, force=True)
        return _Result(name=topic.name or session.services.catalog.name_of(record.name), topic_id=topic_id)

    gone = await each(once, delete, _failed, request.timeout_ms)
    return m.DeleteTopicsResponse(responses=gone + [_failed(topic, *NAMED_TWICE) for topic in twice])


async def _key(session: Session, topic: _Topic) -> str | bytes:
    """What tells it from others: its id, however it is named."""
    if topic.name is None:
        return bytes(topic.topic_id)
    catalog = session.services.catalog
    try:
        record = await catalog.look(topic.name)
    except WeirError:
        return topic.name
    return catalog.id_of(record) if catalog.may_know(session.role, record.name) else topic.name


async def _meant(session: Session, topic: _Topic) -> TopicRecord:
    catalog = session.services.catalog
    named, known = topic.name is not None, bytes(topic.topic_id) != _NO_ID
    if named == known:
        what = (
            "both a topic's name and its id were given" if named else "neither a topic's name nor its id was given"
        )
        raise RefusedError(Code.INVALID_REQUEST, what)
    if topic.name is not None:
        try:
            administered(session, topic.name)
        except InvalidNameError as bad:  # there can be none
            raise TopicNotFoundError(bad.what, hint=bad.hint) from bad
        return await catalog.look(topic.name)
    record = await catalog.known_by_id(session.role, topic.topic_id)
    session.services.authoriser.check_admin(session.role, record.name)
    return record


def _failed(topic: _Topic, code: int, text: str) -> _Result:
    return _Result(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=text)
