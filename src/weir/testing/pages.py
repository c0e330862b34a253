"""What the pages of the documentation say in code: blocks, commands, settings and links of their Markdown."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from weir.cli.main import cli

ROOT = Path(__file__).parents[3]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_INDENTED = re.compile(r"(?:^\n?(?: {4}[^\n]*\n)+)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
#: Languages of blocks that may hold commands.
_SCRIPTS = ("", "sh", "bash", "console")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
#: Variables before a command, and where it comes from.
_BEFORE = re.compile(r"^(?:[A-Z_]+=\S* )*(?:\S*\.venv/bin/)?(?=weir )")
#: What follows a command in a line: an explanation, a comment, where its output goes; not what is within quotes.
_AFTER = re.compile(r"""("[^"]*"|'[^']*')|(?:\s{2,}\S|\s+#|\s>).*""")


@dataclass(frozen=True, slots=True)
class Block:
    """Code that stands by itself."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """One file of Markdown."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self) -> list[Block]:
        """Fenced code, in order, without its indentation."""
        found = []
        for match in _FENCE.finditer(self.text):
            indent = len(match["indent"])
            lines = [line[indent:] for line in match["body"].splitlines()]
            found.append(Block(match["language"], "\n".join(lines) + "\n"))
        return found

    def commands(self) -> Iterator[str]:
        """Lines of fenced and indented code that run `weir`, as the shell would get them, without comments."""
        bare = _FENCE.sub("\n", self.text)
        indented = [match[0] for match in _INDENTED.finditer(bare)]
        scripts = [block.text for block in self.blocks() if block.language in _SCRIPTS]
        for text in [*scripts, *indented]:
            yield from weir_commands(text)

    def spans(self) -> list[str]:
        """Code within sentences."""
        return [" ".join(code.split()) for code in _CODE.findall(_FENCE.sub("\n", self.text))]

    def links(self) -> list[str]:
        """Links to other pages, and within this one; not those to other sites."""
        found = _LINK.findall(_FENCE.sub("\n", self.text))
        return [link for link in found if not re.match(r"[a-z]+:", link)]

    def anchors(self) -> set[str]:
        """What links may name behind a `#`, made of headings as GitHub does."""
        found: dict[str, int] = {}
        anchors = set()
        for heading in re.findall(r"^#+ +(.+?) *$", _FENCE.sub("\n", self.text), re.MULTILINE):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
            name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            count = found.get(name, 0)
            found[name] = count + 1
            anchors.add(f"{name}-{count}" if count else name)
        return anchors


def pages() -> list[Page]:
    """Everything that a reader is sent to."""
    named = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(path) for path in [*named, *sorted((ROOT / "deploy").rglob("*.md"))]]


def weir_commands(text: str) -> Iterator[str]:
    """Commands of `weir` in a script, each as one line; each part of a pipe, or between `&&`, counts alone."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        for part in re.split(r"\||&&|;(?= )|\$\(", line.strip().removeprefix("$ ")):
            command = _BEFORE.sub("", part.strip())
            if command.startswith("weir "):
                said = _AFTER.sub(lambda found: found[1] or "", command)
                yield said.strip().removesuffix("&").removesuffix(")").strip()


def words(command: str) -> list[str]:
    """The words of a command after `weir`."""
    return shlex.split(command)[1:]


def check_command(said: Sequence[str], *, whole: bool = True) -> None:
    """ClickException if these words are no command; `whole`: nothing that it needs may be missing either."""
    command: click.Command = cli
    context, rest = click.Context(cli, info_name="weir"), list(said)
    while True:
        given, rest, _ = command.make_parser(context).parse_args(rest)
        if given.get("help") or given.get("version"):
            return
        if not isinstance(command, click.Group):
            break
        if not rest:
            if whole and not command.invoke_without_command:
                raise click.UsageError("it is a group of commands")
            return
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"there is no command {rest[0]}")
        command, context, rest = found, click.Context(found, parent=context, info_name=rest[0]), rest[1:]
    if not whole:
        return
    if rest:
        raise click.UsageError(f"there is nothing to do with {rest}")
    for parameter in command.params:
        value = given.get(parameter.name or "")
        missing = value is None or value == () or "UNSET" in repr(value).upper()
        if parameter.required and missing and not parameter.envvar:
            raise click.UsageError(f"{parameter.human_readable_name} is missing")
