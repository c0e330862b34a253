"""Templates as package data, everything in them escaped."""

from typing import Any

from weir import __version__
from weir.console import plots, texts


class Templates:
    def __init__(self) -> None:
        from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape  # who looks waits for it

        self._environment = Environment(
            loader=PackageLoader("weir.console", "templates"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(texts.FILTERS)
        self._environment.globals.update(version=__version__, spark=plots.spark)

    def render(self, template: str, **values: Any) -> str:
        page: str = self._environment.get_template(template).render(**values)
        return page
