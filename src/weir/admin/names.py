"""Names in paths, and the refusals that calls about them share."""

from collections.abc import Mapping
from typing import Any

from weir.model.errors import InvalidNameError
from weir.model.topics import Domain, NamespaceName, TopicName, check_entity_name

V2 = "/admin/v2"
NAMESPACE = f"{V2}/namespaces/{{tenant}}/{{namespace}}"

BAD_NAME = {412: "not a valid name, or not possible"}
ABOUT_TENANT = {404: "no such tenant", **BAD_NAME}
ABOUT_NAMESPACE = {404: "no such tenant or namespace", **BAD_NAME}
ABOUT_TOPIC = {307: "another broker has the topic", 404: "no such namespace, topic or subscription", **BAD_NAME}
ABOUT_ONE_TOPIC = {405: "not of a partitioned topic; name its partitions", **ABOUT_TOPIC}
CONFLICT = {409: "exists, is not empty, or was changed at the same time"}

_MAX_SUBSCRIPTION_CHARS = 1024


def topic_path(domain: Domain) -> str:
    return f"{V2}/{domain.value}/{{tenant}}/{{namespace}}/{{topic}}"


def tenant_of(path: Mapping[str, Any]) -> str:
    return check_entity_name(path["tenant"], "tenant")


def namespace_of(path: Mapping[str, Any]) -> NamespaceName:
    """InvalidNameError if the path names none."""
    return NamespaceName(tenant_of(path), check_entity_name(path["namespace"], "namespace"))


def topic_of(path: Mapping[str, Any], domain: Domain = Domain.PERSISTENT) -> TopicName:
    """InvalidNameError if the path names none."""
    return TopicName.parse(f"{domain.value}://{namespace_of(path)}/{path['topic']}")


def subscription_of(path: Mapping[str, Any]) -> str:
    name: str = path["subscription"]
    if len(name) > _MAX_SUBSCRIPTION_CHARS or any(c < " " or c == "\x7f" for c in name):
        raise InvalidNameError(f"{name[:80]!r} is not a subscription name", hint="leave control characters out")
    return name
