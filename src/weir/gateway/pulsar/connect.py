"""Who a session's client is, and for how long: asked anew before its credentials end.

CONNECT: who the client is and what it understands; and AUTH_RESPONSE, when it proves itself anew.

Transactions: refused, as a Pulsar broker does that has them disabled.

PING and PONG.
"""

import logging
from typing import NoReturn

from weir.broker.api.security import Identity
from weir.gateway.pulsar.command_table import State, at_once, in_turn
from weir.gateway.pulsar.errors import NO_TRANSACTIONS
from weir.gateway.pulsar.session import Session
from weir.model.errors import NotAllowedError, NotAuthenticatedError, WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Timer
from weir.wire.pulsar import fast_frames
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import PROTOCOL_VERSION
from weir.wire.pulsar.proto import Message

log = logging.getLogger(__name__)

SERVER_VERSION = "Weir"
#: What clients understand as "give me what you would send in a new connect".
_REFRESH = b"PulsarAuthRefresh"
#: A name and a password with a colon between them, as Pulsar's clients say it.
_BASIC = "basic"


class Credentials:
    """The identity of one session. Nobody until the first `prove`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._identity: Identity | None = None
        self._timer: Timer | None = None

    @property
    def role(self) -> str:
        return "" if self._identity is None else self._identity.role

    async def prove(self, method: str, data: bytes) -> None:
        """Take credentials, the first ones or newer ones of the same role; NotAuthenticatedError."""
        session = self._session
        known_as, credentials = method, data
        if method == _BASIC:
            known_as, credentials = "password", data.replace(b":", b"\0", 1)
        identity = await session.broker.authenticate(known_as, credentials, certificate=session.certificate)
        if self._identity is not None and identity.role != self._identity.role:
            raise NotAuthenticatedError("a connection's role does not change; make a new one")
        self._identity = identity
        self.forget()
        if identity.expires_ms is not None:
            self._watch(method, identity.expires_ms)

    def forget(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, method: str, expires_ms: int) -> None:
        left_s = max(0.0, (expires_ms - self._session.clock.wall_ms()) / 1000)
        if not self._session.features.supports_auth_refresh:
            self._timer = self._session.clock.call_later(left_s, self._expire)
            return
        ask_in_s = max(left_s / 2, left_s - self._session.limits.refresh_ahead_s)
        self._timer = self._session.clock.call_later(ask_in_s, lambda: self.ask(method, left_s - ask_in_s))

    def ask(self, method: str, left_s: float) -> None:
        """Let the client prove itself anew, within so much time."""
        self.forget()
        self._session.answer(
            api.CommandAuthChallenge(
                server_version=SERVER_VERSION,
                challenge=api.AuthData(auth_method_name=method, auth_data=_REFRESH),
                protocol_version=PROTOCOL_VERSION,
            )
        )
        self._timer = self._session.clock.call_later(left_s, self._expire)

    def _expire(self) -> None:
        log.info("connection of %s ends with its credentials", self._session.peer)
        self._session.end(NotAuthenticatedError("the credentials have expired"))


@at_once(api.CommandPing)
def ping(_session: Session, _command: api.CommandPing) -> bytes:
    return fast_frames.PONG


@at_once(api.CommandPong)
def pong(_session: Session, _command: api.CommandPong) -> None:
    """Having been heard is enough."""


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


#: What this broker understands beyond the protocol's version.
FEATURES = api.FeatureFlags(
    supports_auth_refresh=True,
    supports_broker_entry_metadata=True,
    supports_partial_producer=True,
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
)
#: Of what a client calls itself; it is kept with each of its producers and consumers.
_MAX_VERSION_CHARS = 128
#: What clients older than method names call the methods.
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
            # Else a proxy with more rights than its client would lend them to it.
            raise NotAllowedError("connecting for somebody else, as proxies do, is not enabled")
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
