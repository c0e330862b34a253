"""The one error tree: what happened, and what the user can do about it.

Every error carries `what` and an optional `hint`. Layers raise the narrowest class; gateways map classes to
their protocol's codes in one table. Nothing outside this package invents an error type for a caller to catch.
A module per layer, the broker's by what they are about; a new class gets its line here too.

The broker: topics, producers, consumers and subscriptions.

A storage node.

Spark's side: SQL, and queries over topics.

A replicated ledger, as its writers and readers see it.

The broker: consumer groups.

The network and the disk.

Bytes that do not follow a protocol.

A partition's log.

The broker: idempotent producers and transactions.

Brokers among themselves: what one asked of another did not come to anything.

The metadata store.

The root of the error tree, and what belongs to no layer.

The broker: exchanges and bindings.

The broker: tenants, namespaces and schemas.

What goes wrong with queues.

Objects in a store of the lake, and what is read from them.

Connectors: definitions, and what goes wrong while they run.

Functions that are deployed.

The broker: who may do what, and how much of it.
"""

from collections.abc import Mapping

from weir.model.diagnosis import install_command


class WeirError(Exception):
    """Root of every error that Weir raises on purpose."""

    #: What the user can do, when the raiser has nothing more precise to say.
    hint: str = ""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.hint})" if self.hint else self.what


class InvariantError(WeirError):
    """A promise that the code makes to itself does not hold; a bug in Weir."""

    hint = "this is a bug in Weir; please report it with the log"


class ConfigError(WeirError):
    """A setting is unknown or wrong."""


class InvalidNameError(WeirError):
    """A name that cannot be a topic, namespace, tenant, subscription or producer."""


class BrokerError(WeirError):
    """The broker could not do what was asked."""


class NotFoundError(BrokerError):
    """The broker's answer is that there is no such thing."""


class NotAuthenticatedError(BrokerError):
    """The credentials are missing, wrong or out of date."""


class NotAuthorisedError(BrokerError):
    """The role may not do this."""


class NotAllowedError(BrokerError):
    """What was asked makes no sense here, or a policy forbids it."""


class TooManyError(BrokerError):
    """A limit on producers, consumers or subscriptions is reached."""


class BookieError(WeirError):
    """A storage node refused or failed."""


class NoSuchLedgerError(BookieError):
    """The bookie holds nothing of this ledger."""


class NoSuchEntryError(BookieError):
    """The bookie does not hold this entry, and says so with certainty."""


class LedgerFencedError(BookieError):
    """The ledger is fenced: a recovery has begun and its former writer may add nothing more."""


class EntryCorruptError(BookieError):
    """The entry is here, but its bytes are damaged; another replica may have it whole."""


class EntryInDoubtError(EntryCorruptError):
    """The bookie does not have the entry, and cannot say whether it once had: it lost a part of what it held."""


class BookieReadOnlyError(BookieError):
    """The bookie takes no new entries for now."""

    hint = "its disk is nearly full; free some space and it takes entries again"


class BookieBusyError(BookieError):
    """The bookie's queues are full; try again later."""


class BookieUnavailableError(BookieError):
    """The bookie did not answer; what was asked may or may not have happened."""


class BookieCookieError(BookieError):
    """The bookie's disk is not the one that this bookie id was given."""

    hint = "a bookie that lost its disk must come back under a new id, so that its ledgers are re-replicated"


class JournalCorruptError(BookieError):
    """The journal lost acknowledged bytes, in its middle or at its end; the bookie may not start on it."""

    hint = (
        "bring the file back; or with replicas wipe this bookie, start it under a new id, and let auto-recovery"
        " copy its ledgers; or save what can be read: weir salvage DATA --into NEW; or start once with"
        " --accept-loss to go on without what is missing"
    )


class EntryLogMissingError(BookieError):
    """An entry log that the bookie's checkpoint names is gone; the bookie may not start without it."""

    hint = (
        "bring the file back; or save what can be read: weir salvage DATA --into NEW; or with replicas wipe this"
        " bookie, start it under a new id, and let auto-recovery copy its ledgers"
    )


class LedgersUnknownError(BookieError):
    """The bookie holds ledgers that the metadata has not made yet: the metadata is older than the disk."""

    hint = (
        "restore the metadata, or check that it is this bookie's; or start once with --accept-loss to go on"
        " without what only the lost metadata knew"
    )


class ConnectorNotFoundError(WeirError):
    """There is no connector of this name."""

    hint = "weir connect list shows them"


