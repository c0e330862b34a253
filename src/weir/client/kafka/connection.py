"""One blocking connection to a broker: TLS, who we are, and requests whose answers come in their order.

Spark's tasks are plain blocking code in processes of their own, where no event loop runs and no simulation looks,
and large answers are received straight into the memory that is decoded (docs/adr/0016).

What a broker's error code means here: an error of the one tree, and whether it may go away by itself.
"""

import select
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import TypeVar, cast

from weir.client.access import unanswered
from weir.client.kafka.settings import Address, KafkaSettings
from weir.model import errors
from weir.model.errors import (
    ConnectFailedError,
    ConnectionLostError,
    FrameTooLargeError,
    NotAuthenticatedError,
    TlsFailedError,
    UnknownVersionError,
    WireError,
)
from weir.model.ids import Buffer
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.frames import RequestHeader, decode_response_header, request_frame

#: The codes of the protocol that this client may meet. All others are a BrokerError that shows the number.
_BY_CODE: dict[int, tuple[type[errors.WeirError], str]] = {
    1: (errors.OffsetTrimmedError, "the offset is not in the topic"),
    2: (errors.ChecksumError, "the broker says that the records are damaged"),
    3: (errors.TopicNotFoundError, "there is no such topic or partition"),
    5: (errors.NotOwnerError, "the partition has no leader for now"),
    6: (errors.NotOwnerError, "another broker leads the partition"),
    7: (errors.NetworkError, "the broker could not do it in time"),
    10: (errors.MessageTooLargeError, "the records are larger than the broker allows"),
    13: (errors.NetworkError, "the broker lost a connection"),
    14: (errors.NotOwnerError, "the coordinator is loading its state"),
    15: (errors.NotOwnerError, "there is no coordinator for now"),
    16: (errors.NotOwnerError, "another broker is the coordinator"),
    17: (errors.InvalidNameError, "the topic's name is not allowed"),
    22: (errors.IllegalGenerationError, "the group has consumers of its own"),
    25: (errors.UnknownMemberError, "the group has consumers of its own"),
    29: (errors.NotAuthorisedError, "this role may not use the topic"),
    30: (errors.NotAuthorisedError, "this role may not use the group"),
    31: (errors.NotAuthorisedError, "this role may not do that"),
    35: (errors.UnknownVersionError, "the broker does not speak this version"),
    45: (errors.OutOfOrderSequenceError, "a batch does not follow the producer's last one"),
    47: (errors.StaleEpochError, "a newer producer has taken over"),
    48: (errors.TransactionStateError, "the transaction is not in a state for this"),
    49: (errors.StaleEpochError, "the producer id is another one's"),
    51: (errors.TransactionBusyError, "the last transaction is still being ended"),
    53: (errors.NotAuthorisedError, "this role may not use the transactional id"),
    56: (errors.NetworkError, "the broker's storage did not answer"),
    58: (errors.NotAuthenticatedError, "the broker does not take the credentials"),
    59: (errors.UnknownProducerError, "the broker does not know the producer"),
    74: (errors.NotOwnerError, "another broker leads the partition"),
    75: (errors.NotOwnerError, "another broker leads the partition"),
    87: (errors.InvalidRecordError, "the broker refuses the records"),
    88: (errors.UnstablePositionError, "a transaction that moves the position is open"),
    89: (errors.ProducersHeldError, "the broker asks to wait"),
    90: (errors.StaleEpochError, "a newer producer has taken over"),
    100: (errors.TopicNotFoundError, "the topic was deleted, or deleted and created again"),
    120: (errors.NotInTransactionError, "the partition is not part of the transaction"),
}

