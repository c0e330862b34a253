"""The one error tree: what happened, and what the user can do about it.

Every error carries `what` and an optional `hint`. Layers raise the narrowest class; gateways map classes to
their protocol's codes in one table. Nothing outside this module invents an error type for a caller to catch.
"""


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
    """A name that cannot be a topic, namespace, tenant or subscription."""


# --- wire ---------------------------------------------------------------------------------------------------


class WireError(WeirError):
    """Bytes that do not follow the protocol: the only error that a codec raises."""


class FrameTooLargeError(WireError):
    """A frame announces more bytes than the limit allows."""


class ChecksumError(WireError):
    """Bytes whose checksum does not match."""


class UnknownVersionError(WireError):
    """A format or protocol version that this build does not know."""


# --- runtime ------------------------------------------------------------------------------------------------


class NetworkError(WeirError):
    """The network did not deliver."""


class ConnectionLostError(NetworkError):
    """The connection broke; what was in flight may or may not have arrived."""


class ConnectFailedError(NetworkError):
    """No connection could be made."""

    hint = "check that the address is right and that the server runs"


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


# --- meta ---------------------------------------------------------------------------------------------------


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

    hint = "restore the metadata folder from a copy; a part of it was damaged after it had been written"


# --- bookie -------------------------------------------------------------------------------------------------


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
    """The journal lost acknowledged bytes in its middle; the bookie may not start on it."""

    hint = "wipe this bookie, start it under a new id, and let auto-recovery copy its ledgers from other replicas"


class EntryLogMissingError(BookieError):
    """An entry log that the bookie's checkpoint names is gone; the bookie may not start without it."""

    hint = (
        "bring the file back, or wipe this bookie, start it under a new id, and let auto-recovery copy its ledgers"
    )


# --- ledger -------------------------------------------------------------------------------------------------


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


class EntryTooLargeError(LedgerError):
    """The entry is larger than the limit."""


class WindowFullError(LedgerError):
    """More waits to be acknowledged than a writer may hold."""

    hint = "await the writer's ready() between appends"


class RecoveryFailedError(LedgerError):
    """The ledger's end could not be decided; too many of its bookies do not answer."""

    hint = "bring more of its bookies back and try again"


# --- stream -------------------------------------------------------------------------------------------------


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


# --- broker -------------------------------------------------------------------------------------------------


class BrokerError(WeirError):
    """The broker could not do what was asked."""


class NotAuthenticatedError(BrokerError):
    """The credentials are missing, wrong or out of date."""


class NotAuthorisedError(BrokerError):
    """The role may not do this."""


class NotAllowedError(BrokerError):
    """What was asked makes no sense here, or a policy forbids it."""


class TopicNotFoundError(BrokerError):
    """No such topic, and it may not be made by being asked for."""


class TopicClosedError(BrokerError):
    """This broker has let go of the topic."""

    hint = "look the topic up again and connect anew"


class NotOwnerError(BrokerError):
    """Another broker has the topic; its addresses, if they are known."""

    hint = "look the topic up again"

    def __init__(self, what: str, *, hint: str | None = None, pulsar_url: str = "", http_url: str = "") -> None:
        super().__init__(what, hint=hint)
        self.pulsar_url = pulsar_url
        self.http_url = http_url


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


class TransactionBusyError(BrokerError):
    """The last transaction of this id is still being ended."""

    hint = "try again"


class TransactionTimeoutError(BrokerError):
    """A transaction may not be left open for so long."""


class UnknownTransactionError(BrokerError):
    """Nothing is known of this transactional id."""


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


class TooManyError(BrokerError):
    """A limit on producers, consumers or subscriptions is reached."""


class MessageTooLargeError(BrokerError):
    """The message is larger than the topic allows."""


class QuotaExceededError(BrokerError):
    """The topic's backlog exceeds its quota."""

    hint = "consume or skip what waits there"


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


class HashRangesError(BrokerError):
    """The hash ranges that a consumer asked for are malformed or taken."""


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


# --- spark --------------------------------------------------------------------------------------------------


class SqlError(WeirError):
    """A SQL statement that cannot be understood, or not be run."""


class SqlStreamNotFoundError(WeirError):
    """SQL has defined no stream of this name."""

    hint = "SHOW STREAMS lists them"


class SqlStreamExistsError(WeirError):
    """There is a stream of this name already."""

    hint = "drop it first, or choose another name"


class RunnerBusyError(WeirError):
    """Another process runs the streams."""

    hint = "one is enough; stop it first to run them here"


class SparkSetupError(WeirError):
    """Spark cannot run here."""

    hint = "install it with pip install 'weir[spark]'; weir doctor says what is missing"


class DataLostError(WeirError):
    """Offsets that a query still wanted are no longer in the topic."""

    hint = "set failOnDataLoss=false to go on with what is there"