class ConnectorExistsError(WeirError):
    """There is another connector of this name already."""

    hint = "remove it first, or choose another name"


class ConnectorError(WeirError):
    """A connector that cannot go on: what it carries, or the other system, does not allow it."""


class ExchangeNotFoundError(BrokerError):
    """No such exchange. AMQP: 404."""

    hint = "declare it first"


class ExchangeRefusedError(BrokerError):
    """A name that is kept for the broker, or something that the default or an internal exchange does not take.
    AMQP: 403."""


class ExchangeInUseError(BrokerError):
    """It was to be deleted if nothing is bound to it, and something is. AMQP: 406."""

    hint = "unbind first, or delete it without if-unused"


class InequivalentExchangeError(BrokerError):
    """There is an exchange of this name that is declared otherwise. AMQP: 406."""

    hint = "declare it as it is, or delete it first"


class ExchangeArgumentError(BrokerError):
    """An argument of an exchange or a binding has a value that it cannot have. AMQP: 406."""


class UnknownExchangeTypeError(BrokerError):
    """There is no such type of exchange. AMQP: 503, which ends the connection."""

    hint = "use direct, fanout, topic, headers or x-delayed-message"


class FunctionError(WeirError):
    """A function whose code cannot be loaded, or does not do what functions do."""


class FunctionNotFoundError(WeirError):
    """No function of this name is deployed."""

    hint = "weir functions list shows those that are"


class FunctionExistsError(WeirError):
    """A function of this name is deployed already."""

    hint = "change it with weir functions update, or choose another name with --name"


class UnknownGroupError(BrokerError):
    """There is no such consumer group."""


class UnknownMemberError(BrokerError):
    """The group does not know this member."""


class MemberFencedError(BrokerError):
    """Another member has this static id now."""


class MemberIdRequiredError(BrokerError):
    """A new member shall join again with the id that it is given here."""

    def __init__(self, what: str, *, hint: str | None = None, member_id: str = "") -> None:
        super().__init__(what, hint=hint)
        self.member_id = member_id


class IllegalGenerationError(BrokerError):
    """The group has moved on to another generation."""


class RebalanceInProgressError(BrokerError):
    """The group is being divided anew."""

    hint = "join again"


class InconsistentGroupProtocolError(BrokerError):
    """The member has no way of dividing work in common with the others."""


class GroupNotEmptyError(BrokerError):
    """The group has members."""


class InvalidGroupError(BrokerError):
    """A name that cannot be a consumer group's."""


class SessionTimeoutError(BrokerError):
    """A member may not be silent for as long, or as short, as it asked for."""


class GroupFullError(BrokerError):
    """The group has as many members as it may have."""


class GroupSubscribedError(BrokerError):
    """The group's members read this topic."""

    hint = "stop them first"


class CommitTooLargeError(BrokerError):
    """What a consumer group wants kept beside a position is too long."""


class UnstablePositionError(BrokerError):
    """A transaction that moves the position is not decided yet."""

    hint = "try again"


class LedgerError(WeirError):
    """A replicated ledger could not do what was asked."""


class LedgerNotFoundError(LedgerError):
    """No such ledger in the metadata."""


class LedgerExistsError(LedgerError):
    """The ledger id is taken."""


class LedgerClosedError(LedgerError):
    """The ledger is closed and takes no more entries."""


class WriterFencedError(LedgerError):
    """Another client recovered this ledger; this writer must stop."""


class NotEnoughBookiesError(LedgerError):
    """Fewer bookies are available than the ensemble needs."""

    hint = "start more bookies, or create ledgers with a smaller ensemble"


class EntryUnreadableError(LedgerError):
    """No replica could give the entry whole."""


class EntryLostError(EntryUnreadableError):
    """Every replica of the entry answered, at least one that its copy is damaged, and none has it whole. Unlike an
    entry that was never there it leaves a gap in its ledger; unlike one out of reach it will not come back."""

    hint = (
        "`weir bookie verify` names the damaged files; readers go on behind it, and what they skip is written down"
    )

    def __init__(self, what: str, *, hint: str | None = None, ledger_id: int = -1, entry_id: int = -1) -> None:
        super().__init__(what, hint=hint)
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryTooLargeError(LedgerError):
    """The entry is larger than the limit."""


class WindowFullError(LedgerError):
    """More waits to be acknowledged than a writer may hold."""

    hint = "await the writer's ready() between appends"


