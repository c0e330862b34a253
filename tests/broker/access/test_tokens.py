"""Tokens: which are believed, and which keys may verify which."""

import base64
import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from weir.broker.security.tokens import (
    Speaker,
    TokenRules,
    TokenVerifier,
    create_key_pair,
    create_secret,
    create_token,
    load_private_key,
    load_public_key,
    load_secret,
    read_key,
)
from weir.model.errors import ConfigError, NotAuthenticatedError
from weir.runtime.real import real_runtime

NOW_MS = 1_700_000_000_000
SECRET = bytes(range(64))
RSA_PEM = create_key_pair("RSA")
EC_PEM = create_key_pair("EC")


def der(pem: bytes) -> bytes:
    return load_public_key(pem).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@pytest.mark.parametrize(
    ("signing", "verifying", "algorithms"),
    [
        (SECRET, SECRET, ["HS256", "HS384", "HS512"]),
        (load_private_key(RSA_PEM[0]), load_public_key(RSA_PEM[1]), ["RS256", "RS384", "RS512", "PS256"]),
        (load_private_key(EC_PEM[0]), load_public_key(EC_PEM[1]), ["ES256"]),
    ],
    ids=["HMAC", "RSA", "EC"],
)
def test_a_token_made_with_a_key_is_believed_by_its_counterpart(
    signing: object, verifying: object, algorithms: list[str]
) -> None:
    for algorithm in [None, *algorithms]:
        token = create_token(signing, "ann", algorithm=algorithm)  # type: ignore[arg-type]
        assert TokenVerifier(verifying).verify(token, now_ms=NOW_MS) == Speaker("ann", None)  # type: ignore[arg-type]
        assert TokenVerifier(verifying).verify(token.encode() + b"\n", now_ms=NOW_MS).role == "ann"  # type: ignore[arg-type]


def _raw(header: dict[str, object], claims: dict[str, object], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _hmac_with_public_key() -> str:
    """The classic confusion: the public key, which everybody has, as an HMAC secret."""
    import hashlib
    import hmac

    unsigned = _raw({"alg": "HS256", "typ": "JWT"}, {"sub": "root"}).rpartition(".")[0]
    signature = hmac.new(RSA_PEM[1], unsigned.encode(), hashlib.sha256).digest()
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _tampered(token: str) -> str:
    """With one bit of its signature the other way round, whatever it was."""
    unsigned, _, text = token.rpartition(".")
    signature = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    signature[-1] ^= 1
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b.c",
        "....",
        b"\xff\xfe\x00",
        _raw({"alg": "none"}, {"sub": "root"}),
        _raw({"alg": "None"}, {"sub": "root"}),
        _raw({}, {"sub": "root"}),
        _hmac_with_public_key(),
        create_token(SECRET, "root"),
        create_token(load_private_key(EC_PEM[0]), "root"),
        _tampered(create_token(load_private_key(RSA_PEM[0]), "root")),
        create_token(load_private_key(create_key_pair("RSA")[0]), "root"),
        "x" * 70_000,
    ],
    ids=[
        *("empty", "not-base64", "dots", "no-text", "alg-none", "alg-None", "no-alg", "public-key-as-secret"),
        *("hmac", "ec", "tampered", "other-key", "too-long"),
    ],
)
def test_a_token_that_the_key_did_not_sign_is_refused(token: str | bytes) -> None:
    with pytest.raises(NotAuthenticatedError):
        TokenVerifier(load_public_key(RSA_PEM[1])).verify(token, now_ms=NOW_MS)


def test_a_token_holds_between_its_moments() -> None:
    verifier = TokenVerifier(SECRET)
    token = jwt.encode({"sub": "ann", "nbf": 1000, "exp": 2000.5}, SECRET, algorithm="HS256")
    assert verifier.verify(token, now_ms=1_000_000) == Speaker("ann", 2_000_500)
    assert verifier.verify(token, now_ms=2_000_499).role == "ann"
    for moment in (999_999, 2_000_500):
        with pytest.raises(NotAuthenticatedError):
            verifier.verify(token, now_ms=moment)
    lenient = TokenVerifier(SECRET, TokenRules(leeway_s=5))
    assert lenient.verify(token, now_ms=2_004_000) == Speaker("ann", 2_005_500)
    with pytest.raises(NotAuthenticatedError):
        lenient.verify(token, now_ms=2_005_500)


@pytest.mark.parametrize("moment", ["tomorrow", True, float("inf"), 1e300, [1], {}])
def test_a_moment_that_is_none_never_means_for_ever(moment: object) -> None:
    token = _signed({"sub": "ann", "exp": moment})
    with pytest.raises(NotAuthenticatedError):
        TokenVerifier(SECRET).verify(token, now_ms=NOW_MS)


def _signed(claims: dict[str, object]) -> str:
    return jwt.api_jws.encode(json.dumps(claims).encode(), SECRET, algorithm="HS256")


