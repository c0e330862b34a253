"""docs/reference/kafka.md says what is so."""

import re
from pathlib import Path

from weir.gateway.kafka.api_table import HANDLERS, load_handlers
from weir.wire.kafka.api_table import API, ApiKey


def test_the_documentation_names_every_api_and_its_versions() -> None:
    load_handlers()
    page = (Path(__file__).parents[3] / "docs" / "reference" / "kafka.md").read_text()
    told = re.findall(r"^\| (\w+) \| (\d+)-(\d+)\b", page, re.MULTILINE)
    served = [
        (API[ApiKey(key)].name, str(handler.advertised_first), str(handler.last))
        for key, handler in sorted(HANDLERS.items())
    ]
    assert told == served