class RecoveryFailedError(LedgerError):
    """The ledger's end could not be decided; too many of its bookies do not answer."""

    hint = "bring more of its bookies back and try again"


class MetaError(WeirError):
    """The metadata store refused or failed."""


class MetaConflictError(MetaError):
    """The key is not at the expected version: someone else changed it first."""


class MetaUnavailableError(MetaError):
    """The store did not answer; the change may or may not have been made."""

    hint = "check that the metadata store runs and is reachable"


class LeaseExpiredError(MetaError):
    """The lease is gone, and with it every key that it held."""


class MetaKeyMissingError(MetaError):
    """The key to change does not exist."""


class MetaCorruptError(MetaError):
    """The embedded store lost acknowledged bytes; it may not start on what is left."""

    hint = (
        "restore the folder from a copy (weir restore); or save what can be read: weir salvage DATA --into NEW; or"
        " start once with --accept-loss to go on without what is missing"
    )


class MetaHistoryLostError(MetaError):
    """The store has forgotten changes that a watch has not seen yet: what its reader knows may be out of date."""


class PeerError(BrokerError):
    """Another broker could not do what this one asked of it."""


class PeerUnavailableError(PeerError):
    """The other broker cannot be reached or did not answer in time; whether it did what was asked is not known,
    unless `sent` says that it never heard of it."""

    hint = "try again; if it goes on, see `weir cluster status`"

    def __init__(self, what: str, *, hint: str | None = None, sent: bool = True) -> None:
        """`sent`: whether the request may have reached the other broker."""
        super().__init__(what, hint=hint)
        self.sent = sent


class PeerBusyError(PeerError):
    """Too much is asked of the other broker at the moment; it has done nothing about this."""

    hint = "try again in a moment"


class PeerUnsupportedError(PeerError):
    """The other broker does not know this call."""

    hint = "upgrade the older broker"


class PeerFailedError(PeerError):
    """The other broker failed with an error that has no name here."""

    hint = "see the other broker's log"


class QueueNotFoundError(BrokerError):
    """No such queue. AMQP: 404."""

    hint = "declare it first"


class QueueLockedError(BrokerError):
    """It belongs to another connection, or another consumer has it for itself. AMQP: 405 for the connection's
    queues, 403 for consumers."""

    hint = "use a queue of your own, or wait until the other one has gone"


class QueueInUseError(BrokerError):
    """It was to be deleted if it has no consumers, or no messages, and it has. AMQP: 406."""

    hint = "delete it without if-unused and if-empty"


class InequivalentQueueError(BrokerError):
    """There is a queue of this name that is declared otherwise. AMQP: 406."""

    hint = "declare it as it is, or delete it first"


class QueueArgumentError(BrokerError):
    """An argument of a queue, a consumer or a message has a value that it cannot have. AMQP: 406."""


class QueueRefusedError(BrokerError):
    """A name that is kept for the broker. AMQP: 403."""


class TenantNotFoundError(BrokerError):
    """No such tenant."""


class TenantExistsError(BrokerError):
    """There is a tenant of this name already."""


class NamespaceNotFoundError(BrokerError):
    """No such namespace."""


class NamespaceExistsError(BrokerError):
    """There is a namespace of this name already."""


class TopicExistsError(BrokerError):
    """There is a topic of this name already."""


class ClusterNotFoundError(BrokerError):
    """No such cluster."""


class NotEmptyError(BrokerError):
    """What was to be deleted still holds something."""

    hint = "delete what is in it first"


class SchemaNotFoundError(BrokerError):
    """The topic has no schema, or none of this version."""


class InvalidSchemaError(BrokerError):
    """The schema's definition cannot be read."""


class IncompatibleSchemaError(BrokerError):
    """The schema does not go with those that the topic has."""

    hint = "see the topic's compatibility strategy"


class NetworkError(WeirError):
    """The network did not deliver."""


class ConnectionLostError(NetworkError):
    """The connection broke; what was in flight may or may not have arrived."""


class ConnectFailedError(NetworkError):
    """No connection could be made."""

    hint = "check that the address is right and that the server runs"


class TlsFailedError(ConnectFailedError):
    """The handshake of TLS failed: the two do not agree, or one does not take the other's certificate. It would
    fail again."""

    hint = "check certificate and CA"


class TlsRefusedError(ConnectionLostError):
    """The other end closed a TLS connection before it said a word: a server learns of a client's certificate after
    the client is done with the handshake. One that does so several times in a row does not take it."""


