"""The schema registry: versions, compatibility by every strategy, and what policies say."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from struct import pack
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

from weir.broker.api.schemas import SchemaData, version_bytes, version_number
from weir.broker.metadata.registry import Registry
from weir.broker.schemas.compatibility import PRIMITIVES
from weir.broker.schemas.schema_registry import SchemaRegistry, SchemaSettings
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
    TooManyError,
)
from weir.model.policies import Policies
from weir.model.policies import SchemaCompatibility as By
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate

T = TopicName.parse("orders")


@dataclass
class Bench:
    runtime: Runtime
    core: MemoryCore

    async def schemas(
        self, settings: SchemaSettings | None = None, faults: MetaFaults | None = None
    ) -> SchemaRegistry:
        meta = FaultyMeta(MemoryMeta(self.core, self.runtime), self.runtime)
        self.registry = Registry(meta, self.runtime)
        await self.registry.start()
        await self.registry.ensure_topic(T)
        meta.faults = faults or MetaFaults()
        return SchemaRegistry(meta, self.runtime, self.registry, settings)

    async def policy(self, **changes: Any) -> None:
        def changed(policies: Policies) -> Policies:
            return replace(policies, **changes)

        await self.registry.change_policies(T, changed)


def run(scenario: Callable[[Bench], Awaitable[None]], seed: int = 1) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(Bench(runtime, MemoryCore(runtime.clock)))

        await world.node("broker").start(on_node)

    simulate(seed, main)


def avro(*fields: Any, type: str = "AVRO") -> SchemaData:  # noqa: A002
    definition = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": field[0], "type": field[1], **({"default": field[2]} if len(field) > 2 else {})}
            for field in fields
        ],
    }
    return SchemaData(type, json.dumps(definition).encode())


A = avro(("a", "int"))
#: Added to A: reads A, and is read by A.
A_OPTIONAL_B = avro(("a", "int"), ("b", ["null", "string"], None))
#: Added to A: does not read A, but is read by A.
A_REQUIRED_B = avro(("a", "int"), ("b", "string"))
#: Taken from A: reads A, but is not read by A.
NOTHING = avro()
UNRELATED = avro(("a", {"type": "map", "values": "int"}))


# --- versions -------------------------------------------------------------------------------------------------


def test_versions_count_up_and_the_same_schema_is_the_same_version() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        assert await schemas.for_producer(T, A) == bytes(8)
        assert await schemas.for_producer(T, A_OPTIONAL_B) == version_bytes(1)
        assert await schemas.for_producer(T.at(3), A) == version_bytes(0)
        spaced = SchemaData("AVRO", json.dumps(json.loads(A.data), indent=2).encode())
        assert await schemas.for_producer(T, spaced) == version_bytes(0)
        assert await schemas.find_version(T, A_OPTIONAL_B) == version_bytes(1)
        assert [schema.version for schema in await schemas.versions(T)] == [0, 1]
        assert (await schemas.get(T)).data == A_OPTIONAL_B.data
        stored = await schemas.get(T, version_bytes(0))
        assert (stored.type, stored.data) == ("AVRO", A.data)
        for version in (version_bytes(2), version_bytes(-1), b"xyz"):
            with pytest.raises(SchemaNotFoundError):
                await schemas.get(T, version)
        with pytest.raises(SchemaNotFoundError):
            await schemas.find_version(T, NOTHING)
        with pytest.raises(SchemaNotFoundError):
            await schemas.get(TopicName.parse("other"))

    run(scenario)


def test_a_version_is_eight_bytes_with_the_highest_first() -> None:
    assert version_bytes(258) == b"\0\0\0\0\0\0\1\2"
    assert version_number(version_bytes(258)) == 258


@pytest.mark.parametrize("seed", range(5))
def test_brokers_that_register_at_once_agree(seed: int) -> None:
    async def scenario(bench: Bench) -> None:
        brokers = [await bench.schemas(faults=MetaFaults(delay_s=0.01)) for _ in range(4)]
        await asyncio.gather(*(broker.for_producer(T, A) for broker in brokers))
        wanted = [avro(("a", "int"), (f"b{n}", "int", 0)) for n in range(4)]
        given = await asyncio.gather(
            *(b.register(T, schema, role="", strategy=By.FULL) for b, schema in zip(brokers, wanted, strict=True))
        )
        assert sorted(given) == [version_bytes(n) for n in range(1, 5)]
        for version, schema in zip(given, wanted, strict=True):
            assert (await brokers[0].get(T, version)).data == schema.data

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_reply_does_not_make_two_versions(seed: int) -> None:
    async def scenario(bench: Bench) -> None:
        meta = FaultyMeta(MemoryMeta(bench.core, bench.runtime), bench.runtime)
        registry = Registry(meta, bench.runtime)
        await registry.start()
        schemas = SchemaRegistry(meta, bench.runtime, registry)
        lost = iter([MetaFaults(lose_reply=1.0)])
        put = meta.put

        async def put_and_lose_the_reply(*args: Any, **more: Any) -> int:
            meta.faults = next(lost, MetaFaults())
            try:
                return await put(*args, **more)
            finally:
                meta.faults = MetaFaults()

        meta.put = put_and_lose_the_reply  # type: ignore[method-assign]
        assert await schemas.register(T, A, role="ann") == version_bytes(0)
        assert len(await schemas.versions(T)) == 1

    run(scenario, seed)


def test_a_deleted_schema_is_gone_and_its_number_is_not_used_again() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        with pytest.raises(SchemaNotFoundError):
            await schemas.delete(T, role="ann")
        await schemas.for_producer(T, A)
        assert await schemas.delete(T, role="ann") == version_bytes(1)
        for version in (None, version_bytes(0), version_bytes(1)):
            with pytest.raises(SchemaNotFoundError):
                await schemas.get(T, version)
        assert await schemas.versions(T) == []
        # What comes after need not go with what was before.
        assert await schemas.for_producer(T, UNRELATED) == version_bytes(2)
        await schemas.purge(T)
        assert await schemas.for_producer(T, A) == version_bytes(0)

    run(scenario)


def test_a_topic_has_no_more_versions_than_it_may() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas(SchemaSettings(max_versions=2))
        for schema in (A, A_OPTIONAL_B):
            await schemas.register(T, schema, role="", strategy=By.ALWAYS_COMPATIBLE)
        with pytest.raises(TooManyError):
            await schemas.register(T, NOTHING, role="", strategy=By.ALWAYS_COMPATIBLE)

    run(scenario)


# --- compatibility --------------------------------------------------------------------------------------------

#: Which strategies let the change from A pass.
CHANGES = {
    "an optional field more": (A_OPTIONAL_B, {By.BACKWARD, By.FORWARD, By.FULL}),
    "a required field more": (A_REQUIRED_B, {By.FORWARD}),
    "a required field less": (NOTHING, {By.BACKWARD}),
    "another type": (UNRELATED, set()),
}
TRANSITIVE = {
    By.BACKWARD_TRANSITIVE: By.BACKWARD,
    By.FORWARD_TRANSITIVE: By.FORWARD,
    By.FULL_TRANSITIVE: By.FULL,
}


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize("strategy", list(By))
@pytest.mark.parametrize(("new", "allowed"), CHANGES.values(), ids=CHANGES)
def test_a_strategy_lets_pass_what_it_says(new: SchemaData, allowed: set[By], strategy: By, kind: str) -> None:
    passes = strategy is By.ALWAYS_COMPATIBLE or TRANSITIVE.get(strategy, strategy) in allowed
    if strategy is By.UNDEFINED:
        passes = By.FULL in allowed

    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        await bench.policy(schema_compatibility=strategy)
        await schemas.for_producer(T, replace(A, type=kind))
        await schemas.for_producer(T, replace(A, type=kind))
        changed = replace(new, type=kind)
        if passes:
            await schemas.check(T, changed)
            assert await schemas.for_producer(T, changed) == version_bytes(1)
        else:
            for refused in (schemas.check(T, changed), schemas.for_producer(T, changed)):
                with pytest.raises(IncompatibleSchemaError):
                    await refused
            assert len(await schemas.versions(T)) == 1

    run(scenario)


@pytest.mark.parametrize("strategy", [*TRANSITIVE, *TRANSITIVE.values()])
def test_a_transitive_strategy_looks_at_every_version(strategy: By) -> None:
    # Each goes with the one before in both directions; the third does not go with the first in any.
    first = avro(("x", "int", 0), ("a", "int", 0))
    second = avro(("a", "int", 0))
    third = avro(("x", "string", ""), ("a", "int", 0))

    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        for schema in (first, second):
            await schemas.register(T, schema, role="", strategy=strategy)
        if strategy in TRANSITIVE:
            with pytest.raises(IncompatibleSchemaError, match="version 0"):
                await schemas.register(T, third, role="", strategy=strategy)
        else:
            assert await schemas.register(T, third, role="", strategy=strategy) == version_bytes(2)

    run(scenario)


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_a_primitive_type_stays_what_it_is(kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        assert await schemas.for_producer(T, SchemaData(kind, b"")) == version_bytes(0)
        assert await schemas.for_producer(T, SchemaData(kind, b"")) == version_bytes(0)
        other = "STRING" if kind != "STRING" else "INT8"
        for changed in (SchemaData(other, b""), A):
            with pytest.raises(IncompatibleSchemaError):
                await schemas.for_producer(T, changed)
        with pytest.raises(InvalidSchemaError):
            await schemas.for_producer(T, SchemaData(kind, b"definition"))

    run(scenario)


def test_the_type_changes_only_where_everything_may() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        await schemas.for_producer(T, A)
        with pytest.raises(IncompatibleSchemaError):
            await schemas.for_producer(T, replace(A, type="JSON"))
        await bench.policy(schema_compatibility=By.ALWAYS_COMPATIBLE)
        assert await schemas.for_producer(T, replace(A, type="JSON")) == version_bytes(1)

    run(scenario)


@pytest.mark.parametrize(
    "schema",
    [
        SchemaData("AVRO", b"junk"),
        SchemaData("AVRO", b'["null","int"]'),
        SchemaData("JSON", b"{}"),
        SchemaData("PROTOBUF", b""),
        SchemaData("PROTOBUF_NATIVE", b"{}"),
        SchemaData("KEY_VALUE", b"\0\0"),
        SchemaData("COBOL", b""),
        SchemaData("AVRO", b" " * (600 * 1024)),
    ],
)
def test_a_malformed_schema_is_refused(schema: SchemaData) -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        for refused in (
            schemas.for_producer(T, schema),
            schemas.for_consumer(T, schema),
            schemas.check(T, schema),
            schemas.register(T, schema, role=""),
        ):
            with pytest.raises(InvalidSchemaError):
                await refused

    run(scenario)


# --- key and value --------------------------------------------------------------------------------------------


def key_value(key: SchemaData, value: SchemaData, **more: str) -> SchemaData:
    """Two definitions, each behind its length; an empty one's may be -1 or 0."""
    data = b"".join(pack(">i", len(part.data) or -1) + part.data for part in (key, value))
    properties = {
        "key.schema.type": key.type,
        "value.schema.type": value.type,
        "key.schema.properties": "{}",
        "kv.encoding.type": "INLINE",
        **more,
    }
    return SchemaData("KEY_VALUE", data, properties=properties)


