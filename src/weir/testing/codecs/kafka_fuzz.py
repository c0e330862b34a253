"""Requests that come far: samples with names, numbers and records that a broker knows, or odd ones."""

from collections.abc import Callable
from random import Random
from typing import Any

from weir.gateway.kafka.config_table import TABLE
from weir.testing.codecs.fuzzing import mutate
from weir.testing.codecs.kafka_samples import in_version, sample_message, sample_subscription
from weir.testing.codecs.record_samples import reseal_records, sample_records
from weir.wire.kafka.classes import Message
from weir.wire.kafka.frames import RequestHeader, request_frame
from weir.wire.kafka.schema.layout import Field, Structure
from weir.wire.kafka.schema.table import APIS

#: A topic with some partitions and records, which the tests make.
TOPIC = "fuzz"
_KNOWN = (TOPIC, TOPIC, TOPIC, "fuzz-2", "public..default..fuzz", "public/default/fuzz")
ODD_NAMES = (
    "",
    ".",
    "..",
    "...",
    "../x",
    "../../../x",
    "..%2fx",
    "/etc/passwd",
    "a/b",
    "a/b/c",
    "a/../c",
    "no..such..topic",
    "public..default..",
    "public......x",
    "persistent://public/default/fuzz",
    "weir/system/coordinator",
    "weir..system..coordinator",
    "x\0y",
    "x\ny",
    "x\x1b[31my",
    "\u202egnp",
    "gr\u00f6\u00dfe",
    "fuzz-partition-0",
    "fuzz-partition-99999999999999999999",
    "__consumer_offsets",
    "x" * 249,
    "x" * 250,
    "y" * 5_000,
    "z" * 32_767,
)
#: Mostly short: what is broken at random shall lie deeper.
_CLIENTS = (*[None, "", "fuzz"] * 6, "x\0y", "c" * 32_767)
_CONFIG_NAMES = (*(config.name for config in TABLE), "no.such.config", "", "x\0y")
_CONFIG_VALUES = (
    "",
    "0",
    "1",
    "-1",
    "-2",
    "true",
    "compact",
    "delete",
    "compact,delete",
    "1e9",
    "nan",
    "inf",
    "\u0663",
    "9" * 19,
    "9" * 5_000,
    "uncompressed",
)
_PATTERNS = ("", ".*", "fuzz.*", "(", "[", "\\", "(?P<x", "(a+)+$", "a{99999}", "x" * 5_000)
#: What texts of a name are.
_TEXTS = {
    "configuration_keys": _CONFIG_NAMES,
    "transactional_id_pattern": _PATTERNS,
    "value": _CONFIG_VALUES,
}
#: What numbers of a name are, when they are not just anything.
_NUMBERS: dict[str, tuple[int, ...]] = {
    "acks": (-1, -1, -1, 0, 1, 7),
    "partition": (0, 0, 1, -1, 2**31 - 1),
    "producer_id": (0, 1, 2, 1000, -1),
    "producer_epoch": (0, 0, 1, -1),
    "generation": (1, 1, 0, -1, 2),
    "num_partitions": (1, 3, -1, 0, -2, 2**31 - 1, 1_000_000),
    "count": (1, 3, 4, -1, 0, 2**31 - 1),
    "replication_factor": (1, 1, -1, 3, 0, 32_767),
    "session_id": (0, 0, 1, -1),
    "session_epoch": (-1, 0, 1, 2**31 - 1),
    "key_type": (0, 1, 2, -1),
    "resource_type": (2, 2, 4, 8, 32, 0, -1),
    "config_operation": (0, 1, 2, 3, 4, -1),
    "offset": (0, 0, 1, 5, -1, -2, -3, 2**63 - 1, -(2**63)),
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 1_700_000_000_000, 2**63 - 1),
    # Nothing that waits shall wait for long: a test has to see its end.
    "max_wait_ms": (0, 1, 10, -1),
    "session_timeout_ms": (6_000, 6_000, 10_000, 0, -1, 2**31 - 1),
    "rebalance_timeout_ms": (1, 10, 20, -1),
    "timeout_ms": (1, 100, 1_000, 0, -1),
}
_SAME = {
    "index": "partition",
    "partition_index": "partition",
    "partitions": "partition",
    "partition_indexes": "partition",
    "v3_and_below_producer_id": "producer_id",
    "v3_and_below_producer_epoch": "producer_epoch",
    "generation_id": "generation",
    "generation_id_or_member_epoch": "generation",
    "member_epoch": "generation",
    "fetch_offset": "offset",
    "committed_offset": "offset",
    "transaction_timeout_ms": "timeout_ms",
}


