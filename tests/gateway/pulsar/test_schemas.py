"""Schemas with the official client: what is stored, what evolves, what is refused."""

from typing import Any

import pulsar
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pulsar.schema import (
    AvroSchema,
    Integer,
    JsonSchema,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from weir.model.policies import Policies, SchemaCompatibility
from weir.wire.pulsar import pulsar_api_pb2 as api

TIMEOUT_MS = 60_000


class User(Record):
    _avro_namespace = "test"
    name = String(required=True)
    age = Integer()


def evolved(**fields: Any) -> Any:
    """The same record with other fields."""
    return type("User", (Record,), {"_avro_namespace": "test", **fields})


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_records_arrive_as_records(client: pulsar.Client, topic: str, kind: Any) -> None:
    consumer = client.subscribe(topic, "s", schema=kind(User))
    client.create_producer(topic, schema=kind(User)).send(User(name="Ada", age=36))
    message = consumer.receive(TIMEOUT_MS)
    assert (message.value().name, message.value().age) == ("Ada", 36)
    assert message.schema_version() == bytes(8).decode()


def test_strings(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("hello")
    assert consumer.receive(TIMEOUT_MS).value() == "hello"


def test_a_compatible_schema_is_a_new_version(weir_broker: Any, client: pulsar.Client, topic: str) -> None:
    weir_broker.set_policies(topic, Policies(schema_compatibility=SchemaCompatibility.BACKWARD))
    newer = evolved(name=String(required=True), age=Integer(), email=String(default=None, required_default=True))
    old = client.create_producer(topic, schema=AvroSchema(User))
    consumer = client.subscribe(
        topic, "s", schema=AvroSchema(newer), initial_position=pulsar.InitialPosition.Earliest
    )
    new = client.create_producer(topic, schema=AvroSchema(newer))
    old.send(User(name="Ada", age=36))
    new.send(newer(name="Bob", age=1, email="b@x"))
    first, second = consumer.receive(TIMEOUT_MS), consumer.receive(TIMEOUT_MS)
    assert first.schema_version() != second.schema_version()
    # The client asks the broker for the schema that each was written with.
    assert (first.value().name, first.value().age, first.value().email) == ("Ada", 36, None)
    assert (second.value().name, second.value().email) == ("Bob", "b@x")


def test_a_new_record_is_read_through_an_old_schema(weir_broker: Any, client: pulsar.Client, topic: str) -> None:
    weir_broker.set_policies(topic, Policies(schema_compatibility=SchemaCompatibility.FULL))
    newer = evolved(name=String(required=True), age=Integer(), email=String(default=None, required_default=True))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(User))
    client.create_producer(topic, schema=AvroSchema(newer)).send(newer(name="Bob", age=1, email="b@x"))
    found = consumer.receive(TIMEOUT_MS).value()
    assert (found.name, found.age) == ("Bob", 1)


def person(*fields: tuple[str, int]) -> Any:
    """A Protobuf message's class, made of string fields with these names and numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="people.proto", package="test", syntax="proto3")
    message = file.message_type.add(name="Person")
    kind = descriptor_pb2.FieldDescriptorProto
    for name, number in fields:
        message.field.add(name=name, number=number, label=kind.LABEL_OPTIONAL, type=kind.TYPE_STRING)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Person"))


def test_protobuf_messages_arrive_and_evolve(client: pulsar.Client, topic: str) -> None:
    old, new = person(("name", 1)), person(("name", 1), ("email", 2))
    consumer = client.subscribe(topic, "s", schema=ProtobufNativeSchema(old))
    client.create_producer(topic, schema=ProtobufNativeSchema(old)).send(old(name="Ada"))
    first = consumer.receive(TIMEOUT_MS)
    assert first.value().name == "Ada"
    client.create_producer(topic, schema=ProtobufNativeSchema(new)).send(new(name="Bob", email="b@x"))
    second = consumer.receive(TIMEOUT_MS)
    assert second.value().name == "Bob"
    assert first.schema_version() != second.schema_version()
    other = descriptor_pb2.FileOptions  # another message altogether
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=ProtobufNativeSchema(other))


def test_an_incompatible_schema_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(User))
    other = evolved(name=Integer(required=True))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())


def test_the_same_schema_is_the_same_version(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=AvroSchema(User))
    for _ in range(2):
        client.create_producer(topic, schema=AvroSchema(User)).send(User(name="x", age=1))
    first, second = consumer.receive(TIMEOUT_MS), consumer.receive(TIMEOUT_MS)
    assert first.schema_version() == second.schema_version()


def test_bytes_need_no_schema_unless_one_is_required(weir_broker: Any, client: pulsar.Client, topic: str) -> None:
    weir_broker.set_policies(topic, Policies(schema_required=True))
    client.create_producer(topic, schema=AvroSchema(User))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)


def test_schemas_are_asked_for_and_made_by_command(weir_broker: Any, topic: str) -> None:
    definition = b'{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'

    async def ask() -> None:
        peer = await weir_broker.peer()
        await peer.greet()
        peer.say(api.CommandGetSchema(request_id=1, topic=topic))
        assert (await peer.hear(api.CommandGetSchemaResponse)).error_code == api.ServerError.TopicNotFound
        schema = api.Schema(name="R", schema_data=definition, type=api.Schema.Avro)
        peer.say(api.CommandGetOrCreateSchema(request_id=2, topic=topic, schema=schema))
        version = (await peer.hear(api.CommandGetOrCreateSchemaResponse)).schema_version
        assert version == bytes(8)
        peer.say(api.CommandGetSchema(request_id=3, topic=topic, schema_version=version))
        found = await peer.hear(api.CommandGetSchemaResponse)
        assert (found.schema.type, found.schema.schema_data) == (api.Schema.Avro, definition)
        bad = api.Schema(name="R", schema_data=b"{", type=api.Schema.Avro)
        peer.say(api.CommandGetOrCreateSchema(request_id=4, topic=topic, schema=bad))
        refused = await peer.hear(api.CommandGetOrCreateSchemaResponse)
        assert refused.error_code == api.ServerError.IncompatibleSchema

    weir_broker.call(ask)


@pytest.mark.parametrize(("client_version", "there"), [("Pulsar-Go-0.19.0", False), ("Pulsar-Java-v4.0.7", True)])
def test_bytes_have_no_version_that_a_client_for_go_could_put_on_messages(
    weir_broker: Any, topic: str, client_version: str, there: bool
) -> None:
    async def ask() -> None:
        peer = await weir_broker.peer()
        await peer.greet(client_version=client_version)
        schema = api.Schema(name="", schema_data=b"", type=getattr(api.Schema, "None"))
        peer.say(api.CommandGetOrCreateSchema(request_id=1, topic=topic, schema=schema))
        answer = await peer.hear(api.CommandGetOrCreateSchemaResponse)
        assert (answer.HasField("schema_version"), answer.schema_version) == (there, b"")

    weir_broker.call(ask)