STRING = SchemaData("STRING", b"")


def test_key_and_value_are_each_checked() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        assert await schemas.for_producer(T, key_value(STRING, A)) == version_bytes(0)
        zero = key_value(STRING, A)
        zero = replace(zero, data=pack(">i", 0) + zero.data[4:])
        assert await schemas.for_producer(T, zero) == version_bytes(0)
        assert await schemas.for_producer(T, key_value(STRING, A_OPTIONAL_B)) == version_bytes(1)
        for changed in (
            key_value(A, A_OPTIONAL_B),
            key_value(STRING, UNRELATED),
            key_value(SchemaData("INT8", b""), A_OPTIONAL_B),
        ):
            with pytest.raises(IncompatibleSchemaError):
                await schemas.for_producer(T, changed)

    run(scenario)


@pytest.mark.parametrize(
    "schema",
    [
        key_value(STRING, SchemaData("AVRO", b"junk")),
        key_value(key_value(STRING, STRING), STRING),
        key_value(STRING, A, **{"key.schema.properties": "["}),
        replace(key_value(STRING, A), data=b"\xff\xff\xff\xfe" + bytes(8)),
        replace(key_value(STRING, A), data=b"\0\0\0\x09abc"),
        replace(key_value(STRING, STRING), data=key_value(STRING, STRING).data + b"more"),
    ],
)
def test_a_malformed_key_value_schema_is_refused(schema: SchemaData) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(InvalidSchemaError):
            await (await bench.schemas()).for_producer(T, schema)

    run(scenario)