class AddressInUseError(NetworkError):
    """The address to listen on is taken."""

    hint = "choose another port, or port 0 for a free one"


class DiskError(WeirError):
    """The disk did not do what was asked."""


class DiskFullError(DiskError):
    """No space is left on the device."""

    hint = "free some space or add a disk"


class FileMissingError(DiskError):
    """The file or directory does not exist."""


class FileLockedError(DiskError):
    """Another process holds the lock on this file."""

    hint = "another Weir uses this folder; stop it or choose another --data folder"


class SqlError(WeirError):
    """A SQL statement that cannot be understood, or not be run."""


class SqlStreamNotFoundError(WeirError):
    """SQL has defined no stream of this name."""

    hint = "SHOW STREAMS lists them"


class ReplayNotFoundError(WeirError):
    """There is no replay of this id."""


class ReplayStateError(WeirError):
    """A replay that has ended, or that cannot go on."""


class SqlStreamExistsError(WeirError):
    """There is a stream of this name already."""

    hint = "drop it first, or choose another name"


class RunnerBusyError(WeirError):
    """Another process runs the streams."""

    hint = "one is enough; stop it first to run them here"


class SparkSetupError(WeirError):
    """Spark cannot run here."""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        install = f"install it with {install_command('spark')}; weir doctor says what is missing"
        super().__init__(what, hint=install if hint is None else hint)


class SparkJvmError(WeirError):
    """The JVM of this process can run no query any more; only a new process can."""

    hint = "start it again; weir up --streams does so by itself"
    #: By which those who started the process know that a new one will do better.
    exit_code = 75


class DataLostError(WeirError):
    """Offsets that a query still wanted are no longer in the topic."""

    hint = "set failOnDataLoss=false to go on with what is there"


class LakeError(WeirError):
    """A table of the lake that cannot be written or read as it is."""


class LakeUnfinishedError(LakeError):
    """Some rows of an export are in the table, each once; what came behind them failed."""


class LakeConflictError(LakeError):
    """Somebody else has committed to the table meanwhile; nothing was added."""

    hint = "it is tried again; let one `weir lake run` export a topic"


class StreamError(WeirError):
    """A stream could not do what was asked."""


class StreamNotFoundError(StreamError):
    """No such stream."""


class StreamClosedError(StreamError):
    """This broker has let go of the stream."""


class StreamFencedError(StreamError):
    """Another broker holds the stream now."""


class StreamTerminatedError(StreamError):
    """The stream takes no more messages, for good."""


class StreamBusyError(StreamError):
    """Too much waits to be stored; try again later."""


class OffsetTrimmedError(StreamError):
    """The offset is older than what the stream still holds."""


class NotHeldError(StreamError):
    """No message waits under this id: it was released, is being released, was cancelled, or never was held."""


class HalfDecidedError(StreamError):
    """The half message was decided before, and otherwise."""


class ReadFailedError(StreamError):
    """Messages are there and cannot be read now; trying again may help. Names the stream and the offset."""

    hint = "`weir doctor` and the broker's log say which storage does not answer"


class ReadStuckError(ReadFailedError):
    """The same, for so long that whoever waits for these messages is told."""


class ObjectStoreError(WeirError):
    """A store of objects did not do what was asked; trying again may help."""

    hint = (
        "check that the store answers and that the broker's environment has its credentials "
        "(docs/reference/lake.md)"
    )


class ObjectMissingError(ObjectStoreError):
    """The store has no such object."""

    hint = "bring the object back, or move consumers behind it; the lake's table still has its messages"


class SegmentDamagedError(ObjectStoreError):
    """An object is there, and its bytes are not those that were written."""

    hint = "bring the object back, or move consumers behind it; the lake's table still has its messages"


class OutOfOrderSequenceError(BrokerError):
    """An idempotent producer's batch does not follow the last one: something between them is missing."""


class StaleEpochError(BrokerError):
    """A newer producer of the same id, or transactional id, has fenced this one."""


class UnknownProducerError(BrokerError):
    """Nothing is known of this producer id."""


class TransactionStateError(BrokerError):
    """The transaction is not in a state in which this may be asked."""


class NotInTransactionError(TransactionStateError):
    """The open transaction of this producer, if it has one, knows nothing of the partition or group."""


class SinkOfOtherQueryError(BrokerError):
    """Another query has written the last epoch of this sink: epochs of two checkpoints cannot be compared."""