#: What is worth another try.
RETRIABLE = (
    errors.NetworkError,
    errors.NotOwnerError,
    errors.TransactionBusyError,
    errors.UnstablePositionError,
    errors.ProducersHeldError,
)


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise the error that the code stands for, if it is one."""
    if code != 0:
        raise error_of(code, about, message)


def error_of(code: int, about: str, message: str | None = None) -> errors.WeirError:
    kind, text = _BY_CODE.get(code, (errors.BrokerError, f"the broker refused with code {code}"))
    hint = "give a token" if kind is errors.NotAuthenticatedError else None
    return kind(f"{about}: {message or text}", hint=hint)


R = TypeVar("R", bound=m.Message)

_SIZE = Struct(">i")
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
#: The newest versions that are used: later ones name topics by id, or change how transactions are begun.
_NEWEST = {
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.LIST_GROUPS: 4,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.LIST_TRANSACTIONS: 1,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.API_VERSIONS: 0,
}
#: With transactions version 2 (KIP-890): producing and moving positions join, and each end begins an epoch.
_NEWEST_2 = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}
#: A fetch that names topics by their ids: it never reads another topic that has taken the name.
_FETCH_BY_ID = 13
_IOV = 512


class KafkaConnection:
    """Opened by making one. Not shared between threads."""

    def __init__(self, address: Address, settings: KafkaSettings) -> None:
        self.address = address
        self._settings = settings
        self._versions: dict[int, int] = {ApiKey.API_VERSIONS: 0}
        #: Whether fetches may name topics by their ids.
        self.fetches_by_id = False
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._last_id = 0
        #: Whether the other end closed it, broke it, or did not answer in time; and if so, whether it was that.
        self.broken = self._silent = False
        self._socket = self._connect()
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    @property
    def pending(self) -> int:
        """How many answers have not been received yet."""
        return len(self._waiting)

    def ask(self, request: m.Message, answer: type[R]) -> R:
        """Send a request and wait for its answer; nothing else may be pending."""
        self.send(request)
        return self.receive(answer)

    def send(self, request: m.Message) -> None:
        """Send a request; its answer is received in turn."""
        key = _KEYS[type(request)]
        version = self._versions.get(key)
        if isinstance(request, m.FetchRequest) and any(any(topic.topic_id) for topic in request.topics):
            version = _FETCH_BY_ID if self.fetches_by_id else None
        if version is None:
            raise UnknownVersionError(f"{self.address} does not serve {key.name}")
        self._last_id += 1
        header = RequestHeader(key, version, self._last_id, self._settings.client_id)
        self._write(request_frame(header, request))
        self._waiting.append((key, version, self._last_id))

    def receive(self, answer: type[R]) -> R:
        """The answer to the oldest request that has none; its records are slices of one fresh buffer."""
        if not self._waiting:  # it was asked on a connection that this one replaces
            raise ConnectionLostError(f"{self.address} was not asked")
        key, version, correlation = self._waiting.popleft()
        header, body = decode_response_header(key, version, self._read_frame())
        if header.correlation_id != correlation:
            raise WireError(f"{self.address} answered request {header.correlation_id} instead of {correlation}")
        found = codec.decode_response(key, version, body)
        if not isinstance(found, answer):
            raise WireError(f"{self.address}: an answer to {ApiKey(key).name} was taken for another")
        return found

    def is_quiet(self) -> bool:
        """Whether it is open, and nothing comes: what comes unasked is its end."""
        if self.broken or self._waiting or self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """From another thread: whoever waits for an answer is told that the connection is gone."""
        with suppress(OSError):
            # Not TLS's own, which changes what the other thread is using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    # --- the beginning ---

    def _connect(self) -> socket.socket:
        address, settings = self.address, self._settings
        try:
            raw = socket.create_connection((address.host, address.port), settings.connect_timeout_s)
        except OSError as failure:
            raise ConnectFailedError(f"cannot connect to {address}: {failure}") from None
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.tls is not None:
            context = settings.tls.context()
            try:
                raw = context.wrap_socket(raw, server_hostname=address.host)
            except OSError as failure:  # an SSLError is one, too
                raw.close()
                raise _no_tls(address, failure) from None
        raw.settimeout(settings.request_timeout_s)
        return raw

    def _greet(self) -> None:
        try:
            served = self.ask(m.ApiVersionsRequest(), m.ApiVersionsResponse)
        except ConnectionLostError as lost:
            if self._settings.tls is None or self._silent:
                raise
            raise unanswered(lost) from None
        check(served.error_code, str(self.address))
        newest = _NEWEST | (_NEWEST_2 if self._settings.joining_by_use else {})
        for api in served.api_keys:
            if api.api_key in newest and api.api_key in API:
                ours = API[ApiKey(api.api_key)].versions
                best = min(newest[ApiKey(api.api_key)], api.max_version, ours[1])
                if best >= max(api.min_version, ours[0]):
                    self._versions[api.api_key] = best
            if api.api_key == ApiKey.FETCH:
                self.fetches_by_id = api.max_version >= _FETCH_BY_ID
        if self._settings.login is not None:
            self._log_in(self._settings.login.user, self._settings.login.password)

    def _log_in(self, user: str, password: str) -> None:
        shaken = self.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), m.SaslHandshakeResponse)
        if shaken.error_code:
            raise NotAuthenticatedError(
                f"{self.address} does not take PLAIN, only {', '.join(shaken.mechanisms)}",
                hint="see its listeners",
            )
        proof = f"\0{user}\0{password}".encode()
        done = self.ask(m.SaslAuthenticateRequest(auth_bytes=proof), m.SaslAuthenticateResponse)
        check(done.error_code, str(self.address), done.error_message)

    # --- bytes ---

    def _write(self, buffers: Sequence[Buffer]) -> None:
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.sendall(b"".join(buffers))
            else:
                self._write_vectored([memoryview(buffer) for buffer in buffers])
        except OSError as failure:
            raise self._lost(failure) from None

    def _write_vectored(self, views: list[memoryview]) -> None:
        """Without joining: what is produced may be many megabytes."""
        at = 0
        while at < len(views):
            sent = self._socket.sendmsg(views[at : at + _IOV])
            while at < len(views) and sent >= len(views[at]):
                sent -= len(views[at])
                at += 1
            if sent:
                views[at] = views[at][sent:]

    def _read_frame(self) -> memoryview:
        size: int = _SIZE.unpack(self._read(_SIZE.size))[0]
        if not 0 <= size <= _MAX_ANSWER_BYTES:
            raise FrameTooLargeError(f"{self.address} announces an answer of {size} bytes", hint="is this Kafka?")
        return self._read(size)

    def _read(self, size: int) -> memoryview:
        into = memoryview(bytearray(size))
        at = 0
        try:
            while at < size:
                got = self._socket.recv_into(into[at:])
                if not got:
                    self.broken = True
                    raise ConnectionLostError(f"{self.address} closed the connection")
                at += got
        except OSError as failure:
            raise self._lost(failure) from None
        return into

    def _lost(self, failure: OSError) -> ConnectionLostError:
        self.broken = True
        self._silent = isinstance(failure, TimeoutError)
        why = "it did not answer in time" if self._silent else str(failure)
        return ConnectionLostError(f"the connection to {self.address} is gone: {why}")


def _no_tls(address: Address, failure: OSError) -> ConnectFailedError:
    """A handshake that failed, or that the other end left: whoever was there may have gone just then."""
    left = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    final = isinstance(failure, ssl.SSLError) and not isinstance(failure, left)
    return (TlsFailedError if final else ConnectFailedError)(f"no TLS with {address}: {failure}")


_KEYS = {cast(type, api.request): key for key, api in API.items()}
