"""Kafka's messages for topics: metadata, creating, deleting, trimming; `form` says how to read them.

Kafka's messages for configurations; `form` says how to read them.
"""

from weir.wire.kafka.schema.layout import Api, api

METADATA = api(
    3,
    "Metadata",
    "0-13",
    flexible=9,
    request="""
    topics []MetadataRequestTopic null:1+
        topic_id uuid 10+
        name string null:10+
    allow_auto_topic_creation bool 4+ =true
    include_cluster_authorized_operations bool 8-10
    include_topic_authorized_operations bool 8+
    """,
    response="""
    throttle_time_ms int32 3+
    brokers []MetadataResponseBroker
        node_id int32
        host string
        port int32
        rack string 1+ null =null
    cluster_id string 2+ null =null
    controller_id int32 1+ =-1
    topics []MetadataResponseTopic
        error_code int16
        name string null:12+
        topic_id uuid 10+
        is_internal bool 1+
        partitions []MetadataResponsePartition
            error_code int16
            partition_index int32
            leader_id int32
            leader_epoch int32 7+ =-1
            replica_nodes []int32
            isr_nodes []int32
            offline_replicas []int32 5+
        topic_authorized_operations int32 8+ =-2147483648
    cluster_authorized_operations int32 8-10 =-2147483648
    error_code int16 13+
    """,
)

CREATE_TOPICS = api(
    19,
    "CreateTopics",
    "2-7",
    flexible=5,
    request="""
    topics []CreatableTopic
        name string
        num_partitions int32
        replication_factor int16
        assignments []CreatableReplicaAssignment
            partition_index int32
            broker_ids []int32
        configs []CreatableTopicConfig
            name string
            value string null
    timeout_ms int32 =60000
    validate_only bool
    """,
    response="""
    throttle_time_ms int32
    topics []CreatableTopicResult
        name string
        topic_id uuid 7+
        error_code int16
        error_message string null
        topic_config_error_code int16 5+ tag:0
        num_partitions int32 5+ =-1
        replication_factor int16 5+ =-1
        configs []CreatableTopicConfigs 5+ null
            name string
            value string null
            read_only bool
            config_source int8 =-1
            is_sensitive bool
    """,
)

DELETE_TOPICS = api(
    20,
    "DeleteTopics",
    "1-6",
    flexible=4,
    request="""
    topics []DeleteTopicState 6+
        name string null =null
        topic_id uuid
    topic_names []string 1-5
    timeout_ms int32
    """,
    response="""
    throttle_time_ms int32
    responses []DeletableTopicResult
        name string null:6+
        topic_id uuid 6+
        error_code int16
        error_message string 5+ null =null
    """,
)

DELETE_RECORDS = api(
    21,
    "DeleteRecords",
    "0-2",
    flexible=2,
    request="""
    topics []DeleteRecordsTopic
        name string
        partitions []DeleteRecordsPartition
            partition_index int32
            offset int64
    timeout_ms int32
    """,
    response="""
    throttle_time_ms int32
    topics []DeleteRecordsTopicResult
        name string
        partitions []DeleteRecordsPartitionResult
            partition_index int32
            low_watermark int64
            error_code int16
    """,
)

CREATE_PARTITIONS = api(
    37,
    "CreatePartitions",
    "0-3",
    flexible=2,
    request="""
    topics []CreatePartitionsTopic
        name string
        count int32
        assignments []CreatePartitionsAssignment null
            broker_ids []int32
    timeout_ms int32
    validate_only bool
    """,
    response="""
    throttle_time_ms int32
    results []CreatePartitionsTopicResult
        name string
        error_code int16
        error_message string null =null
    """,
)

_TOPIC_APIS: tuple[Api, ...] = (
    METADATA,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DELETE_RECORDS,
    CREATE_PARTITIONS,
)

DESCRIBE_CONFIGS = api(
    32,
    "DescribeConfigs",
    "1-4",
    flexible=4,
    request="""
    resources []DescribeConfigsResource
        resource_type int8
        resource_name string
        configuration_keys []string null
    include_synonyms bool
    include_documentation bool 3+
    """,
    response="""
    throttle_time_ms int32
    results []DescribeConfigsResult
        error_code int16
        error_message string null
        resource_type int8
        resource_name string
        configs []DescribeConfigsResourceResult
            name string
            value string null
            read_only bool
            config_source int8 =-1
            is_sensitive bool
            synonyms []DescribeConfigsSynonym
                name string
                value string null
                source int8
            config_type int8 3+
            documentation string 3+ null
    """,
)

ALTER_CONFIGS = api(
    33,
    "AlterConfigs",
    "0-2",
    flexible=2,
    request="""
    resources []AlterConfigsResource
        resource_type int8
        resource_name string
        configs []AlterableConfig
            name string
            value string null
    validate_only bool
    """,
    response="""
    throttle_time_ms int32
    responses []AlterConfigsResourceResponse
        error_code int16
        error_message string null
        resource_type int8
        resource_name string
    """,
)

INCREMENTAL_ALTER_CONFIGS = api(
    44,
    "IncrementalAlterConfigs",
    "0-1",
    flexible=1,
    request="""
    resources []AlterConfigsResource
        resource_type int8
        resource_name string
        configs []AlterableConfig
            name string
            config_operation int8
            value string null
    validate_only bool
    """,
    response="""
    throttle_time_ms int32
    responses []AlterConfigsResourceResponse
        error_code int16
        error_message string null
        resource_type int8
        resource_name string
    """,
)

_CONFIG_APIS: tuple[Api, ...] = (
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)

APIS: tuple[Api, ...] = (*_TOPIC_APIS, *_CONFIG_APIS)
