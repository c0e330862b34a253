"""`weir completion`: the script that completes commands, options and names in a shell, and its installation."""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from weir.model.errors import ConfigError

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_WEIR_COMPLETE"
_MARK = "# weir completion"
#: Fish finds its completion files itself; bash and zsh need a line in their startup file.
_STARTS = {"bash": ".bashrc", "zsh": ".zshrc"}
_ZSH_READY = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"


@click.command(
    epilog="""
\b
Examples:
  weir completion --install             for your current shell
  weir completion zsh --install
  source <(weir completion bash)        for this session only
  weir completion fish > ~/.config/fish/completions/weir.fish

Commands and options complete without a server. Topics, namespaces and subscriptions complete from the running
server (as --url or WEIR_URL name it), within one second.
"""
)
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
@click.option("--install", is_flag=True, help="Install the script for the shell instead of printing it.")
def completion(shell: str | None, install: bool) -> None:
    """Print the script that completes weir's commands in SHELL, or install it."""
    chosen = shell or _own_shell()
    text = script(chosen)
    if not install:
        click.echo(text)
        return
    for path in _install(chosen, text):
        click.echo(f"written: {path}")
    click.echo(f"open a new {chosen}, and try: weir top<tab>")


def script(shell: str) -> str:
    """The completion script for the shell."""
    from weir.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(f"unknown shell {shell}", hint=f"one of {', '.join(_SHELLS)}")
    found = kind(cli, {}, "weir", _VARIABLE)
    text = found.source_template % found.source_vars()
    return (_ZSH_READY + text if shell == "zsh" else text).strip() + "\n"


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise ConfigError("the current shell is unknown", hint="name it: weir completion bash|zsh|fish")
    return name


def _install(shell: str, text: str) -> list[Path]:
    """Write or extend the shell's files and return their paths. Existing lines are not added twice."""
    home = Path.home()
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return [_written(config / "fish" / "completions" / "weir.fish", text)]
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    path = _written(data / "weir" / f"completion.{shell}", text)
    folder = Path(os.environ.get("ZDOTDIR") or home) if shell == "zsh" else home
    start = folder / _STARTS[shell]
    line = f'[ -f "{path}" ] && source "{path}"  {_MARK}\n'
    before = start.read_text(encoding="utf-8") if start.exists() else ""
    if line in before:
        return [path]
    gap = "" if not before or before.endswith("\n") else "\n"
    with start.open("a", encoding="utf-8") as out:
        out.write(gap + line)
    return [path, start]


def _written(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise ConfigError(f"cannot write {path}: {failure.strerror}", hint="print it, without --install") from None
    return path