class TransactionBusyError(BrokerError):
    """The last transaction of this id is still being ended."""

    hint = "try again"


class TransactionTimeoutError(BrokerError):
    """A transaction may not be left open for so long."""


class UnknownTransactionError(BrokerError):
    """Nothing is known of this transactional id."""


class WireError(WeirError):
    """Bytes that do not follow the protocol: the only error that a codec raises."""


class WrongPortError(WireError):
    """A client uses another protocol than its port serves."""


class FrameTooLargeError(WireError):
    """A frame announces more bytes than the limit allows."""


class ChecksumError(WireError):
    """Bytes whose checksum does not match."""


class UnknownVersionError(WireError):
    """A format or protocol version that this build does not know."""


class AmqpError(WireError):
    """What ends a connection or a channel of AMQP 0-9-1, with the reply code that its close says.

    `class_id` and `method_id` name the method that was at fault; 0 if it was none.
    """

    def __init__(
        self, what: str, *, code: int = 541, class_id: int = 0, method_id: int = 0, hint: str | None = None
    ) -> None:
        """`code`: an internal error, if nothing else is said."""
        super().__init__(what, hint=hint)
        self.code = code
        self.class_id = class_id
        self.method_id = method_id


class AmqpHeaderError(WireError):
    """A peer that opens with another protocol than AMQP 0-9-1: a server answers its own header, and closes."""


class TopicNotFoundError(NotFoundError):
    """No such topic, and it may not be made by being asked for."""


class TopicClosedError(BrokerError):
    """This broker has let go of the topic."""

    hint = "look the topic up again and connect anew"


class NotOwnerError(BrokerError):
    """Another broker has the topic; its addresses, if they are known."""

    hint = "look the topic up again"

    def __init__(self, what: str, *, hint: str | None = None, listeners: Mapping[str, str] | None = None) -> None:
        """`listeners`: where that broker is reached, by the names of its listeners."""
        super().__init__(what, hint=hint)
        self.listeners: Mapping[str, str] = listeners or {}


class ProducerBusyError(BrokerError):
    """The topic has a producer that excludes this one, or one of the same name."""


class ProducerFencedError(BrokerError):
    """Another producer has taken the topic for itself."""


class ProducerClosedError(BrokerError):
    """The producer is closed; what it sent last may or may not have been stored."""

    hint = "connect anew and send again; deduplication drops what is there already"


class DuplicateInDoubtError(BrokerError):
    """Whether the message is there already cannot be told yet."""

    hint = "connect anew and send again"


class MessageTooLargeError(BrokerError):
    """The message is larger than the topic allows."""


class InvalidRecordError(BrokerError):
    """What the message asks for in its headers, or is, cannot be."""


class QuotaExceededError(BrokerError):
    """The topic's backlog exceeds its quota."""

    hint = "consume or skip what waits there"


class StorageFullError(QuotaExceededError):
    """Nothing new can be stored now: the disk is nearly full."""

    hint = (
        "free some space, shorten retention or delete topics; or lower storage.low_water_bytes and"
        " storage.high_water_bytes"
    )


class MetaFullError(StorageFullError, MetaUnavailableError):
    """The disk of the metadata store is full; the change may be made once it has space again."""

    hint = "free some space on that disk; Weir continues by itself"


class ProducersHeldError(QuotaExceededError):
    """The topic's backlog exceeds its quota; producers shall wait until it does not."""


class SubscriptionNotFoundError(BrokerError):
    """No such subscription."""


class SubscriptionExistsError(BrokerError):
    """There is a subscription of this name already."""


class SubscriptionBusyError(BrokerError):
    """The subscription has consumers that exclude what was asked."""


class ConsumerClosedError(BrokerError):
    """The consumer is closed."""


class FilterError(BrokerError):
    """A filter of a subscription cannot be understood. `position`: where in it, from 1; None: nowhere in
    particular."""

    hint = "see docs/reference/filters.md for what can be said"

    def __init__(self, what: str, *, hint: str | None = None, position: int | None = None) -> None:
        super().__init__(what, hint=hint)
        self.position = position


class HashRangesError(BrokerError):
    """The hash ranges that a consumer asked for are malformed or taken."""


