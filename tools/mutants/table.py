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
    "runtime.budgets": ("tests/runtime/test_byte_budget.py",),
    "ledger.writer": ("tests/ledger/test_writer.py", "tests/ledger/test_quorum.py"),
    "broker.publish.publish_order": _PUBLISH,
    "broker.publish.publisher": _PUBLISH,
    "broker.publish.deduplication": _PUBLISH,
    "broker.publish.idempotent": _PUBLISH,
    "broker.publish.split_batches": _PUBLISH,
    "broker.queues.durable_queue": (*_AMQP, "tests/broker/queues"),
    "gateway.amqp.publisher": _AMQP,
    "gateway.kafka.produce.producers": (*_KAFKA, "tests/gateway/kafka/test_gaps.py"),
    "gateway.kafka.produce.sequence_gaps": (*_KAFKA, "tests/gateway/kafka/test_gaps.py"),
    "gateway.pulsar.producers": _PULSAR,
    "gateway.pulsar.acknowledgments": ("tests/gateway/pulsar/test_conversations_consuming.py",),
    "broker.subscriptions.ready_messages": ("tests/broker/dispatch/test_message_groups.py", *_RECEIVE),
    "gateway.rocketmq.group_topic": _RECEIVE,
    "gateway.rocketmq.handlers.acknowledge": _RECEIVE,
    "gateway.rocketmq.publisher": _ROCKETMQ,
    "gateway.rocketmq.handlers.send": _ROCKETMQ,
}