@pytest.mark.parametrize("claims", [{}, {"sub": 7}, {"sub": ""}, {"sub": None}, {"sub": "a\nb"}, {"sub": ["x"]}])
def test_a_token_without_a_proper_subject_is_refused(claims: dict[str, object]) -> None:
    with pytest.raises(NotAuthenticatedError):
        TokenVerifier(SECRET).verify(_signed(claims), now_ms=NOW_MS)


def test_the_subject_and_the_audience_can_be_other_claims() -> None:
    verifier = TokenVerifier(SECRET, TokenRules(subject_claim="role", audience="weir", audience_claim="for"))
    for meant in ("weir", ["x", "weir"]):
        assert verifier.verify(_signed({"role": "ann", "for": meant}), now_ms=NOW_MS).role == "ann"
    for meant in ("other", ["x"], None, 7):
        with pytest.raises(NotAuthenticatedError):
            verifier.verify(_signed({"role": "ann", "for": meant}), now_ms=NOW_MS)
    # Without a wanted audience any will do, as in Pulsar.
    assert TokenVerifier(SECRET).verify(_signed({"sub": "ann", "aud": "x"}), now_ms=NOW_MS).role == "ann"


# --- keys -----------------------------------------------------------------------------------------------------


async def test_a_key_is_read_from_a_file_from_data_or_from_text(tmp_path: Path) -> None:
    disk = real_runtime().disk
    path = tmp_path / "secret.key"
    path.write_bytes(SECRET)
    encoded = base64.b64encode(SECRET).decode()
    for source in (f"file://{path}", str(path), f"file:{path}", f"data:;base64,{encoded}", encoded):
        assert load_secret(await read_key(source, disk)).key == SECRET
    path.write_text(encoded + "\n")
    assert load_secret(await read_key(f"file://{path}", disk)).key == SECRET
    assert await read_key(RSA_PEM[1].decode(), disk) == RSA_PEM[1]
    for wrong in (f"file://{tmp_path}/missing", "no key at all!", "data:;base64,***"):
        with pytest.raises(ConfigError):
            await read_key(wrong, disk)
    path.write_bytes(b"")
    with pytest.raises(ConfigError):
        await read_key(str(path), disk)


async def test_a_secret_that_begins_with_a_slash_is_a_secret(tmp_path: Path) -> None:
    disk = real_runtime().disk
    secret = b"\xff" + SECRET[1:]
    encoded = base64.b64encode(secret).decode()
    assert encoded.startswith("/")
    for source in (encoded, f"base64:{encoded}", f"data:;base64,{encoded}"):
        assert load_secret(await read_key(source, disk)).key == secret
    path = tmp_path / "secret"  # a file of that name is a file
    path.write_bytes(SECRET)
    assert load_secret(await read_key(str(path), disk)).key == SECRET


_URL_SAFE = base64.urlsafe_b64encode(b"\xfb\xff\xbe" * 20 + b"\xfb").decode()
_PASSPHRASE = "a horse, a staple, a battery and a correct one"


