"""Kafka's error codes, and the table that maps Weir's errors to them. The nearest class in the MRO decides."""

from enum import IntEnum

from weir.model import errors


class Code(IntEnum):
    """Every error code of the protocol, by Kafka's name."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


#: A new error class gets its row here; the groups of rows follow `model/errors.py`.
CODES: dict[type[BaseException], Code] = {
    errors.WeirError: Code.UNKNOWN_SERVER_ERROR,
    errors.ConfigError: Code.INVALID_CONFIG,
    errors.InvalidNameError: Code.INVALID_TOPIC_EXCEPTION,
    # wire
    errors.WireError: Code.INVALID_REQUEST,
    errors.FrameTooLargeError: Code.INVALID_REQUEST,
    errors.ChecksumError: Code.CORRUPT_MESSAGE,
    errors.UnknownVersionError: Code.UNSUPPORTED_VERSION,
    # storage, metadata and network: transient failures map to codes that clients retry
    errors.NetworkError: Code.NETWORK_EXCEPTION,
    errors.MetaError: Code.COORDINATOR_NOT_AVAILABLE,
    errors.BookieError: Code.KAFKA_STORAGE_ERROR,
    errors.LedgerError: Code.KAFKA_STORAGE_ERROR,
    errors.EntryTooLargeError: Code.MESSAGE_TOO_LARGE,
    errors.StreamError: Code.KAFKA_STORAGE_ERROR,
    errors.StreamNotFoundError: Code.UNKNOWN_TOPIC_OR_PARTITION,
    errors.StreamClosedError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.StreamFencedError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.WriterFencedError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.StreamTerminatedError: Code.POLICY_VIOLATION,
    errors.StreamBusyError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.OffsetTrimmedError: Code.OFFSET_OUT_OF_RANGE,
    errors.ReadFailedError: Code.KAFKA_STORAGE_ERROR,
    # Clients log this code with topic and offset and keep retrying; they retry a storage error silently.
    errors.ReadStuckError: Code.UNKNOWN_SERVER_ERROR,
    # broker
    errors.NotAuthenticatedError: Code.SASL_AUTHENTICATION_FAILED,
    errors.NotAuthorisedError: Code.TOPIC_AUTHORIZATION_FAILED,
    errors.NotAllowedError: Code.INVALID_REQUEST,
    errors.TopicNotFoundError: Code.UNKNOWN_TOPIC_OR_PARTITION,
    errors.TenantNotFoundError: Code.UNKNOWN_TOPIC_OR_PARTITION,
    errors.NamespaceNotFoundError: Code.UNKNOWN_TOPIC_OR_PARTITION,
    errors.TopicExistsError: Code.TOPIC_ALREADY_EXISTS,
    errors.TopicClosedError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.NotOwnerError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.PeerError: Code.REQUEST_TIMED_OUT,  # clients retry this code for every API
    errors.ProducerBusyError: Code.POLICY_VIOLATION,
    errors.ProducerFencedError: Code.POLICY_VIOLATION,
    errors.ProducerClosedError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.DuplicateInDoubtError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.TooManyError: Code.POLICY_VIOLATION,
    errors.MessageTooLargeError: Code.MESSAGE_TOO_LARGE,
    errors.InvalidRecordError: Code.INVALID_RECORD,
    errors.QuotaExceededError: Code.POLICY_VIOLATION,
    errors.StorageFullError: Code.KAFKA_STORAGE_ERROR,  # clients resend until space is free or their timeout ends
    errors.ProducersHeldError: Code.THROTTLING_QUOTA_EXCEEDED,
    errors.InvalidSchemaError: Code.INVALID_RECORD,
    errors.IncompatibleSchemaError: Code.INVALID_RECORD,
    # idempotence and transactions
    errors.OutOfOrderSequenceError: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.StaleEpochError: Code.INVALID_PRODUCER_EPOCH,
    errors.UnknownProducerError: Code.UNKNOWN_PRODUCER_ID,
    errors.TransactionStateError: Code.INVALID_TXN_STATE,
    errors.NotInTransactionError: Code.INVALID_TXN_STATE,
    errors.TransactionBusyError: Code.CONCURRENT_TRANSACTIONS,
    errors.TransactionTimeoutError: Code.INVALID_TRANSACTION_TIMEOUT,
    errors.UnknownTransactionError: Code.TRANSACTIONAL_ID_NOT_FOUND,
    # groups
    errors.UnknownGroupError: Code.GROUP_ID_NOT_FOUND,
    errors.UnknownMemberError: Code.UNKNOWN_MEMBER_ID,
    errors.MemberFencedError: Code.FENCED_INSTANCE_ID,
    errors.MemberIdRequiredError: Code.MEMBER_ID_REQUIRED,
    errors.IllegalGenerationError: Code.ILLEGAL_GENERATION,
    errors.RebalanceInProgressError: Code.REBALANCE_IN_PROGRESS,
    errors.InconsistentGroupProtocolError: Code.INCONSISTENT_GROUP_PROTOCOL,
    errors.GroupNotEmptyError: Code.NON_EMPTY_GROUP,
    errors.UnstablePositionError: Code.UNSTABLE_OFFSET_COMMIT,
    errors.InvalidGroupError: Code.INVALID_GROUP_ID,
    errors.SessionTimeoutError: Code.INVALID_SESSION_TIMEOUT,
    errors.GroupFullError: Code.GROUP_MAX_SIZE_REACHED,
    errors.GroupSubscribedError: Code.GROUP_SUBSCRIBED_TO_TOPIC,
    errors.CommitTooLargeError: Code.OFFSET_METADATA_TOO_LARGE,
    errors.SubscriptionBusyError: Code.GROUP_SUBSCRIBED_TO_TOPIC,
    errors.SubscriptionNotFoundError: Code.POLICY_VIOLATION,
}


class RefusedError(errors.WeirError):
    """A refusal with its own Kafka code and no counterpart in other protocols."""

    def __init__(self, code: Code, what: str, *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.code = code


class UnknownTopicIdError(errors.TopicNotFoundError):
    """No topic has an id that a client named; it may have been deleted."""


CODES[UnknownTopicIdError] = Code.UNKNOWN_TOPIC_ID


def code_of(failure: BaseException) -> int:
    """Kafka's code for a failure."""
    if isinstance(failure, RefusedError):
        return failure.code
    return next((CODES[kind] for kind in type(failure).__mro__ if kind in CODES), Code.UNKNOWN_SERVER_ERROR)


def text_of(failure: BaseException) -> str:
    """The error message for the client; the details of a bug stay in the broker's log."""
    return str(failure) if isinstance(failure, errors.WeirError) else "an internal error; see the broker's log"
