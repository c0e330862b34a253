"""Words that hold: every command, setting, and link that a page names is there."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from weir.connect.definitions import read_file
from weir.server.config.load import load
from weir.server.config.tree import KEYS
from weir.spark.pipelines import spec
from weir.testing.pages import ROOT, Page, check_command, pages, words

PAGES = pages()
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}
#: Settings as they are written in sentences: `auth.superusers`, also with a value behind it.
_SETTING = re.compile(rf"^((?:{'|'.join(SECTIONS)})\.[a-z_]+)(?:\s*=.*)?$")


def named(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_is_one(page: Page) -> None:
    wrong = []
    for command in page.commands():
        if "..." in command:
            continue
        try:
            check_command(words(command))
        except (click.ClickException, ValueError) as why:
            wrong.append(f"{command}: {why}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_in_a_sentence_is_one(page: Page) -> None:
    wrong = []
    for span in page.spans():
        if not span.startswith("weir ") or "..." in span:
            continue
        first, *rest = span.split("|")  # `weir bookie serve|inspect|verify` names three
        quoted = shlex.split(first) if first.count("'") % 2 == first.count('"') % 2 == 0 else first.split()
        said = [word for word in quoted[1:] if not re.match(r"^[\[A-Z]", word)]
        try:
            for last in [said[-1:], *([name.strip()] for name in rest)]:
                check_command([*said[:-1], *last], whole=False)
        except (click.ClickException, ValueError) as why:
            if "requires an argument" not in str(why):  # the option itself is there
                wrong.append(f"{span}: {why}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_setting_is_one(page: Page) -> None:
    said = [match[1] for span in page.spans() if (match := _SETTING.match(span))]
    for command in page.commands():
        said += [word.partition("=")[0] for before, word in zip(words(command), words(command)[1:], strict=False)
                 if before == "--set" and "=" in word]  # fmt: skip
    files = (".json", ".py", ".toml")
    unknown = {key for key in said if key not in KEYS and not key.endswith(files) and not _is_code(key)}
    assert unknown == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_configuration_loads(page: Page, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in page.blocks() if block.language == "toml"):
        said = tomllib.loads(block.text)
        if "source" in said or "sink" in said:  # a connector's file
            read_file(block.text, "example.toml", "example")
            continue
        file = tmp_path / f"{number}.toml"
        file.write_text(block.text)
        if "transformations" in said:  # a pipeline's
            spec.load(file)
        else:
            load(file=file)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Page) -> None:
    broken = []
    for link in page.links():
        path, _, anchor = link.partition("#")
        target = page.path if not path else (page.path.parent / path).resolve()
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in Page(target).anchors()):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_pip_is_asked_for_what_there_is(page: Page) -> None:
    """Weir comes from a checkout or a wheel, since no index has it yet, and only with extras that it has."""
    asked = re.findall(r"pip install ([^`\n]*)", page.text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for arguments in asked:
        if page.name.startswith("docs/adr/"):
            continue  # they tell what was
        assert not re.search(r"(?<![/\w-])weir(-broker)?(\[|\s|'|$)", arguments), arguments
        assert set(re.findall(r"\.\[([\w,]+)\]", arguments)) <= set(extras), arguments


def test_every_page_of_the_documentation_is_found_from_its_first() -> None:
    found = {ROOT / "docs" / "README.md"}
    waiting = list(found)
    while waiting:
        page = Page(waiting.pop())
        for link in page.links():
            target = (page.path.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in found:
                found.add(target)
                waiting.append(target)
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"}
    assert pages - found == set()


def _is_code(name: str) -> bool:
    """Whether it is a module of Weir, which pages name without `weir.` before it, or a scenario of AMQP's."""
    package, _, rest = name.partition(".")
    folder, scenarios = ROOT / "src" / "weir" / package, ROOT / "tests/gateway/amqp/behaviour" / f"{package}.py"
    if (folder / rest).is_dir() or (folder / f"{rest}.py").is_file():
        return True
    return scenarios.is_file() and f"def {rest}(" in scenarios.read_text()
