"""How topics are declared as queues, from their records; and what follows from that."""

from functools import lru_cache

from weir.broker.queues.arguments import kind_of
from weir.broker.queues.policies import POLICIES_PROPERTY, PolicyTable
from weir.broker.queues.rules import rules_of
from weir.broker.registry.registry import Registry
from weir.model.errors import QueueArgumentError, WireError
from weir.model.policies import Policies, Retention
from weir.model.queues import QUEUE_PROPERTY, QueueDeclaration, QueueKind, QueueRules, queue_of_topic
from weir.model.registry import TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.wire.queues import decode_declaration

_PLAIN = QueueRules()


def declaration_of(record: TopicRecord, topic: TopicName) -> QueueDeclaration | None:
    """As the topic was declared; None if nobody did, or if it cannot be read."""
    text = record.properties.get(QUEUE_PROPERTY)
    return None if text is None else _declaration(queue_of_topic(topic), text)


@lru_cache(maxsize=4096)
def _declaration(name: str, text: str) -> QueueDeclaration | None:
    try:
        return decode_declaration(name, text)
    except WireError:
        return None


@lru_cache(maxsize=256)
def _table(text: str | None) -> PolicyTable:
    return PolicyTable.decode(text)


def policies_of(registry: Registry, namespace: NamespaceName) -> PolicyTable:
    """From memory; none of a namespace that there is not."""
    found = registry.namespaces.find(namespace)
    return _table(None if found is None else found.properties.get(POLICIES_PROPERTY))


def policed(declaration: QueueDeclaration, table: PolicyTable, vhost: str = "/") -> QueueRules:
    """What arguments and policies say. QueueArgumentError."""
    if not table.policies:
        return rules_of(declaration, vhost=vhost)
    name, kind = declaration.name, kind_of(declaration, vhost)
    return rules_of(
        declaration, table.of_queue(name, kind), operator=table.of_queue(name, kind, operator=True), vhost=vhost
    )


@lru_cache(maxsize=4096)
def _rules(name: str, text: str | None, policies: str | None) -> QueueRules:
    declaration = QueueDeclaration(name) if text is None else _declaration(name, text)
    if declaration is None:
        return _PLAIN
    try:
        return policed(declaration, _table(policies))
    except QueueArgumentError:  # of a newer Weir
        return _PLAIN


class DeclaredRules:
    """Fills `ports.QueueRulesSource`: from the records of topics that are loaded, and of their namespaces."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def of(self, topic: TopicName) -> QueueRules:
        record = self._registry.topics.find(topic)
        text = None if record is None else record.properties.get(QUEUE_PROPERTY)
        namespace = self._registry.namespaces.find(topic.namespace)
        policies = None if namespace is None else namespace.properties.get(POLICIES_PROPERTY)
        return _PLAIN if text is None and policies is None else _rules(queue_of_topic(topic), text, policies)


def kept_by(wanted: QueueDeclaration) -> Policies:
    """A stream keeps what it has, as far as it says; a queue what nobody has acknowledged."""
    rules = rules_of(wanted)
    if rules.kind is not QueueKind.STREAM:
        return Policies()
    age_ms, most_bytes = rules.max_age_ms, rules.max_bytes
    return Policies(
        retention=Retention.exactly(-1 if age_ms is None else age_ms, -1 if most_bytes is None else most_bytes)
    )
