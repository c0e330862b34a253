"""The generated part of docs/internals/architecture.md."""

from tools import architecture_page


def test_the_page_shows_the_layers_and_packages_of_today() -> None:
    page = architecture_page.PAGE.read_text()
    assert architecture_page.updated(page) == page, "run tools/architecture_page.py"


def test_every_package_has_a_description() -> None:
    assert [name for name, _, about in architecture_page.packages() if not about] == []
