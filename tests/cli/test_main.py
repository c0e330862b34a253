"""The `weir` command: help, and errors as one clear line."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from weir.cli import main as program
from weir.cli.main import cli, main
from weir.model.errors import ConfigError, DiskFullError


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "bookie" in capsys.readouterr().out


def test_a_near_miss_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topcs") == 2
    assert "did you mean topics?" in capsys.readouterr().err


def test_an_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nonsense") == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("bad --sync", hint="write always"), 2), (DiskFullError("no space"), 1)]
)
def test_an_error_is_one_line_with_its_hint(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def fail() -> None:
        raise error

    monkeypatch.setitem(cli.commands, "fail", fail)
    assert run("fail") == code
    assert capsys.readouterr().err == f"weir: {error}\n"
    assert str(error).endswith(")")


def test_an_interrupt_exits_like_a_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def wait() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(program.cli.commands, "wait", wait)
    assert run("wait") == 130


@pytest.mark.parametrize("name", cli.lazy)
def test_every_command_can_be_loaded_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    assert f"weir {name}" in capsys.readouterr().out


@pytest.mark.process
def test_listing_the_commands_loads_none_of_them() -> None:
    program = "import sys; from weir.cli.main import cli; cli(['--help'], standalone_mode=False)"
    program += (
        "; sys.exit(any(m.startswith(('weir.server', 'weir.broker', 'asyncio', 'rich')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def commands(command: click.Command, path: str = "weir") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    former = {name for name, lazy in getattr(command, "lazy", {}).items() if getattr(lazy, "renamed", "")}
    for name in command.list_commands(context):
        if name in former:
            continue
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, f"{path} {name}")


def test_every_command_shows_how_it_is_used() -> None:
    bare = [path for path, command in commands(cli) if path not in (command.epilog or "")]
    assert bare == []


def test_every_command_that_asks_a_server_takes_a_token_from_a_file() -> None:
    options = {path: {name for one in command.params for name in one.opts} for path, command in commands(cli)}
    assert [path for path, names in options.items() if "--token" in names and "--token-file" not in names] == []


def test_every_command_that_prints_json_prints_the_other_formats_too() -> None:
    options = {path: {name for one in command.params for name in one.opts} for path, command in commands(cli)}
    assert [path for path, names in options.items() if ("--json" in names) != ("-o" in names)] == []


def test_json_and_another_format_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topics", "list", "--json", "-o", "csv") == 2
    assert "exclude" in capsys.readouterr().err


def test_the_help_page_has_every_command_in_one_section() -> None:
    listed = [name for names in cli.sections.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name, lazy in cli.lazy.items() if not lazy.renamed}


def test_a_renamed_command_works_under_its_former_name_and_is_not_listed() -> None:
    former = {name: lazy for name, lazy in cli.lazy.items() if lazy.renamed}
    assert set(former) == {"held", "half"}
    for lazy in former.values():
        assert cli.lazy[lazy.renamed].target == lazy.target
    page = CliRunner().invoke(cli, ["--help"]).output
    assert not any(f"\n  {name} " in page for name in former)
