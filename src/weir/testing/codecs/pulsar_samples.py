"""Commands of Pulsar's protocol with any values in their fields, repeatably: to feed a broker with anything."""

from collections.abc import Callable
from random import Random
from typing import Any

from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.proto import Message

_NAMES = ("persistent://public/default/t", "t", "non-persistent://public/default/n", "", "a/b", "../../x", "t/\0")
#: Values that find what is there, more often than chance would.
_LIKELY: dict[str, tuple[Any, ...]] = {
    "topic": _NAMES,
    "namespace": ("public/default", "public", "no/where", ""),
    "subscription": ("s", "", "x" * 600),
    "producer_id": (1, 1, 1, 2, 2**64 - 1),
    "consumer_id": (1, 1, 1, 2, 2**64 - 1),
    "watcher_id": (1, 2),
    "ledgerId": (0, 1, 2, 7, 2**63 - 1, 2**64 - 1),
    "entryId": (0, 1, 2, 5, 2**63 - 1, 2**64 - 1),
    "batch_index": (-1, 0, 3, 2**31 - 1),
    "topics_pattern": (".*", "(a+)+$", "(", "[", "t.*"),
    "start_message_rollback_duration_sec": (0, 1, 2**63 - 1),
}


def _text(dice: Random) -> str:
    return "".join(dice.choice("abz/-:·é漢🜁 \n") for _ in range(dice.randrange(12)))


#: By the C++ type that a descriptor names: (u)int32/64, double, bool, enum, string or bytes.
_SCALARS: dict[int, Callable[[Random, Any], Any]] = {
    1: lambda dice, _: dice.choice((0, 1, -1, 2**31 - 1, -(2**31))),
    2: lambda dice, _: dice.choice((0, 1, -1, 2**63 - 1, -(2**63), dice.randrange(2**40))),
    3: lambda dice, _: dice.choice((0, 127, 128, 2**32 - 1)),
    4: lambda dice, _: dice.choice((0, 1, 127, 128, 2**63, 2**64 - 1, dice.randrange(2**40))),
    5: lambda dice, _: dice.choice((0.0, 1.5, -1e300)),
    7: lambda dice, _: dice.random() < 0.5,
    8: lambda dice, field: dice.choice(sorted(field.enum_type.values_by_number)),
    9: lambda dice, field: dice.randbytes(dice.randrange(20)) if field.type == 12 else _text(dice),
}


def any_command(kind: type[Message], dice: Random, depth: int = 0) -> Any:
    """A message with every required field and some of the others."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if not field.is_required and (dice.random() < 0.6 or depth > 3):
            continue
        for _ in range(dice.randrange(4) if field.is_repeated else 1):
            _fill(message, field, dice, depth)
    return message


def _fill(message: Message, field: Any, dice: Random, depth: int) -> None:
    if field.message_type is not None:
        value = any_command(getattr(api, field.message_type.name), dice, depth + 1)
        place = getattr(message, field.name)
        (place.add() if field.is_repeated else place).CopyFrom(value)
        return
    likely = _LIKELY.get(field.name)
    value = dice.choice(likely) if likely and dice.random() < 0.8 else _SCALARS[field.cpp_type](dice, field)
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)
