"""What README shows of Spark is what Spark does with a topic."""

import pytest

from weir.testing.pages import ROOT, Page

from .conftest import Topics

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.mark.usefixtures("spark")
def test_the_snippet_of_readme_shows_a_topic(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [block.text for block in Page(ROOT / "README.md").blocks() if "weir.spark" in block.text]
    topics.fill(topics.create(name="of_readme"), ["hello", "world"])
    moved = snippet.replace("127.0.0.1:9092", topics.servers).replace('"orders"', '"of_readme"')
    exec(compile(moved, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "|     0|" in shown
    assert "world|" in shown
