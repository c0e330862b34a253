"""The figures of `tools/readability.py` never get worse. Whoever improves one lowers its ceiling here."""

from pathlib import Path

import pytest
from tools.readability import prose_rates, python_files, shape

ROOT = Path(__file__).resolve().parents[1]

#: Hits per 1,000 words; the targets stand in `tools/readability.py`.
SOURCE = {
    "who": 2.5,
    "somebody": 1.1,
    "what-subject": 3.5,
    "told": 1.0,
    "goes-on": 1.6,
    "there-is": 1.6,
    "passive": 18.0,
}
DOCS = {
    "who": 1.0,
    "somebody": 0.5,
    "what-subject": 0.5,
    "told": 0.5,
    "goes-on": 0.5,
    "there-is": 1.5,
    "passive": 18.0,
}
CEILINGS = {
    "modules": 715,
    "modules named by a participle, %": 2.0,
    "functions and classes with a vague word in the name, %": 6.5,
}
FLOORS = {"mean lines of a module": 220, "median lines of a module": 150}


@pytest.mark.slow
def test_prose_in_the_source_gets_no_worse() -> None:
    _, rates = prose_rates(python_files(ROOT / "src" / "weir"))
    assert {kind: rate for kind, rate in rates.items() if rate > SOURCE[kind]} == {}


def test_prose_in_the_documentation_gets_no_worse() -> None:
    _, rates = prose_rates([ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
    assert {kind: rate for kind, rate in rates.items() if rate > DOCS[kind]} == {}


def test_the_shape_of_the_source_gets_no_worse() -> None:
    figures = shape(python_files(ROOT / "src" / "weir"))
    assert {name: figures[name] for name, ceiling in CEILINGS.items() if figures[name] > ceiling} == {}
    assert {name: figures[name] for name, floor in FLOORS.items() if figures[name] < floor} == {}
