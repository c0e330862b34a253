"""`weir config`: what is set, from where, and what it means."""

import json
import tomllib
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.server.config.tree import KEYS


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS.values():
        monkeypatch.delenv(key.variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_show_lists_every_setting_with_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_LOG_LEVEL", "info")
    assert run("config", "show", "--set", "listeners.http=127.0.0.1:0", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == list(KEYS)
    assert shown["listeners.http"] == {"value": "127.0.0.1:0", "from": "--set"}
    assert shown["log.level"] == {"value": "info", "from": "WEIR_LOG_LEVEL"}
    assert shown["storage.sync"] == {"value": "always", "from": "default"}


def test_show_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "show", "--changed", "--set", "broker.look_ahead=5") == 0
    shown = capsys.readouterr().out
    assert "broker.look_ahead" in shown
    assert "listeners.pulsar" not in shown


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_secrets_are_not_shown(extra: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "show", "--set", "auth.token_secret=hush-hush", *extra) == 0
    assert run("config", "explain", "auth.token_secret", "--set", "auth.token_secret=hush-hush") == 0
    shown = capsys.readouterr().out
    assert "hush-hush" not in shown
    assert "(set)" in shown


def test_explain_tells_what_a_setting_means_and_how_to_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "explain", "storage.cache_bytes") == 0
    shown = capsys.readouterr().out
    for part in (
        KEYS["storage.cache_bytes"].doc,
        "64MiB",
        "WEIR_STORAGE_CACHE_BYTES",
        "--set storage.cache_bytes",
    ):
        assert part in shown


def test_explain_of_a_wrong_key_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "explain", "storage.cache") == 2
    assert "did you mean storage.cache_bytes?" in capsys.readouterr().err


def test_the_sample_file_is_toml_with_every_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("config", "explain") == 0
    lines = capsys.readouterr().out.splitlines()
    file = tmp_path / "weir.toml"
    file.write_text("\n".join(line.removeprefix("# ") if " = " in line else line for line in lines))
    assert set(tomllib.loads(file.read_text())) == {name.partition(".")[0] for name in KEYS}
    assert run("config", "show", "--config", str(file), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {item["from"] for item in shown.values()} == {str(file)}
    assert run("config", "show", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert {name: item["value"] for name, item in shown.items()} == {
        name: item["value"] for name, item in plain.items()
    }
