"""`weir token`: keys and tokens, and a Weir that asks for them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from weir.broker.security.tokens import create_token
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


def test_a_token_says_who_one_is(weir: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.key"
    secret.write_text(weir("token", "secret").out)
    token = weir("token", "create", "alice", "--secret", f"file:{secret}", "--expires", "1h").out.strip()
    shown = json.loads(weir("token", "show", token).out)
    assert shown["claims"]["sub"] == "alice"
    up = UpProcess(tmp_path, "auth.authenticate=true", f"auth.token_secret=file:{secret}")
    try:
        up.start()
        refused = weir("produce", "t", "x", url=up.pulsar_url)
        assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
        assert "--token" in refused.err
        assert weir("produce", "t", "x", "--token", token, url=up.pulsar_url).code == 0
        forged = weir("token", "create", "alice", "--secret", weir("token", "secret").out.strip()).out.strip()
        assert weir("produce", "t", "x", "--token", forged, url=up.pulsar_url).code == 1
    finally:
        up.close()


def test_a_secret_of_an_earlier_release_keeps_its_tokens_and_signs_new_ones_for_both_forms(
    weir: Any, tmp_path: Path
) -> None:
    """An earlier `weir token secret` printed URL-safe base64, whose text was the key, line end included."""
    text = base64.urlsafe_b64encode(b"\xfb\xff\xbe" * 20).decode()
    secret = tmp_path / "secret.key"
    secret.write_text(text + "\n")
    former = create_token((text + "\n").encode(), "alice")
    new = [
        weir("token", "create", "alice", "--secret", form).out.strip()
        for form in (f"file:{secret}", f"base64:{text}")
    ]
    for source, tokens in ((f"file:{secret}", [former, *new]), (f"base64:{text}", new)):
        folder = tmp_path / source.partition(":")[0]
        folder.mkdir()
        up = UpProcess(folder, "auth.authenticate=true", f"auth.token_secret={source}")
        try:
            up.start()
            for token in tokens:
                assert weir("produce", "t", "x", "--token", token, url=up.pulsar_url).code == 0
            assert ("earlier releases used the text of this secret as the key" in up.log) == source.startswith(
                "file:"
            )
        finally:
            up.close()


def test_a_pair_of_keys_signs_and_is_never_overwritten(weir: Any, tmp_path: Path) -> None:
    name = str(tmp_path / "signer")
    assert weir("token", "keys", "--out", name).out.splitlines() == [f"{name}.key", f"{name}.pub"]
    assert Path(f"{name}.key").stat().st_mode & 0o077 == 0
    assert weir("token", "create", "bob", "--private-key", f"file:{name}.key").code == 0
    again = weir("token", "keys", "--out", name)
    assert (again.code, again.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "arguments", [["create", "alice"], ["create", "alice", "--secret", "short"], ["show", "nonsense"]]
)
def test_what_makes_no_token_is_refused_in_one_line(arguments: list[str], weir: Any) -> None:
    done = weir("token", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
