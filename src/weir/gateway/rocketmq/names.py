"""Maps RocketMQ resources to Weir: namespaces, topics, consumer groups, and filter expressions (tags or SQL)."""

import re
from typing import Any
from urllib.parse import quote

from weir.gateway.rocketmq.errors import Refused
from weir.model.errors import InvalidNameError
from weir.model.subscriptions import ALL_TAGS, MessageFilter
from weir.model.topics import DEFAULT_NAMESPACE, NamespaceName, TopicName
from weir.wire.rocketmq import rocketmq_pb2 as api

_NAME = re.compile(r"[%|.a-zA-Z0-9_-]+")
_MOST_TOPIC, _MOST_GROUP = 127, 255
DLQ_PREFIX = "%DLQ%"
LITE_INFIX = "%LITE%"


def namespace_of(name: str) -> NamespaceName:
    """The namespace of a resource: empty is public/default, `a/b` is a/b, any other `c` is public/c."""
    if not name:
        return DEFAULT_NAMESPACE
    return NamespaceName.parse(name if "/" in name else f"{DEFAULT_NAMESPACE.tenant}/{name}")


def topic_of(resource: Any) -> TopicName:
    name = str(resource.name)
    if not name.strip():
        raise Refused(api.Code.ILLEGAL_TOPIC, "the topic name cannot be blank")
    if len(name) > _MOST_TOPIC:
        raise Refused(api.Code.ILLEGAL_TOPIC, f"the topic name is longer than {_MOST_TOPIC} characters")
    if not _NAME.fullmatch(name):
        raise Refused(
            api.Code.ILLEGAL_TOPIC, "the topic name has characters other than letters, digits and % | . _ -"
        )
    try:
        namespace = namespace_of(str(resource.resource_namespace))
        return TopicName.parse(f"persistent://{namespace}/{name}")
    except InvalidNameError as bad:
        raise Refused(api.Code.ILLEGAL_TOPIC, bad.what) from None


def resource_of(topic: TopicName) -> Any:
    """The RocketMQ resource of a topic."""
    namespace = topic.namespace
    if namespace == DEFAULT_NAMESPACE:
        said = ""
    else:
        said = namespace.name if namespace.tenant == DEFAULT_NAMESPACE.tenant else str(namespace)
    return api.Resource(resource_namespace=said, name=topic.local)


def lite_topic_of(topic: TopicName, lite: str) -> TopicName:
    """The Weir topic of a lite topic, with a name derived from its parent topic and itself."""
    return TopicName.parse(f"persistent://{topic.namespace}/{topic.local}{LITE_INFIX}{quote(lite, safe='')}")


def group_of(resource: Any) -> str:
    """The subscription name of a consumer group."""
    name = str(resource.name)
    if not name.strip():
        raise Refused(api.Code.ILLEGAL_CONSUMER_GROUP, "the consumer group cannot be blank")
    if len(name) > _MOST_GROUP:
        raise Refused(
            api.Code.ILLEGAL_CONSUMER_GROUP, f"the consumer group is longer than {_MOST_GROUP} characters"
        )
    if not _NAME.fullmatch(name):
        raise Refused(
            api.Code.ILLEGAL_CONSUMER_GROUP,
            "the consumer group has characters other than letters, digits and % | . _ -",
        )
    return name


def filter_of(expression: Any) -> MessageFilter:
    """The message filter of an expression; an empty one and `*` match all messages."""
    match expression.type:
        case api.FilterType.SQL:
            if not expression.expression.strip():
                raise Refused(api.Code.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
            return MessageFilter(sql=expression.expression)
        case _:
            return MessageFilter(tags=expression.expression or ALL_TAGS)
