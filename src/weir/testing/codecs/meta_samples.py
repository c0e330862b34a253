"""Samples of the metadata protocol, for the fuzz tests."""

from random import Random

from weir.model.errors import MetaError
from weir.testing.codecs.fuzzing import Codec, reseal_rest
from weir.testing.codecs.samples import sample_id
from weir.wire import meta as hello
from weir.wire import meta as requests
from weir.wire import meta as responses
from weir.wire.meta import CODES
from weir.wire.node.frames import PREFIX_BYTES, Failed


def _key(dice: Random) -> str:
    return dice.choice(("", "/a", "/日本/ä", "/" + "x" * 300))


def sample_request(dice: Random) -> bytes:
    number, expect = dice.getrandbits(64), dice.choice((None, 0, sample_id(dice)))
    request: requests.Request = dice.choice(
        (
            requests.Get(number, _key(dice)),
            requests.Put(number, _key(dice), dice.randbytes(dice.randrange(40)), expect, dice.getrandbits(64)),
            requests.Delete(number, _key(dice), expect),
            requests.List(number, _key(dice)),
            requests.Watch(number, _key(dice), sample_id(dice), dice.getrandbits(32)),
            requests.Grant(number, dice.getrandbits(32)),
            requests.Renew(number, dice.getrandbits(64)),
            requests.Revoke(number, dice.getrandbits(64)),
        )
    )
    return requests.encode_request(request)[PREFIX_BYTES:]


def _items(dice: Random, *, deleted: bool) -> list[responses.Item]:
    def value() -> bytes | None:
        return None if deleted and dice.randrange(2) else dice.randbytes(dice.randrange(20))

    return [responses.Item(_key(dice), value(), sample_id(dice)) for _ in range(dice.randrange(4))]


def sample_response(dice: Random) -> bytes:
    number, version = dice.getrandbits(64), sample_id(dice)
    items, changes = _items(dice, deleted=False), _items(dice, deleted=True)
    return dice.choice(
        (
            responses.encode_items(number, version, items, more=bool(dice.randrange(2))),
            responses.encode_done(number, version),
            responses.encode_changes(number, version, changes),
            responses.encode_forgotten(number),
            responses.encode_leased(number, dice.getrandbits(64), alive=bool(dice.randrange(2))),
            responses.encode_failed(CODES.failed(number, MetaError("it failed", hint="do this – or that"))),
        )
    )[PREFIX_BYTES:]


def _decode_response(data: bytes) -> object:
    response = responses.decode_response(data)
    return CODES.error(response) if isinstance(response, Failed) else response


def sample_hello(dice: Random) -> bytes:
    return hello.encode_hello(hello.Hello(1, dice.randrange(1, 2**16)))[PREFIX_BYTES:]


def sample_welcome(dice: Random) -> bytes:
    welcome = hello.Welcome(dice.getrandbits(64))
    return hello.encode_welcome(welcome)[PREFIX_BYTES:]


META_CODECS = [
    Codec("metadata hello", sample_hello, hello.decode_hello, reseal_rest),
    Codec("metadata welcome", sample_welcome, hello.decode_welcome, reseal_rest),
    Codec("metadata request", sample_request, requests.decode_request, reseal_rest),
    Codec("metadata response", sample_response, _decode_response, reseal_rest),
]
