"""How both ends of a link between nodes prove that they know the cluster's secret, before anything else is read.

    client: magic | version u8 | nonce of 32 | bytes of the name u16 | name of the node that is meant
    server: nonce of 32
    client: HMAC-SHA256(secret, "client" and all that was said)
    server: HMAC-SHA256(secret, "server" and all that was said)

each in a frame with a checksum, as in `wire.bookie_layout`. The secret never crosses, a proof counts for one
connection alone (the nonces are in it), for one kind of link (the purpose is in it), for one node (its name is in
it) and for one side. The client proves first: a stranger learns no more than a random number.
"""

import hmac
from hashlib import sha256
from struct import Struct

from weir.model.errors import ConfigError, NotAuthenticatedError, WireError
from weir.model.ids import Buffer
from weir.wire.node.frames import as_text, fields_before_rest, fixed_fields, frame

NONCE_BYTES = 32
#: A shorter secret can be guessed by whoever sees one proof.
MIN_SECRET_BYTES = 32
#: No frame of a proof is longer.
MAX_PROOF_BYTES = 1024

_VERSION = 1
_MAGIC = b"WPRF"
_BEGIN = Struct(f"<4sB{NONCE_BYTES}sH")  # magic, version, nonce, bytes of the name; then the name
_NONCE = Struct(f"<{NONCE_BYTES}s")
_PROOF = Struct("<32s")
_HINT = "all nodes need the same cluster.secret"


class ClusterSecret:
    """What all nodes of a cluster know and nobody else; it shows itself to nobody."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"the cluster's secret has {len(key)} bytes, fewer than {MIN_SECRET_BYTES}",
                hint="make one: openssl rand -base64 48",
            )
        self._key = key

    def __repr__(self) -> str:
        return "ClusterSecret(...)"

    def proof(self, side: str, said: bytes) -> bytes:
        """What only somebody with the secret can say."""
        return hmac.digest(self._key, _sized(side.encode()) + said, sha256)


def begins_with_proof(body: Buffer) -> bool:
    """Whether a connection's first frame begins a proof: to tell somebody who has no secret what is the matter."""
    return bytes(memoryview(body)[4:8]) == _MAGIC


class ProvingClient:
    """The side that connects: `begin`, then `receive` until `known`."""

    def __init__(self, secret: ClusterSecret, purpose: str, meant: str, nonce: bytes) -> None:
        """`purpose`: the kind of link; `meant`: the node that should answer, empty for any."""
        self._secret = secret
        self._said = _opening(purpose, meant, nonce)
        self._begin = frame(_BEGIN.pack(_MAGIC, _VERSION, nonce, len(meant.encode())) + meant.encode())
        #: Whether the other side has asked for the proof: who lets go of us from then on does not believe it.
        self.challenged = False
        #: Whether the other side has proved that it knows the secret.
        self.known = False

    def begin(self) -> bytes:
        return self._begin

    def receive(self, body: Buffer) -> bytes | None:
        """What to say next, if anything; WireError or NotAuthenticatedError end the connection."""
        if not self.challenged:
            self.challenged = True
            self._said += fixed_fields(body, _NONCE)[0]
            return frame(self._secret.proof("client", self._said))
        if not hmac.compare_digest(fixed_fields(body, _PROOF)[0], self._secret.proof("server", self._said)):
            raise NotAuthenticatedError("the other side does not know the cluster's secret", hint=_HINT)
        self.known = True
        return None


class ProvingServer:
    """The side that was connected to: `receive` until `known`."""

    def __init__(self, secret: ClusterSecret, purpose: str, name: str, nonce: bytes) -> None:
        self._secret = secret
        self._purpose = purpose
        self._name = name
        self._nonce = nonce
        self._said = b""
        #: Whether the other side has proved that it knows the secret.
        self.known = False

    def receive(self, body: Buffer) -> bytes:
        """What to say next; WireError or NotAuthenticatedError end the connection, without a word."""
        if not self._said:
            self._said = self._opened(body) + self._nonce
            return frame(self._nonce)
        if not hmac.compare_digest(fixed_fields(body, _PROOF)[0], self._secret.proof("client", self._said)):
            raise NotAuthenticatedError("it does not know the cluster's secret", hint=_HINT)
        self.known = True
        return frame(self._secret.proof("server", self._said))

    def _opened(self, body: Buffer) -> bytes:
        (magic, version, nonce, length), rest = fields_before_rest(body, _BEGIN)
        if magic != _MAGIC or version != _VERSION or len(rest) != length:
            raise WireError("it does not begin with a proof", hint=_HINT)
        meant = as_text(rest)
        if meant not in ("", self._name):
            raise NotAuthenticatedError(f"it means {meant[:80]!r}, and this is {self._name!r}")
        return _opening(self._purpose, meant, nonce)


def _opening(purpose: str, meant: str, nonce: bytes) -> bytes:
    return _sized(purpose.encode()) + _sized(meant.encode()) + nonce


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(2, "little") + text