__all__ = [
    "AddressInUseError",
    "AmqpError",
    "AmqpHeaderError",
    "BookieBusyError",
    "BookieCookieError",
    "BookieError",
    "BookieReadOnlyError",
    "BookieUnavailableError",
    "BrokerError",
    "ChecksumError",
    "ClusterNotFoundError",
    "CommitTooLargeError",
    "ConfigError",
    "ConnectFailedError",
    "ConnectionLostError",
    "ConnectorError",
    "ConnectorExistsError",
    "ConnectorNotFoundError",
    "ConsumerClosedError",
    "DataLostError",
    "DiskError",
    "DiskFullError",
    "DuplicateInDoubtError",
    "EntryCorruptError",
    "EntryInDoubtError",
    "EntryLogMissingError",
    "EntryLostError",
    "EntryTooLargeError",
    "EntryUnreadableError",
    "ExchangeArgumentError",
    "ExchangeInUseError",
    "ExchangeNotFoundError",
    "ExchangeRefusedError",
    "FileLockedError",
    "FileMissingError",
    "FilterError",
    "FrameTooLargeError",
    "FunctionError",
    "FunctionExistsError",
    "FunctionNotFoundError",
    "GroupFullError",
    "GroupNotEmptyError",
    "GroupSubscribedError",
    "HalfDecidedError",
    "HashRangesError",
    "IllegalGenerationError",
    "IncompatibleSchemaError",
    "InconsistentGroupProtocolError",
    "InequivalentExchangeError",
    "InequivalentQueueError",
    "InvalidGroupError",
    "InvalidNameError",
    "InvalidRecordError",
    "InvalidSchemaError",
    "InvariantError",
    "JournalCorruptError",
    "LakeConflictError",
    "LakeError",
    "LakeUnfinishedError",
    "LeaseExpiredError",
    "LedgerClosedError",
    "LedgerError",
    "LedgerExistsError",
    "LedgerFencedError",
    "LedgerNotFoundError",
    "LedgersUnknownError",
    "MemberFencedError",
    "MemberIdRequiredError",
    "MessageTooLargeError",
    "MetaConflictError",
    "MetaCorruptError",
    "MetaError",
    "MetaFullError",
    "MetaHistoryLostError",
    "MetaKeyMissingError",
    "MetaUnavailableError",
    "NamespaceExistsError",
    "NamespaceNotFoundError",
    "NetworkError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "NotAuthorisedError",
    "NotEmptyError",
    "NotEnoughBookiesError",
    "NotFoundError",
    "NotHeldError",
    "NotInTransactionError",
    "NotOwnerError",
    "ObjectMissingError",
    "ObjectStoreError",
    "OffsetTrimmedError",
    "OutOfOrderSequenceError",
    "PeerBusyError",
    "PeerError",
    "PeerFailedError",
    "PeerUnavailableError",
    "PeerUnsupportedError",
    "ProducerBusyError",
    "ProducerClosedError",
    "ProducerFencedError",
    "ProducersHeldError",
    "QueueArgumentError",
    "QueueInUseError",
    "QueueLockedError",
    "QueueNotFoundError",
    "QueueRefusedError",
    "QuotaExceededError",
    "ReadFailedError",
    "ReadStuckError",
    "RebalanceInProgressError",
    "RecoveryFailedError",
    "ReplayNotFoundError",
    "ReplayStateError",
    "RunnerBusyError",
    "SchemaNotFoundError",
    "SegmentDamagedError",
    "SessionTimeoutError",
    "SinkOfOtherQueryError",
    "SparkJvmError",
    "SparkSetupError",
    "SqlError",
    "SqlStreamExistsError",
    "SqlStreamNotFoundError",
    "StaleEpochError",
    "StorageFullError",
    "StreamBusyError",
    "StreamClosedError",
    "StreamError",
    "StreamFencedError",
    "StreamNotFoundError",
    "StreamTerminatedError",
    "SubscriptionBusyError",
    "SubscriptionExistsError",
    "SubscriptionNotFoundError",
    "TenantExistsError",
    "TenantNotFoundError",
    "TlsFailedError",
    "TlsRefusedError",
    "TooManyError",
    "TopicClosedError",
    "TopicExistsError",
    "TopicNotFoundError",
    "TransactionBusyError",
    "TransactionStateError",
    "TransactionTimeoutError",
    "UnknownExchangeTypeError",
    "UnknownGroupError",
    "UnknownMemberError",
    "UnknownProducerError",
    "UnknownTransactionError",
    "UnknownVersionError",
    "UnstablePositionError",
    "WeirError",
    "WindowFullError",
    "WireError",
    "WriterFencedError",
    "WrongPortError",
]