# --- Protobuf by descriptor -----------------------------------------------------------------------------------

INT32, INT64, TEXT, MESSAGE, SINT32 = 5, 3, 9, 11, 17
OPTIONAL, REQUIRED = 1, 2


def proto(*fields: tuple[Any, ...], root: str = "pkg.Root", inner: tuple[tuple[Any, ...], ...] = ()) -> SchemaData:
    """Fields as (number, name, type[, label])."""
    files = FileDescriptorSet()
    file = files.file.add(name="f.proto", package="pkg")
    for name, members in (("Root", fields), ("Other", ()), ("Inner", inner)):
        message = file.message_type.add(name=name)
        for number, field, kind, *label in members:
            message.field.append(
                FieldDescriptorProto(
                    name=field,
                    number=number,
                    type=kind,
                    label=(label or [OPTIONAL])[0],
                    type_name=".pkg.Inner" if kind == MESSAGE else None,
                )
            )
    definition = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": "f.proto",
    }
    return SchemaData("PROTOBUF_NATIVE", json.dumps(definition).encode())


P = proto((1, "a", INT32))
PROTO_CHANGES = {
    "a field more": (proto((1, "a", INT32), (2, "b", TEXT)), {By.BACKWARD, By.FORWARD, By.FULL}),
    "a field less": (proto(), {By.BACKWARD, By.FORWARD, By.FULL}),
    "another name": (proto((1, "z", INT32)), {By.BACKWARD, By.FORWARD, By.FULL}),
    "a wider number": (proto((1, "a", INT64)), {By.BACKWARD, By.FORWARD, By.FULL}),
    "another encoding": (proto((1, "a", TEXT)), set()),
    "zigzag": (proto((1, "a", SINT32)), set()),
    "another root": (proto((1, "a", INT32), root="pkg.Other"), set()),
    "a required field more": (proto((1, "a", INT32), (2, "b", TEXT, REQUIRED)), {By.FORWARD}),
}


