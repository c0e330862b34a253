"""Tables as mappings of plain values: what exchanges, queues and policies take."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from weir.wire.amqp.tables import Field, Table


def plain_fields(table: Table) -> dict[str, Any]:
    """A table as a mapping of plain values, as exchanges and queues take them; of two fields of one name the first
    counts."""
    found: dict[str, Any] = {}
    for name, field in table.fields:
        found.setdefault(name, _plain(field))
    return found


def _plain(field: Field) -> Any:
    match field.tag, field.value:
        case "T", int(seconds):
            try:
                return datetime.fromtimestamp(seconds, UTC)
            except (OverflowError, ValueError, OSError):
                return seconds
        case "D", (int(scale), int(unscaled)):
            return Decimal(unscaled).scaleb(-scale)
        case "A", tuple(fields):
            return [_plain(one) for one in fields if isinstance(one, Field)]
        case "F", Table() as table:
            return plain_fields(table)
    return field.value
