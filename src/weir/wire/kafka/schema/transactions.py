"""Kafka's messages for idempotent and transactional producers; `form` says how to read them."""

from weir.wire.kafka.schema.layout import Api, api

INIT_PRODUCER_ID = api(
    22,
    "InitProducerId",
    "0-6",
    flexible=2,
    request="""
    transactional_id string null
    transaction_timeout_ms int32
    producer_id int64 3+ =-1
    producer_epoch int16 3+ =-1
    enable2_pc bool 6+
    keep_prepared_txn bool 6+
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    producer_id int64 =-1
    producer_epoch int16
    ongoing_txn_producer_id int64 6+ =-1
    ongoing_txn_producer_epoch int16 6+ =-1
    """,
)

ADD_PARTITIONS_TO_TXN = api(
    24,
    "AddPartitionsToTxn",
    "0-5",
    flexible=3,
    request="""
    transactions []AddPartitionsToTxnTransaction 4+
        transactional_id string
        producer_id int64
        producer_epoch int16
        verify_only bool
        topics []AddPartitionsToTxnTopic
            name string
            partitions []int32
    v3_and_below_transactional_id string 0-3
    v3_and_below_producer_id int64 0-3
    v3_and_below_producer_epoch int16 0-3
    v3_and_below_topics []AddPartitionsToTxnTopic 0-3
    """,
    response="""
    throttle_time_ms int32
    error_code int16 4+
    results_by_transaction []AddPartitionsToTxnResult 4+
        transactional_id string
        topic_results []AddPartitionsToTxnTopicResult
            name string
            results_by_partition []AddPartitionsToTxnPartitionResult
                partition_index int32
                partition_error_code int16
    results_by_topic_v3_and_below []AddPartitionsToTxnTopicResult 0-3
    """,
)

ADD_OFFSETS_TO_TXN = api(
    25,
    "AddOffsetsToTxn",
    "0-4",
    flexible=3,
    request="""
    transactional_id string
    producer_id int64
    producer_epoch int16
    group_id string
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    """,
)

END_TXN = api(
    26,
    "EndTxn",
    "0-5",
    flexible=3,
    request="""
    transactional_id string
    producer_id int64
    producer_epoch int16
    committed bool
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    producer_id int64 5+ =-1
    producer_epoch int16 5+ =-1
    """,
)

TXN_OFFSET_COMMIT = api(
    28,
    "TxnOffsetCommit",
    "0-6",
    flexible=3,
    request="""
    transactional_id string
    group_id string
    producer_id int64
    producer_epoch int16
    generation_id_or_member_epoch int32 3+ =-1
    member_id string 3+
    group_instance_id string 3+ null =null
    topics []TxnOffsetCommitRequestTopic
        name string 0-5
        topic_id uuid 6+
        partitions []TxnOffsetCommitRequestPartition
            partition_index int32
            committed_offset int64
            committed_leader_epoch int32 2+ =-1
            committed_metadata string null
    """,
    response="""
    throttle_time_ms int32
    topics []TxnOffsetCommitResponseTopic
        name string 0-5
        topic_id uuid 6+
        partitions []TxnOffsetCommitResponsePartition
            partition_index int32
            error_code int16
    """,
)

DESCRIBE_PRODUCERS = api(
    61,
    "DescribeProducers",
    "0-0",
    flexible=0,
    request="""
    topics []TopicRequest
        name string
        partition_indexes []int32
    """,
    response="""
    throttle_time_ms int32
    topics []TopicResponse
        name string
        partitions []PartitionResponse
            partition_index int32
            error_code int16
            error_message string null =null
            active_producers []ProducerState
                producer_id int64
                producer_epoch int32
                last_sequence int32 =-1
                last_timestamp int64 =-1
                coordinator_epoch int32
                current_txn_start_offset int64 =-1
    """,
)

DESCRIBE_TRANSACTIONS = api(
    65,
    "DescribeTransactions",
    "0-0",
    flexible=0,
    request="""
    transactional_ids []string
    """,
    response="""
    throttle_time_ms int32
    transaction_states []TransactionState
        error_code int16
        transactional_id string
        transaction_state string
        transaction_timeout_ms int32
        transaction_start_time_ms int64
        producer_id int64
        producer_epoch int16
        topics []TopicData
            topic string
            partitions []int32
    """,
)

LIST_TRANSACTIONS = api(
    66,
    "ListTransactions",
    "0-2",
    flexible=0,
    request="""
    state_filters []string
    producer_id_filters []int64
    duration_filter int64 1+ =-1
    transactional_id_pattern string 2+ null =null
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    unknown_state_filters []string
    transaction_states []TransactionState
        transactional_id string
        producer_id int64
        transaction_state string
    """,
)

APIS: tuple[Api, ...] = (
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
)
