"""The table that maps Weir's errors to Pulsar's codes (the nearest class in the MRO decides), and conversions
between protobuf messages and values."""

from collections.abc import Iterable

from weir.broker.api.schemas import SchemaData
from weir.model import errors
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import Code
from weir.wire.pulsar.ids import signed

_E = api.ServerError

#: The error for every transaction command, as from a Pulsar broker with transactions disabled.
NO_TRANSACTIONS = "Transactions are not supported"

CODES: dict[type[BaseException], Code] = {
    errors.WeirError: _E.UnknownError,
    errors.InvalidNameError: _E.InvalidTopicName,
    errors.WireError: _E.NotAllowedError,
    errors.FrameTooLargeError: _E.NotAllowedError,
    errors.ChecksumError: _E.ChecksumError,
    errors.UnknownVersionError: _E.UnsupportedVersionError,
    errors.NetworkError: _E.ServiceNotReady,
    errors.MetaError: _E.MetadataError,
    errors.BookieError: _E.PersistenceError,
    errors.LedgerError: _E.PersistenceError,
    errors.StreamError: _E.PersistenceError,
    errors.StreamNotFoundError: _E.TopicNotFound,
    errors.StreamTerminatedError: _E.TopicTerminatedError,
    errors.StreamClosedError: _E.ServiceNotReady,
    errors.StreamFencedError: _E.ServiceNotReady,
    errors.StreamBusyError: _E.ServiceNotReady,
    errors.BrokerError: _E.UnknownError,
    errors.NotFoundError: _E.TopicNotFound,
    errors.NotAuthenticatedError: _E.AuthenticationError,
    errors.NotAuthorisedError: _E.AuthorizationError,
    errors.NotAllowedError: _E.NotAllowedError,
    errors.TopicNotFoundError: _E.TopicNotFound,
    errors.TopicClosedError: _E.ServiceNotReady,
    errors.NotOwnerError: _E.ServiceNotReady,
    errors.PeerError: _E.ServiceNotReady,
    errors.PeerBusyError: _E.ServiceNotReady,
    errors.PeerUnavailableError: _E.ServiceNotReady,
    errors.PeerUnsupportedError: _E.ServiceNotReady,
    errors.PeerFailedError: _E.ServiceNotReady,
    errors.ProducerBusyError: _E.ProducerBusy,
    errors.ProducerFencedError: _E.ProducerFenced,
    errors.ProducerClosedError: _E.ServiceNotReady,
    errors.DuplicateInDoubtError: _E.PersistenceError,
    errors.TooManyError: _E.TooManyRequests,
    errors.MessageTooLargeError: _E.NotAllowedError,
    errors.InvalidRecordError: _E.NotAllowedError,
    errors.QuotaExceededError: _E.ProducerBlockedQuotaExceededException,
    errors.SubscriptionNotFoundError: _E.SubscriptionNotFound,
    errors.SubscriptionExistsError: _E.NotAllowedError,
    errors.SubscriptionBusyError: _E.ConsumerBusy,
    errors.ConsumerClosedError: _E.ConsumerNotFound,
    errors.FilterError: _E.NotAllowedError,
    errors.HashRangesError: _E.ConsumerAssignError,
    errors.TenantNotFoundError: _E.TopicNotFound,
    errors.NamespaceNotFoundError: _E.TopicNotFound,
    errors.ClusterNotFoundError: _E.MetadataError,
    errors.TenantExistsError: _E.NotAllowedError,
    errors.NamespaceExistsError: _E.NotAllowedError,
    errors.TopicExistsError: _E.NotAllowedError,
    errors.NotEmptyError: _E.NotAllowedError,
    errors.SchemaNotFoundError: _E.TopicNotFound,
    errors.InvalidSchemaError: _E.IncompatibleSchema,
    errors.IncompatibleSchemaError: _E.IncompatibleSchema,
    errors.StorageFullError: _E.ProducerBlockedQuotaExceededException,
    errors.MetaFullError: _E.MetadataError,
    errors.ProducersHeldError: _E.ProducerBlockedQuotaExceededError,
    # Errors of Kafka's APIs; Pulsar clients never get these.
    errors.OutOfOrderSequenceError: _E.NotAllowedError,
    errors.StaleEpochError: _E.ProducerFenced,
    errors.UnknownProducerError: _E.NotAllowedError,
    errors.TransactionStateError: _E.InvalidTxnStatus,
    errors.SinkOfOtherQueryError: _E.NotAllowedError,
    errors.NotInTransactionError: _E.InvalidTxnStatus,
    errors.UnknownTransactionError: _E.TransactionNotFound,
    errors.TransactionBusyError: _E.TransactionConflict,
    errors.TransactionTimeoutError: _E.InvalidTxnStatus,
    errors.UnknownTransactionError: _E.TransactionNotFound,
    errors.UnknownGroupError: _E.SubscriptionNotFound,
    errors.UnknownMemberError: _E.ConsumerNotFound,
    errors.MemberFencedError: _E.ConsumerBusy,
    errors.MemberIdRequiredError: _E.NotAllowedError,
    errors.IllegalGenerationError: _E.NotAllowedError,
    errors.RebalanceInProgressError: _E.ServiceNotReady,
    errors.InconsistentGroupProtocolError: _E.ConsumerAssignError,
    errors.GroupNotEmptyError: _E.ConsumerBusy,
    errors.UnstablePositionError: _E.ServiceNotReady,
    errors.SessionTimeoutError: _E.NotAllowedError,
    errors.InvalidGroupError: _E.NotAllowedError,
    errors.GroupSubscribedError: _E.ConsumerBusy,
    errors.GroupFullError: _E.TooManyRequests,
    errors.CommitTooLargeError: _E.NotAllowedError,
    # Errors of AMQP's methods.
    errors.ExchangeNotFoundError: _E.TopicNotFound,
    errors.ExchangeRefusedError: _E.NotAllowedError,
    errors.InequivalentQueueError: _E.NotAllowedError,
    errors.QueueArgumentError: _E.NotAllowedError,
    errors.QueueInUseError: _E.NotAllowedError,
    errors.QueueLockedError: _E.NotAllowedError,
    errors.QueueRefusedError: _E.NotAllowedError,
    errors.QueueNotFoundError: _E.TopicNotFound,
    errors.ExchangeInUseError: _E.NotAllowedError,
    errors.InequivalentExchangeError: _E.NotAllowedError,
    errors.ExchangeArgumentError: _E.NotAllowedError,
    errors.UnknownExchangeTypeError: _E.NotAllowedError,
}