def former_reading(data: bytes) -> bytes:
    """What releases before 2026-11-19 signed with."""
    try:
        decoded = base64.b64decode(data.decode("ascii").strip(), validate=True)
    except ValueError:
        return data
    return decoded if len(decoded) >= 32 else data


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(SECRET).decode(),
        _URL_SAFE,
        _URL_SAFE.rstrip("="),
        base64.encodebytes(SECRET).decode().rstrip(),
        "secret-text_of-letters-that-may-be-base64-as",
    ],
    ids=["standard", "URL-safe", "no padding", "two lines", "text"],
)
async def test_a_secret_is_the_same_key_in_a_file_and_as_base64_with_any_line_end(
    text: str, tmp_path: Path
) -> None:
    disk = real_runtime().disk
    path = tmp_path / "secret.key"
    keys = {load_secret(await read_key(f"base64:{text}", disk)).key}
    for end in ("", "\n", "\r\n"):
        path.write_bytes((text + end).encode())
        keys.add(load_secret(await read_key(f"file:{path}", disk)).key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(SECRET).decode(),
        _URL_SAFE,
        base64.encodebytes(SECRET).decode().rstrip(),
        _PASSPHRASE,
        "x" * 31,
        "short-but_text" * 3,
        "é" * 16,
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_no_token_becomes_invalid_when_a_line_end_comes_or_goes(text: str, end: str) -> None:
    before = (text + end).encode()
    signing = former_reading(before)
    if len(signing) < 32:
        return  # it was refused, and is: see below
    token = create_token(signing, "ann")
    # The very file; and, where it is long enough without its line end, what an editor made of it.
    for after in [before] + [(text + other).encode() for other in ("", "\n", "\r\n") if len(text.encode()) >= 32]:
        verifier = TokenVerifier(load_secret(after))
        assert verifier.verify(token, now_ms=NOW_MS).role == "ann", after
        new = create_token(load_secret(after).key, "ann")
        assert verifier.verify(new, now_ms=NOW_MS).role == "ann"


@pytest.mark.parametrize(
    "data",
    [
        base64.b64encode(SECRET),
        _URL_SAFE.encode(),
        _PASSPHRASE.encode(),
        b"x" * 32,
        b"x" * 31 + b"\n",
        SECRET,
        b"\0" * 31 + b"\n",
        b"A" * 43,
    ],
)
def test_every_reading_has_all_of_the_secret_and_32_bytes(data: bytes) -> None:
    found = load_secret(data)
    texts = {data.rstrip(b"\r\n") + end for end in (b"", b"\n", b"\r\n")}
    for key in (found.key, *found.former):
        assert len(key) >= 32
        joined = data.translate(bytes.maketrans(b"-_", b"+/")).strip()
        assert key in {data, *texts} or base64.b64encode(key).rstrip(b"=")[:-1] == joined.rstrip(b"=")[:-1]


@pytest.mark.parametrize("data", [b"x" * 31, b"x" * 31 + b"\r", b"A" * 31 + b"\n"])
def test_a_text_of_fewer_than_32_bytes_is_no_secret_in_any_reading(data: bytes) -> None:
    found = load_secret(data)
    assert not found.former
    if len(data) >= 32:
        assert found.key == data  # as it was accepted before: with its line end
    else:
        with pytest.raises(ConfigError, match="fewer than 32"):
            TokenVerifier(found)


def test_what_the_spaces_of_a_passphrase_say_is_part_of_it() -> None:
    words = "correct horse battery staple correct horse battery stapler"
    assert load_secret(words.encode()).key == words.encode()


def test_the_change_of_a_reading_is_known_and_a_new_secret_has_one_reading() -> None:
    assert load_secret(_URL_SAFE.encode() + b"\n").changed
    assert load_secret(_PASSPHRASE.encode() + b"\n").changed
    assert not load_secret(_PASSPHRASE.encode()).changed
    made = create_secret()
    for text in (base64.b64encode(made), base64.urlsafe_b64encode(made)):
        assert text.isalnum()
        found = load_secret(text + b"\n")
        assert (found.key, found.former, found.changed) == (made, (), False)
        assert former_reading(text + b"\n") == made


def test_a_public_key_as_base64_text_is_never_taken_for_a_secret() -> None:
    for pem in (RSA_PEM[1], EC_PEM[1]):
        for text in (base64.b64encode(der(pem)), base64.urlsafe_b64encode(der(pem)), base64.encodebytes(der(pem))):
            with pytest.raises(ConfigError):
                load_secret(text)


@pytest.mark.parametrize(
    "bad", ["/4sMjTkPq9", "/etc/weir/secrets/production/tokens/signing/key", "./+/secret", "no!"]
)
async def test_what_may_be_a_secret_is_never_shown(bad: str) -> None:
    """Neither a short secret, nor a mistyped path, which must not become a secret that others can guess."""
    with pytest.raises(ConfigError) as refused:
        await read_key(bad, real_runtime().disk)
    assert bad not in str(refused.value)


def test_public_keys_come_as_pem_or_der() -> None:
    token = create_token(load_private_key(RSA_PEM[0]), "ann")
    for data in (RSA_PEM[1], der(RSA_PEM[1])):
        assert TokenVerifier(load_public_key(data)).verify(token, now_ms=NOW_MS).role == "ann"


@pytest.mark.parametrize(
    "data", [RSA_PEM[1], der(RSA_PEM[1]), EC_PEM[0], der(EC_PEM[1])], ids=["RSA", "RSA der", "EC", "EC der"]
)
def test_a_public_or_private_key_is_never_taken_for_a_secret(data: bytes) -> None:
    with pytest.raises(ConfigError):
        load_secret(data)


def test_weak_and_unfit_keys_are_refused() -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    unfit = [
        b"short",
        weak.public_key(),
        ec.generate_private_key(ec.SECP256K1()).public_key(),
        ed25519.Ed25519PrivateKey.generate().public_key(),
    ]
    for key in unfit:
        with pytest.raises(ConfigError):
            TokenVerifier(key)
    with pytest.raises(ConfigError):
        create_token(SECRET, "ann", algorithm="RS256")
    with pytest.raises(ConfigError):
        create_key_pair("DSA")
    for load in (load_public_key, load_private_key):
        with pytest.raises(ConfigError):
            load(b"junk")


def test_made_secrets_differ_and_work() -> None:
    one, other = create_secret(), create_secret()
    assert one != other
    token = create_token(one, "ann", expires_ms=NOW_MS + 5000, audience="weir")
    assert TokenVerifier(one).verify(token, now_ms=NOW_MS) == Speaker("ann", NOW_MS + 5000)
    with pytest.raises(NotAuthenticatedError):
        TokenVerifier(other).verify(token, now_ms=NOW_MS)
