"""Kafka's messages for the cluster and what its brokers can do; `form` says how to read them.

Kafka's messages for authentication; `form` says how to read them.
"""

from weir.wire.kafka.schema.layout import Api, api

API_VERSIONS = api(
    18,
    "ApiVersions",
    "0-5",
    flexible=3,
    request="""
    client_software_name string 3+
    client_software_version string 3+
    cluster_id string 5+ null =null
    node_id int32 5+ =-1
    """,
    response="""
    error_code int16
    api_keys []ApiVersion
        api_key int16
        min_version int16
        max_version int16
    throttle_time_ms int32 1+
    supported_features []SupportedFeatureKey 3+ tag:0
        name string
        min_version int16
        max_version int16
    finalized_features_epoch int64 3+ =-1 tag:1
    finalized_features []FinalizedFeatureKey 3+ tag:2
        name string
        max_version_level int16
        min_version_level int16
    zk_migration_ready bool 3+ tag:3
    """,
)

DESCRIBE_ACLS = api(
    29,
    "DescribeAcls",
    "1-3",
    flexible=2,
    request="""
    resource_type_filter int8
    resource_name_filter string null
    pattern_type_filter int8 =3
    principal_filter string null
    host_filter string null
    operation int8
    permission_type int8
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    error_message string null
    resources []DescribeAclsResource
        resource_type int8
        resource_name string
        pattern_type int8 =3
        acls []AclDescription
            principal string
            host string
            operation int8
            permission_type int8
    """,
)

DESCRIBE_LOG_DIRS = api(
    35,
    "DescribeLogDirs",
    "1-5",
    flexible=2,
    request="""
    topics []DescribableLogDirTopic null
        topic string
        partitions []int32
    """,
    response="""
    throttle_time_ms int32
    error_code int16 3+
    results []DescribeLogDirsResult
        error_code int16
        log_dir string
        topics []DescribeLogDirsTopic
            name string
            partitions []DescribeLogDirsPartition
                partition_index int32
                partition_size int64
                offset_lag int64
                is_future_key bool
        total_bytes int64 4+ =-1
        usable_bytes int64 4+ =-1
        is_cordoned bool 5+
    """,
)

DESCRIBE_CLUSTER = api(
    60,
    "DescribeCluster",
    "0-2",
    flexible=0,
    request="""
    include_cluster_authorized_operations bool
    endpoint_type int8 1+ =1
    include_fenced_brokers bool 2+
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    error_message string null =null
    endpoint_type int8 1+ =1
    cluster_id string
    controller_id int32 =-1
    brokers []DescribeClusterBroker
        broker_id int32
        host string
        port int32
        rack string null =null
        is_fenced bool 2+
    cluster_authorized_operations int32 =-2147483648
    """,
)

_CLUSTER_APIS: tuple[Api, ...] = (
    API_VERSIONS,
    DESCRIBE_ACLS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_CLUSTER,
)

SASL_HANDSHAKE = api(
    17,
    "SaslHandshake",
    "0-1",
    flexible=None,
    request="""
    mechanism string
    """,
    response="""
    error_code int16
    mechanisms []string
    """,
)

SASL_AUTHENTICATE = api(
    36,
    "SaslAuthenticate",
    "0-2",
    flexible=2,
    request="""
    auth_bytes bytes
    """,
    response="""
    error_code int16
    error_message string null
    auth_bytes bytes
    session_lifetime_ms int64 1+
    """,
)

_SASL_APIS: tuple[Api, ...] = (
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)

APIS: tuple[Api, ...] = (*_CLUSTER_APIS, *_SASL_APIS)
