"""Fills the Weir at these ports with topics of every kind; `tests/process/test_former_folder.py` reads them.

python fill.py HTTP_PORT KAFKA_PORT PULSAR_PORT AMQP_PORT
"""

import json
import sys
import urllib.request

import pika
import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition

HTTP, KAFKA, PULSAR, AMQP = sys.argv[1:]


def call(method: str, path: str, body: object = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{HTTP}{path}", data, head, method=method)
    urllib.request.urlopen(request).read()


class Order(pulsar.schema.Record):
    id = pulsar.schema.Integer()


# Pulsar: a shared subscription that acknowledged 1 and 3 of five, a schema, a delayed message, compaction by key.
client = pulsar.Client(f"pulsar://127.0.0.1:{PULSAR}")
first = pulsar.InitialPosition.Earliest
shared = client.subscribe("shared", "billing", pulsar.ConsumerType.Shared, initial_position=first)
producer = client.create_producer("shared")
for number in range(5):
    producer.send(f"shared-{number}".encode(), properties={"number": str(number)}, partition_key=f"key-{number}")
for _ in range(5):
    message = shared.receive()
    if message.data() in (b"shared-1", b"shared-3"):
        shared.acknowledge(message)
typed = client.create_producer("typed", schema=pulsar.schema.JsonSchema(Order))
typed.send(Order(id=7))
producer.send(b"delayed", deliver_at=4_102_444_800_000)
client.close()

# Kafka: partitions, a compacted topic, a committed and an aborted transaction, a group's positions.
call("PUT", "/admin/v2/persistent/public/default/parts/partitions", 3)
plain = Producer({"bootstrap.servers": f"127.0.0.1:{KAFKA}", "compression.type": "lz4"})
for number in range(9):
    plain.produce("parts", f"parts-{number}".encode(), partition=number % 3, headers={"h": b"1"})
plain.flush()
for name, commit in (("committed", True), ("aborted", False)):
    writer = Producer({"bootstrap.servers": f"127.0.0.1:{KAFKA}", "transactional.id": name})
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce("transactional", name.encode())
    writer.flush()
    writer.commit_transaction() if commit else writer.abort_transaction()
reader = Consumer({"bootstrap.servers": f"127.0.0.1:{KAFKA}", "group.id": "readers", "enable.auto.commit": False})
reader.commit(offsets=[TopicPartition("parts", 0, 2)], asynchronous=False)
reader.close()

# RabbitMQ: an exchange with bindings, a queue with priorities, a queue with dead letters, persistent messages.
connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{AMQP}/"))
channel = connection.channel()
channel.confirm_delivery()
channel.exchange_declare("events", "topic", durable=True)
channel.queue_declare("urgent", durable=True, arguments={"x-max-priority": 5})
to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
channel.queue_declare("mail", durable=True, arguments=to_dead)
channel.queue_declare("dead", durable=True)
channel.queue_bind("mail", "events", "mail.#")
for priority in (1, 5):
    properties = pika.BasicProperties(delivery_mode=2, priority=priority)
    channel.basic_publish("", "urgent", f"priority-{priority}".encode(), properties)
channel.basic_publish("events", "mail.new", b"mail", pika.BasicProperties(delivery_mode=2))
channel.basic_publish("events", "mail.new", b"dead", pika.BasicProperties(delivery_mode=2))
tags = [channel.basic_get("mail")[0].delivery_tag for _ in range(2)]
channel.basic_nack(tags[0], requeue=True)
channel.basic_nack(tags[1], requeue=False)
connection.close()

# Weir: a tenant, a policy. A prepared message follows: weir prepared prepare shared prepared --group shop
call("PUT", "/admin/v2/tenants/acme", {"adminRoles": ["alice"], "allowedClusters": ["standalone"]})
call("PUT", "/admin/v2/namespaces/acme/orders", {})
call("POST", "/admin/v2/namespaces/acme/orders/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10})