@pytest.mark.parametrize("strategy", [By.BACKWARD, By.FORWARD, By.FULL])
@pytest.mark.parametrize(("new", "allowed"), PROTO_CHANGES.values(), ids=PROTO_CHANGES)
def test_protobuf_messages_parse_as_one_another(new: SchemaData, allowed: set[By], strategy: By) -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        await schemas.for_producer(T, P)
        if strategy in allowed:
            await schemas.register(T, new, role="", strategy=strategy)
        else:
            with pytest.raises(IncompatibleSchemaError):
                await schemas.register(T, new, role="", strategy=strategy)

    run(scenario)


def test_messages_within_protobuf_messages_are_compared_too() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        nested = ((1, "x", INT32), (2, "again", MESSAGE))
        await schemas.for_producer(T, proto((1, "i", MESSAGE), inner=nested))
        with pytest.raises(IncompatibleSchemaError, match="Inner"):
            await schemas.for_producer(T, proto((1, "i", MESSAGE), inner=((1, "x", TEXT),)))
        with pytest.raises(InvalidSchemaError):
            await schemas.for_producer(T, proto(root="pkg.Missing"))

    run(scenario)


# --- policies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [None, *(SchemaData(t, b"") for t in ("NONE", "BYTES", "AUTO_CONSUME"))])
def test_without_a_schema_one_gets_no_version(schema: SchemaData | None) -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        assert await schemas.for_producer(T, schema) == b""
        await schemas.for_consumer(T, schema)
        await schemas.for_producer(T, A)
        assert await schemas.for_producer(T, schema) == b""
        await schemas.for_consumer(T, schema)
        await bench.policy(schema_required=True)
        with pytest.raises(IncompatibleSchemaError):
            await schemas.for_producer(T, schema)
        await schemas.for_consumer(T, schema)
        assert await schemas.for_producer(T, A) == version_bytes(0)

    run(scenario)


