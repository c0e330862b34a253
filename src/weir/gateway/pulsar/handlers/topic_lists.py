"""GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE."""

from weir.gateway.pulsar.links import Opening
from weir.gateway.pulsar.registry import later
from weir.gateway.pulsar.session import Session
from weir.gateway.pulsar.watching import Watch
from weir.model.topics import Domain, NamespaceName
from weir.wire.pulsar.proto import api

_Get = api.CommandGetTopicsOfNamespace
_DOMAINS = {_Get.PERSISTENT: Domain.PERSISTENT, _Get.NON_PERSISTENT: Domain.NON_PERSISTENT}


@later(api.CommandGetTopicsOfNamespace)
async def topics_of_namespace(
    session: Session, command: api.CommandGetTopicsOfNamespace
) -> api.CommandGetTopicsOfNamespaceResponse:
    """The list, filtered if the client asked so."""
    pattern = command.topics_pattern or None
    async with session.listing:
        found = await session.broker.topics(command.namespace, role=session.role, pattern=pattern)
    wanted = _DOMAINS.get(command.mode)
    names = [str(name) for name in found if wanted is None or name.domain is wanted]
    return api.CommandGetTopicsOfNamespaceResponse(
        request_id=command.request_id, topics=names, filtered=pattern is not None, changed=True
    )


@later(api.CommandWatchTopicList)
async def watch_topic_list(
    session: Session, command: api.CommandWatchTopicList
) -> api.CommandWatchTopicListSuccess | None:
    opening = session.watches.begin(command.watcher_id)
    try:
        async with session.listing:
            topics = await session.services.lists.watch_topics(
                NamespaceName.parse(command.namespace),
                role=session.role,
                pattern=command.topics_pattern,
                domain=Domain.PERSISTENT,  # as in Pulsar: of the others a client learns by asking
                known_hash=command.topics_hash,
            )
    except BaseException:
        session.watches.end(command.watcher_id, opening)
        raise
    watch = Watch(session, command.watcher_id, topics)
    session.watches.put(command.watcher_id, opening, watch)
    session.answer(
        api.CommandWatchTopicListSuccess(
            request_id=command.request_id,
            watcher_id=command.watcher_id,
            topic=map(str, topics.names) if topics.is_news else (),
            topics_hash=topics.hash,
        )
    )
    watch.start()
    return None


@later(api.CommandWatchTopicListClose)
async def close_watch(session: Session, command: api.CommandWatchTopicListClose) -> api.CommandSuccess:
    watch = session.watches.get(command.watcher_id)
    if watch is not None and not isinstance(watch, Opening):
        watch.stop()
        session.watches.end(command.watcher_id, watch)
    return api.CommandSuccess(request_id=command.request_id)