class Fuzz:
    """Makes frames. `topic_id` is that of the topic that there is."""

    def __init__(self, dice: Random, topic_id: bytes = bytes(16)) -> None:
        self._dice = dice
        self._topic_id = topic_id
        #: Ids that the broker gave to members, to be tried again.
        self.members: list[str] = []

    def request(self, key: int, version: int, number: int) -> bytes:
        """A whole request that the version can have, in a frame without its size."""
        layout = APIS[key].request
        message = sample_message(layout, self._dice)
        self._spice(layout.body, message)
        header = RequestHeader(key, version, number, self._dice.choice(_CLIENTS))
        return b"".join(request_frame(header, in_version(layout, version, message)))[4:]

    def broken(self, key: int, version: int, number: int) -> bytes:
        """The same, with bytes of it changed behind its numbers: it is still taken for a request of this API."""
        whole = self.request(key, version, number)
        return whole[:8] + mutate(whole[8:], self._dice, self.request(key, version, number)[8:])

    def miscounted(self, key: int, version: int, number: int) -> bytes:
        """The same, with a number somewhere that would be a huge count or length, in either form."""
        whole = self.request(key, version, number)
        at = self._dice.randrange(8, len(whole) + 1)
        huge = self._dice.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80\0\0\0", b"\x7f\xff"))
        return whole[:at] + huge + whole[at + len(huge) :]

    def _spice(self, structure: Structure, message: Message) -> None:
        for field in structure.fields:
            value = getattr(message, field.name)
            if value is None:
                continue
            if field.struct is not None:
                for element in value if field.array else (value,):
                    self._spice(field.struct, element)
            elif field.array:
                setattr(message, field.name, [self._one(structure, field, each) for each in value])
            else:
                setattr(message, field.name, self._one(structure, field, value))

    def _one(self, structure: Structure, field: Field, value: Any) -> Any:
        makers: dict[str, Callable[[Structure, Field, Any], Any]] = {
            "string": self._text,
            "records": self._records,
            "bytes": self._bytes,
            "uuid": self._uuid,
        }
        maker = makers.get(field.kind, self._number)
        return maker(structure, field, value)

    def _number(self, _: Structure, field: Field, value: Any) -> Any:
        known = _NUMBERS.get(_SAME.get(field.name, field.name))
        if known is None or ("_ms" not in field.name and self._dice.random() < 0.1):
            return value
        return self._dice.choice(known)

    def _text(self, structure: Structure, field: Field, value: str) -> str:
        dice = self._dice
        if field.name in _TEXTS:
            return dice.choice(_TEXTS[field.name])
        if field.name == "name" and "Config" in structure.name:
            return dice.choice(_CONFIG_NAMES)
        if field.name == "member_id" and dice.random() < 0.7:
            return dice.choice(("", "", *self.members[-3:]))
        if field.name == "protocol_type" and dice.random() < 0.7:
            return "consumer"
        luck = dice.random()
        if luck < 0.6:
            return dice.choice(_KNOWN)
        return dice.choice(ODD_NAMES) if luck < 0.9 else value

    def _records(self, _: Structure, __: Field, value: bytes) -> bytes:
        luck = self._dice.random()
        if luck < 0.5:
            return sample_records(self._dice)
        if luck < 0.8:
            return mutate(sample_records(self._dice), self._dice, sample_records(self._dice), reseal_records)
        return value

    def _bytes(self, _: Structure, __: Field, value: bytes) -> bytes:
        return sample_subscription(self._dice) if self._dice.random() < 0.6 else value

    def _uuid(self, _: Structure, __: Field, value: bytes) -> bytes:
        return self._topic_id if self._dice.random() < 0.6 else value
