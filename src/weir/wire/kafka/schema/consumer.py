"""What consumers put into JoinGroup and SyncGroup; `form` says how to read it."""

from weir.wire.kafka.schema.form import Layout, layout

SUBSCRIPTION = layout(
    "ConsumerProtocolSubscription",
    "0-3",
    """
    topics []string
    user_data bytes null =null
    owned_partitions []TopicPartition 1+
        topic string
        partitions []int32
    generation_id int32 2+ =-1
    rack_id string 3+ null =null
    """,
)

ASSIGNMENT = layout(
    "ConsumerProtocolAssignment",
    "0-3",
    """
    assigned_partitions []TopicPartition
        topic string
        partitions []int32
    user_data bytes null =null
    """,
)

LAYOUTS: tuple[Layout, ...] = (SUBSCRIPTION, ASSIGNMENT)
