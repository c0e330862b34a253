"""Messages as an Arrow batch, and the rows that a function of batches returns as messages.

Columns: `key`, `value` (bytes; typed values beside it, as the columns of the schema), `topic`, `partition`,
`offset`, `timestamp`, `headers`. What comes back needs `value`, or columns that become a JSON object, or a value
of the schema.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weir.functions.api import Message
from weir.functions.protocol import Item
from weir.model.errors import FunctionError

_ABOUT = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


def batch_of(items: Sequence[Item], typed: Callable[[Item], Any], key_of: Callable[[Item], bytes | None]) -> Any:
    """A `pyarrow.RecordBatch`. `typed`: the item's value by its topic's schema; None where that is no record."""
    import pyarrow as pa

    headers = [[(name, value) for name, value in item.headers] for item in items]
    columns = {
        "key": pa.array([key_of(item) for item in items], pa.binary()),
        "value": pa.array([item.value for item in items], pa.binary()),
        "topic": pa.array([item.topic for item in items], pa.string()),
        "partition": pa.array([item.partition for item in items], pa.int32()),
        "offset": pa.array([item.offset for item in items], pa.int64()),
        "timestamp": pa.array([item.timestamp for item in items], pa.timestamp("ms", tz="UTC")),
        "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
    }
    rows = [typed(item) for item in items]
    if any(isinstance(row, dict) for row in rows):
        names = list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))
        for name in names:
            if name not in _ABOUT:
                columns[name] = pa.array([row.get(name) if isinstance(row, dict) else None for row in rows])
    return pa.record_batch(columns)


def messages_of(returned: Any) -> Iterator[Message]:
    """The messages that a returned RecordBatch, Table, or list of them stands for."""
    if returned is None:
        return
    if isinstance(returned, list | tuple):
        for one in returned:
            yield from messages_of(one)
        return
    if hasattr(returned, "to_pandas") and hasattr(returned, "to_pylist"):
        rows, names = returned.to_pylist(), set(returned.schema.names)
    elif hasattr(returned, "to_dict"):  # a pandas DataFrame
        rows, names = returned.to_dict("records"), set(returned.columns)
    else:
        raise FunctionError(
            f"a function of batches returned {type(returned).__name__}", hint="return a RecordBatch"
        )
    typed = sorted(names - set(_ABOUT))
    for row in rows:
        value = {name: row[name] for name in returned_order(typed, row)} if typed else row.get("value")
        headers = row.get("headers") or []
        found = dict(headers.items() if isinstance(headers, dict) else headers)
        moment = row.get("timestamp")
        yield Message(
            value=value,
            key=row.get("key"),
            headers={name: b"" if value is None else value for name, value in found.items()},
            topic=row.get("topic"),
            timestamp_ms=None if moment is None else _ms(moment),
            partition=row.get("partition", -1) or -1,
            offset=row.get("offset", -1) if row.get("offset") is not None else -1,
        )


def returned_order(typed: Sequence[str], row: dict[str, Any]) -> list[str]:
    """The typed columns in the order in which the function has them."""
    wanted = set(typed)
    return [name for name in row if name in wanted]


def _ms(moment: Any) -> int:
    return round(moment.timestamp() * 1000) if hasattr(moment, "timestamp") else int(moment)
