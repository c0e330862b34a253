"""The APIs that are known here: their keys, versions and messages."""

from enum import IntEnum
from typing import NamedTuple

from weir.wire.kafka.classes import CLASSES, Message
from weir.wire.kafka.schema.table import APIS


class ApiKey(IntEnum):
    """What a request asks for: the first number of its header."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


class Api(NamedTuple):
    """One API; `versions` are the lowest and the highest that are known, both inside."""

    name: str
    versions: tuple[int, int]
    flexible: int | None  # the first version with compact lengths and tagged fields, in bodies and headers
    request: type[Message]
    response: type[Message]


API: dict[ApiKey, Api] = {
    ApiKey(key): Api(
        api.name,
        (api.versions.low, api.versions.high),
        api.flexible,
        CLASSES[api.request.name],
        CLASSES[api.response.name],
    )
    for key, api in APIS.items()
}
