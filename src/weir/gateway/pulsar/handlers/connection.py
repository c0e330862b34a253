"""Handlers of CONNECT, AUTH_RESPONSE, PING and PONG, and of transaction commands, which they refuse."""

from typing import NoReturn

from weir.gateway.pulsar.authentication import SERVER_VERSION
from weir.gateway.pulsar.command_table import State, at_once, in_turn
from weir.gateway.pulsar.errors import NO_TRANSACTIONS
from weir.gateway.pulsar.session import Session
from weir.model.errors import NotAllowedError, WeirError
from weir.model.topics import TopicName
from weir.wire.pulsar import fast_frames
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import PROTOCOL_VERSION
from weir.wire.pulsar.proto import Message


@at_once(api.CommandPing)
def ping(_session: Session, _command: api.CommandPing) -> bytes:
    return fast_frames.PONG


@at_once(api.CommandPong)
def pong(_session: Session, _command: api.CommandPong) -> None:
    """Do nothing: the session has already noted the activity."""


#: The topic whose partitions clients look up first, each served by a transaction coordinator.
COORDINATOR = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")


@at_once(
    api.CommandTcClientConnectRequest,
    api.CommandNewTxn,
    api.CommandAddPartitionToTxn,
    api.CommandAddSubscriptionToTxn,
    api.CommandEndTxn,
    api.CommandEndTxnOnPartition,
    api.CommandEndTxnOnSubscription,
)
def transactions(_session: Session, _command: Message) -> NoReturn:
    raise NotAllowedError(NO_TRANSACTIONS)


#: Optional features of the protocol that this broker supports.
FEATURES = api.FeatureFlags(
    supports_auth_refresh=True,
    supports_broker_entry_metadata=True,
    supports_partial_producer=True,
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
)
#: Characters of the client version, which each producer and consumer stores.
_MAX_VERSION_CHARS = 128
#: Method names for the numeric methods of old clients.
_OLD_METHODS = {api.AuthMethodNone: "none", api.AuthMethodYcaV1: "ycav1", api.AuthMethodAthens: "athenz"}


@in_turn(api.CommandConnect, state=State.CONNECTING)
async def connect(session: Session, command: api.CommandConnect) -> api.CommandConnected | None:
    session.features = command.feature_flags
    session.protocol_version = command.protocol_version
    session.client_version = command.client_version[:_MAX_VERSION_CHARS]
    method = command.auth_method_name or _OLD_METHODS[command.auth_method]
    try:
        await session.credentials.prove(method, command.auth_data)
        if command.original_principal and command.original_principal != session.role:
            # Otherwise a proxy would lend its own permissions to its client.
            raise NotAllowedError("a proxy cannot connect with another original principal; this is not enabled")
    except WeirError as refused:
        session.end(refused)
        return None
    session.connected()
    return api.CommandConnected(
        server_version=SERVER_VERSION,
        protocol_version=min(command.protocol_version, PROTOCOL_VERSION),
        max_message_size=session.limits.max_message_bytes,
        feature_flags=FEATURES,
    )


@in_turn(api.CommandAuthResponse)
async def auth_response(session: Session, command: api.CommandAuthResponse) -> None:
    try:
        await session.credentials.prove(command.response.auth_method_name, command.response.auth_data)
    except WeirError as refused:
        session.end(refused)