#: Errors that refuse a send permanently: the producer gets SEND_ERROR. After any other error a retry on a new
#: producer may succeed, so the broker closes the producer and the client reconnects it automatically.
FINAL = (
    errors.WireError,
    errors.NotAuthorisedError,
    errors.NotAllowedError,
    errors.MessageTooLargeError,
    errors.InvalidRecordError,
    errors.QuotaExceededError,
    errors.ProducerFencedError,
    errors.StreamTerminatedError,
    errors.EntryTooLargeError,
)


def code_of(failure: BaseException) -> Code:
    """Pulsar's code for a failure."""
    return next((CODES[kind] for kind in type(failure).__mro__ if kind in CODES), _E.UnknownError)


def text_of(failure: BaseException) -> str:
    """The error message for the client; details of a bug and local paths stay in the log."""
    if isinstance(failure, errors.DiskError):
        return "the broker's disk failed; see its log"
    return str(failure) if isinstance(failure, errors.WeirError) else "an internal error; see the broker's log"


#: Pulsar's names of schema types that differ from the upper-case protocol name.
_WORDS = {
    "KeyValue": "KEY_VALUE",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
    "ProtobufNative": "PROTOBUF_NATIVE",
    "AutoConsume": "AUTO_CONSUME",
    "Bool": "BOOLEAN",
    "None": "BYTES",
}
_TYPES = {name: _WORDS.get(name, name.upper()) for name, _ in api.Schema.Type.items()}
_NAMES = {word: name for name, word in _TYPES.items()}
#: Types that do not describe messages.
_NO_SCHEMA = ("None", "AutoConsume")


#: Ledger and entry.
EntryPosition = tuple[int, int]


def place_of(at: api.MessageIdData) -> EntryPosition:
    """Ledger and entry of a message id."""
    return signed(at.ledgerId), signed(at.entryId)


def pairs(metadata: Iterable[api.KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in metadata}


def schema_from_wire(schema: api.Schema) -> SchemaData | None:
    """Convert a schema; None for bytes without a schema, and for a consumer with AUTO_CONSUME."""
    name = api.Schema.Type.Name(schema.type)
    if name in _NO_SCHEMA:
        return None
    # The Python client sends JSON null as the definition of a type without one.
    data = b"" if schema.schema_data == b"null" else schema.schema_data
    return SchemaData(_TYPES[name], data, schema.name, pairs(schema.properties))


def schema_to_wire(schema: SchemaData) -> api.Schema:
    return api.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=api.Schema.Type.Value(_NAMES[schema.type]),
        properties=[api.KeyValue(key=key, value=value) for key, value in schema.properties.items()],
    )
