"""Which tests must notice a change of which module: modules below `weir`, and files or folders of tests."""

#: The tests that fail first come first.
_STREAM = ("tests/stream/test_failed_appends.py", "tests/stream/test_promises.py", "tests/stream")
_PUBLISH = ("tests/broker/publish",)
_KAFKA = ("tests/gateway/kafka/test_failed_writes.py", "tests/gateway/kafka/test_conversations_produce.py")
_AMQP = ("tests/gateway/amqp/test_failed_writes.py", "tests/gateway/amqp/test_confirms.py")
_PULSAR = ("tests/gateway/pulsar/test_conversations_producing.py", "tests/gateway/pulsar/test_delayed_receipts.py")
_ROCKETMQ = ("tests/gateway/rocketmq/test_failed_writes.py", "tests/gateway/rocketmq/test_checks.py")

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
    "broker.queues.durable": _AMQP,
    "gateway.amqp.publish.publishing": _AMQP,
    "gateway.kafka.produce.publishing": _KAFKA,
    "gateway.kafka.produce.joining": _KAFKA,
    "gateway.kafka.produce.gaps": (*_KAFKA, "tests/gateway/kafka/test_gaps.py"),
    "gateway.pulsar.publishing": _PULSAR,
    "gateway.pulsar.acking": ("tests/gateway/pulsar/test_conversations_consuming.py",),
    "gateway.rocketmq.publish.publishing": _ROCKETMQ,
    "gateway.rocketmq.publish.partitions": _ROCKETMQ,
    "gateway.rocketmq.handlers.sending": _ROCKETMQ,
}
