"""Exchanges and bindings as values in the metadata store, and the key of a binding.

A queue's declaration as the text of a topic's property, and one argument: JSON that keeps the types.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from json import JSONDecodeError, dumps, loads
from typing import Any

from weir.model.errors import ExchangeArgumentError, QueueArgumentError, WireError
from weir.model.exchanges import (
    Binding,
    Destination,
    Exchange,
    ExchangeType,
    StoredBinding,
    StoredExchange,
    StoredRecord,
    check_arguments,
)
from weir.model.queues import QueueDeclaration
from weir.wire.metadata import dump_fields, load_fields, text

_DIGEST_BYTES = 16


def encode_record(record: StoredRecord) -> bytes:
    if isinstance(record, StoredExchange):
        exchange = record.exchange
        return dump_fields(
            {
                "exchange": exchange.name,
                "type": exchange.type.value,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": dump_table(exchange.arguments),
                "id": record.id,
                "closing": record.closing,
                **({"holder": record.holder} if record.holder else {}),
            }
        )
    return dump_fields(
        {
            "source": record.binding.source,
            "source_id": record.source_id,
            "destination_id": record.destination_id,
            **({"holder": record.holder} if record.holder else {}),
            **_dump_binding(record.binding),
        }
    )


def decode_record(data: bytes) -> StoredRecord:
    fields = load_fields(data, "an exchange or a binding")
    try:
        return _exchange(fields) if "exchange" in fields else _binding(fields)
    except (KeyError, ValueError, TypeError, ArithmeticError, RecursionError, ExchangeArgumentError) as bad:
        raise WireError(f"an exchange or a binding is malformed: {bad!r}") from bad


def binding_digest(binding: Binding) -> str:
    """Different for any two bindings of one source, as text for a key."""
    said = dumps(_dump_binding(binding), separators=(",", ":"), sort_keys=True)
    return blake2b(said.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _exchange(fields: dict[str, Any]) -> StoredExchange:
    exchange = Exchange(
        text(fields["exchange"]),
        ExchangeType(fields["type"]),
        durable=_truth(fields["durable"]),
        auto_delete=_truth(fields["auto_delete"]),
        internal=_truth(fields["internal"]),
        arguments=load_table(fields["arguments"]),
    )
    check_arguments(exchange)
    return StoredExchange(exchange, text(fields["id"]), _truth(fields["closing"]), text(fields.get("holder", "")))


def _binding(fields: dict[str, Any]) -> StoredBinding:
    return StoredBinding(
        Binding(
            text(fields["source"]),
            Destination(text(fields["destination"]), _truth(fields["to_exchange"])),
            text(fields["routing_key"]),
            load_table(fields["arguments"]),
        ),
        text(fields["source_id"]),
        text(fields["destination_id"]),
        text(fields.get("holder", "")),
    )


def _dump_binding(binding: Binding) -> dict[str, Any]:
    return {
        "destination": binding.destination.name,
        "to_exchange": binding.destination.exchange,
        "routing_key": binding.routing_key,
        "arguments": dump_table(binding.arguments),
    }


def dump_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of arguments for JSON, with the types of its values. ExchangeArgumentError for what can be none."""
    return {name: _dump(value) for name, value in table.items()}


def _dump(value: Any) -> Any:
    """What JSON has no word for is an object with one name, which says what it is."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    if isinstance(value, Mapping):
        return {"table": dump_table(value)}
    if isinstance(value, Sequence):
        return [_dump(item) for item in value]
    raise ExchangeArgumentError(f"a {type(value).__name__} cannot be an argument")


def load_table(table: Any) -> dict[str, Any]:
    """What `dump_table` made of it; ValueError and the like for what it did not make."""
    return {name: _load(value) for name, value in _mapping(table).items()}


def _load(value: Any) -> Any:
    if isinstance(value, list):
        return [_load(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    match kind:
        case "bytes":
            return b64decode(text(held), validate=True)
        case "decimal":
            return _decimal(text(held))
        case "time":
            return datetime.fromisoformat(text(held))
        case "table":
            return load_table(held)
    raise ValueError(f"a value of kind {kind[:40]!r}")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as bad:
        raise ValueError(f"{text[:40]!r} is no decimal number") from bad


def _truth(item: Any) -> bool:
    if not isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of true or false")
    return item


def _mapping(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise TypeError(f"{type(item).__name__} instead of a table")
    return item


def encode_declaration(declaration: QueueDeclaration) -> str:
    """QueueArgumentError for what cannot be an argument. The name is the topic's."""
    try:
        arguments = dump_table(declaration.arguments)
        return dumps(
            {
                "durable": declaration.durable,
                "exclusive": declaration.exclusive,
                "auto_delete": declaration.auto_delete,
                "arguments": arguments,
            },
            separators=(",", ":"),
            sort_keys=True,
        )
    except (ExchangeArgumentError, ValueError, RecursionError) as bad:
        raise QueueArgumentError(f"an argument of queue {declaration.name!r} cannot be kept: {bad}") from bad


def decode_declaration(name: str, text: str) -> QueueDeclaration:
    """WireError if it is none."""
    try:
        fields = loads(text)
        said = {key: fields[key] for key in ("durable", "exclusive", "auto_delete")}
        if not all(isinstance(value, bool) for value in said.values()):
            raise TypeError("something else instead of true or false")
        return QueueDeclaration(name, **said, arguments=load_table(fields["arguments"]))
    except (JSONDecodeError, KeyError, ValueError, TypeError, ArithmeticError, RecursionError) as bad:
        raise WireError(f"the declaration of queue {name!r} is malformed: {bad!r}") from bad


def encode_argument(value: Any) -> str:
    """QueueArgumentError for what cannot be one."""
    try:
        return dumps(dump_table({_ARGUMENT: value}))
    except (ExchangeArgumentError, ValueError, RecursionError) as bad:
        raise QueueArgumentError(f"this cannot be an argument: {bad}") from bad


def decode_argument(text: str) -> Any:
    """WireError if it is none."""
    try:
        return load_table(loads(text))[_ARGUMENT]
    except (JSONDecodeError, KeyError, ValueError, TypeError, ArithmeticError, RecursionError) as bad:
        raise WireError(f"an argument is malformed: {bad!r}") from bad


_ARGUMENT = "argument"
