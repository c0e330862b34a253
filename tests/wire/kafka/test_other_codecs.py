"""The codec beside those of kafka-python and aiokafka, which have tables of their own: same values, same bytes."""

from collections.abc import Iterator
from importlib import import_module
from random import Random
from typing import Any

import pytest
from aiokafka.protocol.api import RequestStruct, Response
from kafka.protocol.api_message import ApiMessage

from weir.testing.codecs.kafka_samples import in_version, sample_message
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.schema.layout import Layout, Structure
from weir.wire.kafka.schema.table import APIS, LAYOUTS

ROUNDS = 4


def samples(layout: Layout, version: int, *, tagged: bool = True) -> Iterator[tuple[m.Message, bytes]]:
    dice = Random(f"{layout.name} {version}")
    for _ in range(ROUNDS):
        message = in_version(layout, version, sample_message(layout, dice))
        if not tagged:
            untag(layout.body, message)
        yield message, codec.encode_data(layout.name, version, message)


def untag(structure: Structure, message: m.Message) -> None:
    for field in structure.fields:
        if field.tag is not None:
            setattr(message, field.name, [] if field.default == () else field.default)
        elif field.struct is not None:
            for element in getattr(message, field.name) or ():
                untag(field.struct, element)


# --- kafka-python ----------------------------------------------------------------------------------------------

for _module in ("admin", "consumer", "metadata", "producer", "sasl"):
    import_module(f"kafka.protocol.{_module}")

KAFKA_PYTHON = {kind.__name__: kind for kind in ApiMessage.__subclasses__() if kind.__name__ in LAYOUTS}

#: Fields that its objects show in a form or under a name of their own; their bytes are compared all the same.
SHOWN_DIFFERENTLY = {
    "authorized_operations",
    "cluster_authorized_operations",
    "topic_authorized_operations",
    "generation_id_or_member_epoch",
}
#: It reads every response to ApiVersions that holds an error as version 0.
READ_AS_ANOTHER_VERSION = {"ApiVersionsResponse"}


def same(structure: Structure, version: int, ours: m.Message, theirs: Any) -> None:
    for field in structure.fields:
        if version not in field.versions or field.name in SHOWN_DIFFERENTLY:
            continue
        value, other = getattr(ours, field.name), getattr(theirs, field.name)
        if field.struct is None:
            if field.kind == "uuid":
                other = bytes(16) if other is None else other.bytes
            assert value == other, field.name
        elif value is None:
            assert field.tag is not None or other is None
        else:
            elements, others = (value, other) if field.array else ([value], [other])
            for element, another in zip(elements, others, strict=True):
                same(field.struct, version, element, another)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KAFKA_PYTHON.keys() - READ_AS_ANOTHER_VERSION))
def test_kafka_python_reads_the_same_values_and_writes_the_same_bytes(name: str) -> None:
    layout, kind = LAYOUTS[name], KAFKA_PYTHON[name]
    for version in layout.versions:
        if version > kind.max_version:
            continue
        for message, data in samples(layout, version):
            theirs = kind.decode(data, version=version)
            same(layout.body, version, message, theirs)
            theirs._header = None
            assert bytes(theirs.encode()) == data


def test_kafka_python_knows_every_api_that_we_know() -> None:
    assert {api.request.name for api in APIS.values()} <= KAFKA_PYTHON.keys()


# --- aiokafka ----------------------------------------------------------------------------------------------------

for _module in (
    "admin",
    "commit",
    "coordination",
    "fetch",
    "group",
    "metadata",
    "offset",
    "produce",
    "transaction",
):
    import_module(f"aiokafka.protocol.{_module}")

#: Has a leader epoch of 64 bits, and is "not yet supported" there.
WRONG_THERE = {"OffsetRequest_v4", "OffsetRequest_v5", "DescribeAclsRequest_v2", "DescribeAclsResponse_v2"}


def aiokafka_kinds() -> dict[str, Any]:
    return {
        kind.__name__: kind
        for base in (RequestStruct, Response)
        for kind in base.__subclasses__()
        if kind.API_KEY in APIS
        and kind.API_VERSION in APIS[kind.API_KEY].versions
        and kind.__name__ not in WRONG_THERE
    }


AIOKAFKA = aiokafka_kinds()


def leaves(value: Any) -> Iterator[Any]:
    """The values in the order of the wire, whatever holds them; its tagged fields are dicts."""
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from leaves(element)
    elif not isinstance(value, dict):
        yield value


def our_leaves(structure: Structure, version: int, message: m.Message) -> Iterator[Any]:
    for field in structure.fields:
        if version in field.versions and field.tag is None:
            value = getattr(message, field.name)
            if field.struct is None or value is None:
                yield from leaves(value)
            else:
                for element in value:
                    yield from our_leaves(field.struct, version, element)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(AIOKAFKA))
def test_aiokafka_reads_the_same_values_and_writes_the_same_bytes(name: str) -> None:
    kind = AIOKAFKA[name]
    api = APIS[kind.API_KEY]
    layout = api.request if issubclass(kind, RequestStruct) else api.response
    for message, data in samples(layout, kind.API_VERSION, tagged=False):
        theirs = kind.decode(data)
        shown = leaves([getattr(theirs, field) for field in kind.SCHEMA.names])
        assert list(shown) == list(our_leaves(layout.body, kind.API_VERSION, message))
        assert theirs.encode() == data


def test_aiokafka_gives_many_messages_to_compare() -> None:
    assert len(AIOKAFKA) > 100
