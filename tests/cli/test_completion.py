"""`weir completion`: scripts for each shell, their installation, and names from the running server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from weir.cli import arguments as completing
from weir.cli.completion import script
from weir.cli.main import cli, main
from weir.cli.remote import http_url


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    found = ShellComplete(cli, {}, "weir", "_WEIR_COMPLETE").get_completions([*words[:-1]], words[-1])
    return [item.value for item in found]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_commands_and_options_are_completed_without_a_server() -> None:
    assert completed("gro") == ["groups"]
    assert completed("groups", "d") == ["describe"]
    assert "--dry-run" in completed("groups", "reset", "--d")
    assert completed("topics", "list", "-o", "") == ["table", "wide", "json", "csv"]


def test_a_server_that_does_not_answer_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_URL", "http://127.0.0.1:1")
    assert completed("topics", "stats", "a") == []
    assert completed("topics", "list", "pub") == []


def test_an_endless_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_admin: Any) -> list[str]:
        raise TimeoutError

    assert completing._asked(click.Context(click.Command("x")), never) == []


@pytest.mark.process
def test_names_come_from_the_running_server(run_here: Any) -> None:
    assert run_here("topics", "create", "completed-whole").code == 0
    assert run_here("topics", "create", "completed-divided", "-p", "2").code == 0
    assert run_here("subscriptions", "create", "completed-whole", "sub").code == 0
    assert completed("topics", "stats", "completed-") == ["completed-divided", "completed-whole"]
    assert completed("consume", "public/default/completed-w") == ["public/default/completed-whole"]
    assert completed("peek", "completed-whole", "") == ["sub"]
    assert completed("topics", "list", "public/d") == ["public/default"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", shell) == 0
    assert capsys.readouterr().out.strip() == script(shell).strip()
    assert f"_WEIR_COMPLETE={shell}_complete" in script(shell)


@pytest.mark.parametrize(
    ("shell", "file", "start"),
    [
        ("bash", ".local/share/weir/completion.bash", ".bashrc"),
        ("zsh", ".local/share/weir/completion.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/weir.fish", None),
    ],
)
def test_it_is_installed_once(
    shell: str, file: str, start: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    if start is not None:
        (tmp_path / start).write_text("alias x=y")
    for _ in range(2):
        assert run("completion", "--install") == 0
    assert (tmp_path / file).read_text() == script(shell)
    if start is not None:
        lines = (tmp_path / start).read_text().splitlines()
        assert [lines[0], len(lines)] == ["alias x=y", 2]
        assert str(tmp_path / file) in lines[1]


def test_an_unknown_shell_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")
    assert run("completion") == 2
    assert "weir completion bash|zsh|fish" in capsys.readouterr().err


def test_https_is_taken_where_there_is_nothing_else() -> None:
    assert http_url({"https": "[::]:8443"}) == "https://[::1]:8443"
    assert http_url({"pulsar": "x:1"}) is None


@pytest.mark.process
def test_weir_up_says_where_it_listens_for_as_long_as_it_does(
    weir_up: Any, run_here: Any, monkeypatch: Any
) -> None:
    assert f"weir produce hello world --url {weir_up.http_url}" in weir_up.log
    monkeypatch.delenv("WEIR_URL")
    monkeypatch.setenv("WEIR_DATA", str(weir_up.data))
    assert run_here("topics", "list").code == 0


#: What each shell is told, with what was installed and nothing else, to complete `weir gro`.
_IN_SHELLS = {
    "bash": 'source ~/.bashrc; COMP_WORDS=(weir gro); COMP_CWORD=1; _weir_completion weir; echo "${COMPREPLY[@]}"',
    # Beside the line editor its own words for offering something cannot be used; these say it instead.
    "zsh": (
        "source ~/.zshrc; compadd() { print -l -- $completions }; _describe() { print -l -- ${(P)3} };"
        "words=(weir gro); CURRENT=2; _weir_completion"
    ),
    "fish": 'complete -C "weir gro"',
}


@pytest.mark.process
@pytest.mark.parametrize("shell", _IN_SHELLS)
def test_the_shell_itself_completes_what_was_installed(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} on this machine")
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert run("completion", shell, "--install") == 0
    done = subprocess.run(
        [program, "-c", _IN_SHELLS[shell]], capture_output=True, text=True, timeout=60, check=False
    )
    assert "groups" in done.stdout, done
    assert "topics" not in done.stdout
