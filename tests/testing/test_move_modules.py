"""`tools/move_modules.py` moves, merges and splits modules so that the tree still means the same."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools import move_modules

TOOL = vars(move_modules)

FILES = {
    "src/weir/__init__.py": "",
    "src/weir/lines/__init__.py": '"""Lines."""\n',
    "src/weir/lines/reading.py": '''"""Reads lines."""

import logging
from typing import TYPE_CHECKING, TypeVar

from weir.lines.counts import LIMIT

if TYPE_CHECKING:
    from weir.lines.writing import Writer

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SIZE = 3


class Reader:
    """Reads from a `weir.lines.writing.Writer`."""

    def read(self, writer: "Writer") -> list[str]:
        from weir.lines import counts

        return [f"{line}{_SIZE}" for line in writer.lines[: counts.half(LIMIT)]]
''',
    "src/weir/lines/writing.py": '''"""Writes lines."""

from typing import TypeVar

from weir.lines.reading import Reader

T = TypeVar("T")
_SIZE = 80  # of a line


class Writer:
    reader = Reader()  # needs the other part when the module is imported

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.lines.append(line[:_SIZE])
''',
    "src/weir/lines/counts.py": '''"""How many lines."""

LIMIT = 4
_HALVES = 2


def half(number: int) -> int:
    return number // _HALVES
''',
    "tests/test_lines.py": """from unittest import mock

from weir.lines import counts, reading
from weir.lines.writing import Writer


def test_lines() -> None:
    writer = Writer()
    for line in ("a", "b", "c"):
        writer.write(line)
    assert reading.Reader().read(writer) == ["a3", "b3"]
    assert counts.half(counts.LIMIT) == 2
    with mock.patch("weir.lines.writing.Writer.write") as write:
        writer.write("d")
    write.assert_called_once()
""",
    "docs/lines.md": "See `weir.lines.reading` in src/weir/lines/reading.py.\n",
}
MAP = """target\tsource modules (with lines; {names}: only these)
text\tlines 1
text.files\tlines.reading 22, lines.writing 19
text.limits\tlines.counts 8 {LIMIT}
text.numbers\tlines.counts 8 {half}
"""


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "map.tsv").write_text(MAP)
    for folder in ("bench", "tools"):
        (tmp_path / folder).mkdir()
    assert TOOL["main"]([str(tmp_path / "map.tsv"), "--root", str(tmp_path), "--write"]) == 0
    return tmp_path


def test_a_tree_still_passes_its_tests_after_the_move(moved: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import tests.test_lines as t; t.test_lines()"],
        cwd=moved,
        env={"PYTHONPATH": f"{moved / 'src'}:{moved}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_old_modules_are_gone_and_text_names_the_new_ones(moved: Path) -> None:
    there = sorted(str(path.relative_to(moved / "src/weir")) for path in (moved / "src/weir").rglob("*.py"))
    assert there == ["__init__.py", "text/__init__.py", "text/files.py", "text/limits.py", "text/numbers.py"]
    assert (moved / "docs/lines.md").read_text() == "See `weir.text.files` in src/weir/text/files.py.\n"
    assert "`weir.text.files.Writer`" in (moved / "src/weir/text/files.py").read_text()


def test_a_name_with_two_meanings_is_renamed_and_reported(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (moved / "src/weir/text/files.py").read_text()
    assert "_SIZE = 3" in text
    assert "_WRITING_SIZE = 80  # of a line" in text
    assert "line[:_WRITING_SIZE]" in text
    assert text.count("TypeVar(") == 1
    assert text.index("class Reader") < text.index("class Writer")


def test_a_split_module_keeps_its_private_names_with_their_users(moved: Path) -> None:
    assert "_HALVES = 2" in (moved / "src/weir/text/numbers.py").read_text()
    assert "_HALVES" not in (moved / "src/weir/text/limits.py").read_text()