def test_a_required_schema_is_required_once_there_is_one() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        await bench.policy(schema_required=True)
        assert await schemas.for_producer(T, None) == b""

    run(scenario)


def test_without_automatic_updates_only_administrators_add_schemas() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        await bench.policy(allow_schema_auto_update=False)
        with pytest.raises(IncompatibleSchemaError):
            await schemas.for_producer(T, A)
        assert await schemas.register(T, A, role="ann") == version_bytes(0)
        assert await schemas.for_producer(T, A) == version_bytes(0)
        assert (await schemas.get(T)).role == "ann"
        with pytest.raises(IncompatibleSchemaError):
            await schemas.for_producer(T, A_OPTIONAL_B)

    run(scenario)


# --- consumers ------------------------------------------------------------------------------------------------


def test_the_first_consumer_gives_the_topic_its_schema() -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        await schemas.for_consumer(T, A)
        assert (await schemas.get(T)).data == A.data
        # Later ones add nothing, even if they can read all.
        await schemas.for_consumer(T, A_OPTIONAL_B)
        assert len(await schemas.versions(T)) == 1

    run(scenario)


@pytest.mark.parametrize(
    ("strategy", "refused"),
    [
        (By.FULL, [A_REQUIRED_B, UNRELATED]),
        (By.BACKWARD, [A_REQUIRED_B, UNRELATED]),
        (By.FORWARD, [A_REQUIRED_B, UNRELATED]),
        (By.FORWARD_TRANSITIVE, [A_REQUIRED_B, UNRELATED]),
        (By.BACKWARD_TRANSITIVE, [A_REQUIRED_B, UNRELATED]),
        (By.ALWAYS_COMPATIBLE, []),
        (By.ALWAYS_INCOMPATIBLE, [A_REQUIRED_B, UNRELATED, A_OPTIONAL_B, NOTHING]),
    ],
)
def test_a_consumer_must_be_able_to_read_what_is_there(strategy: By, refused: list[SchemaData]) -> None:
    async def scenario(bench: Bench) -> None:
        schemas = await bench.schemas()
        await bench.policy(schema_compatibility=strategy)
        await schemas.for_producer(T, A)
        await schemas.for_consumer(T, A)
        for schema in (A_OPTIONAL_B, NOTHING, A_REQUIRED_B, UNRELATED):
            if schema in refused:
                with pytest.raises(IncompatibleSchemaError):
                    await schemas.for_consumer(T, schema)
            else:
                await schemas.for_consumer(T, schema)

    run(scenario)
