"""Kafka's messages for groups' committed offsets; `form` says how to read them."""

from weir.wire.kafka.schema.form import Api, api

OFFSET_COMMIT = api(
    8,
    "OffsetCommit",
    "2-10",
    flexible=8,
    request="""
    group_id string
    generation_id_or_member_epoch int32 =-1
    member_id string
    group_instance_id string 7+ null =null
    retention_time_ms int64 2-4 =-1
    topics []OffsetCommitRequestTopic
        name string 2-9
        topic_id uuid 10+
        partitions []OffsetCommitRequestPartition
            partition_index int32
            committed_offset int64
            committed_leader_epoch int32 6+ =-1
            committed_metadata string null
    """,
    response="""
    throttle_time_ms int32 3+
    topics []OffsetCommitResponseTopic
        name string 2-9
        topic_id uuid 10+
        partitions []OffsetCommitResponsePartition
            partition_index int32
            error_code int16
    """,
)

OFFSET_FETCH = api(
    9,
    "OffsetFetch",
    "1-10",
    flexible=6,
    request="""
    group_id string 1-7
    topics []OffsetFetchRequestTopic 1-7 null:2-7
        name string
        partition_indexes []int32
    groups []OffsetFetchRequestGroup 8+
        group_id string
        member_id string 9+ null =null
        member_epoch int32 9+ =-1
        topics []OffsetFetchRequestTopics null
            name string 8-9
            topic_id uuid 10+
            partition_indexes []int32
    require_stable bool 7+
    """,
    response="""
    throttle_time_ms int32 3+
    topics []OffsetFetchResponseTopic 1-7
        name string
        partitions []OffsetFetchResponsePartition
            partition_index int32
            committed_offset int64
            committed_leader_epoch int32 5-7 =-1
            metadata string null
            error_code int16
    error_code int16 2-7
    groups []OffsetFetchResponseGroup 8+
        group_id string
        topics []OffsetFetchResponseTopics
            name string 8-9
            topic_id uuid 10+
            partitions []OffsetFetchResponsePartitions
                partition_index int32
                committed_offset int64
                committed_leader_epoch int32 =-1
                metadata string null
                error_code int16
        error_code int16
    """,
)

OFFSET_DELETE = api(
    47,
    "OffsetDelete",
    "0-0",
    flexible=None,
    request="""
    group_id string
    topics []OffsetDeleteRequestTopic
        name string
        partitions []OffsetDeleteRequestPartition
            partition_index int32
    """,
    response="""
    error_code int16
    throttle_time_ms int32
    topics []OffsetDeleteResponseTopic
        name string
        partitions []OffsetDeleteResponsePartition
            partition_index int32
            error_code int16
    """,
)

APIS: tuple[Api, ...] = (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_DELETE,
)
