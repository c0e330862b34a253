"""What a role may do, as the bit sets that some answers carry."""

from enum import IntEnum

from weir.broker.api import Authoriser
from weir.model.registry import Action
from weir.model.topics import TopicName


class Operation(IntEnum):
    """Kafka's numbers of what can be allowed; each is the place of its bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


#: Said where nobody asked.
NOT_ASKED = -(2**31)

_OF_TOPIC_ADMINS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OF_SUPERUSERS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def topic_operations(authoriser: Authoriser, role: str, topic: TopicName) -> int:
    if authoriser.may_administer(role, topic):
        return bits(*_OF_TOPIC_ADMINS)
    allowed = 0
    if authoriser.may(role, Action.CONSUME, topic):
        allowed |= bits(Operation.READ, Operation.DESCRIBE)
    if authoriser.may(role, Action.PRODUCE, topic):
        allowed |= bits(Operation.WRITE, Operation.DESCRIBE)
    return allowed


def cluster_operations(authoriser: Authoriser, role: str) -> int:
    return bits(*_OF_SUPERUSERS) if authoriser.is_superuser(role) else bits(Operation.IDEMPOTENT_WRITE)


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)
