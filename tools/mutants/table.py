"""Which tests must notice a change of which module: modules below `weir`, and files or folders of tests."""

#: The tests that fail first come first.
_STREAM = ("tests/stream/test_failed_appends.py", "tests/stream/test_promises.py", "tests/stream")
_PUBLISH = ("tests/broker/publish",)
_KAFKA = ("tests/gateway/kafka/test_failed_writes.py", "tests/gateway/kafka/test_conversations_produce.py")
_AMQP = ("tests/gateway/amqp/test_failed_writes.py", "tests/gateway/amqp/test_confirms.py")
_PULSAR = (
    "tests/gateway/pulsar/test_failed_writes.py",
    "tests/gateway/pulsar/test_conversations_producing.py",
    "tests/gateway/pulsar/test_delayed_receipts.py",
)
_KAFKA_TRANSACTIONS = (
    "tests/gateway/kafka/test_conversations_transactions.py",
    "tests/gateway/kafka/test_conversations_transactions_2.py",
)
_ROCKETMQ = ("tests/gateway/rocketmq/test_failed_writes.py", "tests/gateway/rocketmq/test_checks.py")
_RECEIVE = ("tests/gateway/rocketmq/test_fifo_groups.py", "tests/gateway/rocketmq/test_receivers.py")

TARGETS: dict[str, tuple[str, ...]] = {
    "stream.appender": _STREAM,
    "runtime.byte_budget": ("tests/runtime/test_byte_budget.py",),
    "ledger.writer": ("tests/ledger/test_writer.py", "tests/ledger/test_quorum.py"),
    "broker.publish.lanes": _PUBLISH,
    "broker.publish.receipts": _PUBLISH,
    "broker.publish.publishing": _PUBLISH,
    "broker.publish.sequences": _PUBLISH,
    "broker.publish.stamped": _PUBLISH,
    "broker.publish.split_batches": _PUBLISH,
    "broker.queues.durable": (*_AMQP, "tests/broker/queues"),
    "gateway.amqp.publish.publishing": _AMQP,
    "gateway.kafka.produce.publishing": (*_KAFKA, "tests/gateway/kafka/test_gaps.py"),
    "gateway.kafka.produce.joining": _KAFKA_TRANSACTIONS,
    "gateway.kafka.produce.gaps": (*_KAFKA, "tests/gateway/kafka/test_gaps.py"),
    "gateway.pulsar.publishing": _PULSAR,
    "gateway.pulsar.acking": ("tests/gateway/pulsar/test_conversations_consuming.py",),
    "broker.dispatch.message_groups": ("tests/broker/dispatch/test_message_groups.py", *_RECEIVE),
    "gateway.rocketmq.consume.links": _RECEIVE,
    "gateway.rocketmq.consume.receiving": _RECEIVE,
    "gateway.rocketmq.handlers.settling": _RECEIVE,
    "gateway.rocketmq.publish.publishing": _ROCKETMQ,
    "gateway.rocketmq.publish.partitions": _ROCKETMQ,
    "gateway.rocketmq.handlers.sending": _ROCKETMQ,
}
