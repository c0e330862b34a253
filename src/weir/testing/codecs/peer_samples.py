"""Samples of what brokers say to each other, and of proofs."""

from random import Random

from weir.model.cluster import BrokerLoad, BundleLoad, BundleName
from weir.model.errors import NotOwnerError, TopicNotFoundError
from weir.model.topics import NamespaceName, TopicName
from weir.testing.codecs.fuzzing import Codec, reseal_rest
from weir.wire.node.frames import PREFIX_BYTES
from weir.wire.node.proof import NONCE_BYTES, ClusterSecret, ProvingClient, ProvingServer
from weir.wire.peer import protocol
from weir.wire.peer.call_table import (
    CALLS,
    call_named,
    call_of,
    decode_answer_value,
    decode_request_value,
    encode_answer_value,
)
from weir.wire.peer.calls import (
    AdminAnswer,
    AdminCall,
    CheckUnused,
    Done,
    ErasePart,
    GetReady,
    HandOver,
    Ping,
    ReportLoad,
    SplitBundle,
    TakeTopic,
)
from weir.wire.peer.protocol import PeerRequest, decode_failure, encode_failure, encode_value

_SECRET = ClusterSecret(b"a secret of thirty-two bytes, 32")


def _bundle(dice: Random) -> BundleName:
    return BundleName(NamespaceName("a", "b"), dice.getrandbits(31), 2**32 - 1)


def _request_value(dice: Random) -> PeerRequest[object]:
    topics = tuple(TopicName.parse(f"t-{n}-partition-{n}") for n in range(dice.randrange(3)))
    values: tuple[PeerRequest[object], ...] = (
        Ping(),  # type: ignore[assignment]
        ReportLoad(),
        GetReady(_bundle(dice), topics, topics[:1], 9),
        HandOver(_bundle(dice), "b2"),
        SplitBundle(_bundle(dice)),
        CheckUnused(TopicName.parse("t")),
        ErasePart(TopicName.parse("t-partition-3")),
        TakeTopic(TopicName.parse("t"), 7, dice.randbytes(9), dice.getrandbits(40), b"ab", True, (1, 2, 3)),
        AdminCall("rôle", "POST", "/admin/v2/x", "a=b", dice.randbytes(9), {"accept": "*/*"}),
    )
    return dice.choice(values)


def sample_request(dice: Random) -> bytes:
    """A request frame's body."""
    value = _request_value(dice)
    number = dice.randrange(1, 2**64)
    frame = protocol.encode_request(number, call_of(value).number, dice.getrandbits(32), encode_value(value))
    return frame[PREFIX_BYTES:]


def decode_request(body: bytes) -> PeerRequest[object]:
    """As a session does it; a call that nobody knows is not the decoder's to refuse."""
    sent = protocol.decode_request(body)
    known = {call.number for call in CALLS}
    return decode_request_value(call_named(sent.call if sent.call in known else 1), sent.value)


def sample_answer(dice: Random) -> bytes:
    """The value of an answer behind the number of its call."""
    load = BrokerLoad("b1", (BundleLoad("a/b/0x00000000_0x40000000", 1.5, 2.0, topics=3),), 0.5, bundle_count=1)
    number, value = dice.choice(
        ((1, Done()), (2, load), (16, Done()), (64, AdminAnswer(dice.randrange(200, 600), dice.randbytes(5))))
    )
    return bytes([number]) + encode_answer_value(call_named(number), value)


def decode_answer(data: bytes) -> object:
    known = {call.number for call in CALLS}
    number = data[0] if data and data[0] in known else 2
    return decode_answer_value(call_named(number), data[1:])


def sample_response(dice: Random) -> bytes:
    """The body of a failure's frame, or of an answer's."""
    failure = dice.choice(
        (TopicNotFoundError("no x", hint="ä"), NotOwnerError("there", listeners={"kafka": "h:1"}), KeyError(1))
    )
    make = dice.choice(
        (
            protocol.encode_failed(dice.getrandbits(64), encode_failure(failure)),
            protocol.encode_answer(dice.getrandbits(64), encode_value(Done())),
        )
    )
    return make[PREFIX_BYTES:]


def decode_response(body: bytes) -> object:
    response = protocol.decode_response(body)
    return decode_failure(response.value) if isinstance(response, protocol.Failed) else response


def _name(dice: Random) -> str:
    return dice.choice(("b1", "brøker", "x" * 200))


def sample_hello(dice: Random) -> bytes:
    said = protocol.Hello(_name(dice), _name(dice), 1, dice.randrange(1, 2**16), dice.getrandbits(32))
    return protocol.encode_hello(said)[PREFIX_BYTES:]


def sample_welcome(dice: Random) -> bytes:
    said = protocol.Welcome(_name(dice), dice.getrandbits(16), dice.getrandbits(32), 1 << 20)
    return protocol.encode_welcome(said)[PREFIX_BYTES:]


def sample_proof(dice: Random) -> bytes:
    client = ProvingClient(_SECRET, "peer", dice.choice(("", "b1")), dice.randbytes(NONCE_BYTES))
    return client.begin()[PREFIX_BYTES:]


def decode_proof(body: bytes) -> object:
    """The first frame of a proof, as the server side takes it; it means any node, or the one that it is."""
    name = body[4 + 39 :].decode(errors="replace")
    return ProvingServer(_SECRET, "peer", name, bytes(NONCE_BYTES)).receive(body)


PEER_CODECS: list[Codec] = [
    Codec("peer request", sample_request, decode_request, reseal_rest),
    Codec("peer answer", sample_answer, decode_answer),
    Codec("peer response", sample_response, decode_response, reseal_rest),
    Codec("peer hello", sample_hello, protocol.decode_hello, reseal_rest),
    Codec("peer welcome", sample_welcome, protocol.decode_welcome, reseal_rest),
    Codec("proof", sample_proof, decode_proof, reseal_rest),
]
