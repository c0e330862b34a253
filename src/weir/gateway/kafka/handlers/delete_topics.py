"""DeleteTopics: with their messages, subscriptions and groups' positions; by name, or by id."""

from weir.gateway.kafka.administering import administered, each, said_twice
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.session import Session
from weir.model.errors import TopicNotFoundError
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
    twice = said_twice(_key(topic) for topic in wanted)

    async def delete(topic: _Topic) -> _Result:
        if topic.name is not None and bytes(topic.topic_id) != _NO_ID:
            raise RefusedError(Code.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if _key(topic) in twice:
            raise RefusedError(Code.INVALID_REQUEST, "the request names this topic more than once")
        record = _meant(session, topic)
        await session.services.broker.delete(record.name, force=True)
        return _Result(name=topic.name or session.services.catalog.name_of(record.name), topic_id=topic.topic_id)

    return m.DeleteTopicsResponse(responses=await each(wanted, delete, _failed, request.timeout_ms))


def _key(topic: _Topic) -> str | bytes:
    return bytes(topic.topic_id) if topic.name is None else topic.name


def _meant(session: Session, topic: _Topic) -> TopicRecord:
    catalog = session.services.catalog
    if topic.name is not None:
        administered(session, topic.name)
        return catalog.topic(topic.name)
    try:
        record = catalog.by_id(topic.topic_id)
    except TopicNotFoundError as missing:
        raise RefusedError(Code.UNKNOWN_TOPIC_ID, missing.what) from missing
    session.services.authoriser.check_admin(session.role, record.name)
    return record


def _failed(topic: _Topic, code: int, text: str) -> _Result:
    return _Result(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=text)
