"""A queue's declaration as the text of a topic's property, and one argument: JSON that keeps the types."""

from json import JSONDecodeError, dumps, loads
from typing import Any

from weir.model.errors import ExchangeArgumentError, QueueArgumentError, WireError
from weir.model.queues import QueueDeclaration
from weir.wire.exchanges import dump_table, load_table


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
