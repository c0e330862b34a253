"""The one table from Weir's errors to Pulsar's codes. The nearest class in the error's ancestry decides.

Small translations between protobuf and values.
"""

from collections.abc import Iterable

from weir.broker.api.schemas import SchemaData
from weir.model import errors
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import Code
from weir.wire.pulsar.ids import signed

_E = api.ServerError

#: What every attempt to use a transaction is answered with, as a broker of Pulsar's does that has them disabled.
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
    # What only Kafka's clients ask for; a client of Pulsar meets none of these.
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
    # What only AMQP's clients ask for.
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

#: A send that fails with one of these is refused for good: its producer learns of it. With any other, sending it
#: again on a new producer may help, so the producer is closed and its client connects it anew by itself.
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
    """What the client is told; the inside of a bug, and paths of this machine, stay in the log."""
    if isinstance(failure, errors.DiskError):
        return "the broker's disk failed; see its log"
    return str(failure) if isinstance(failure, errors.WeirError) else "an internal error; see the broker's log"


#: Pulsar's words for the types whose name in the protocol is not the same in capitals.
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
#: Types that say nothing about a message.
_NO_SCHEMA = ("None", "AutoConsume")


#: Ledger and entry.
EntryPosition = tuple[int, int]


def place_of(at: api.MessageIdData) -> EntryPosition:
    """Ledger and entry of a message id."""
    return signed(at.ledgerId), signed(at.entryId)


def pairs(metadata: Iterable[api.KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in metadata}


def schema_from_wire(schema: api.Schema) -> SchemaData | None:
    """None for bytes without a schema, and for a consumer that takes whatever there is."""
    name = api.Schema.Type.Name(schema.type)
    if name in _NO_SCHEMA:
        return None
    # The Python client writes the definition of a type that needs none as JSON's null.
    data = b"" if schema.schema_data == b"null" else schema.schema_data
    return SchemaData(_TYPES[name], data, schema.name, pairs(schema.properties))


def schema_to_wire(schema: SchemaData) -> api.Schema:
    return api.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=api.Schema.Type.Value(_NAMES[schema.type]),
        properties=[api.KeyValue(key=key, value=value) for key, value in schema.properties.items()],
    )
