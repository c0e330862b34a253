"""Kafka's messages for configurations; `form` says how to read them."""

from weir.wire.kafka.schema.form import Api, api

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

APIS: tuple[Api, ...] = (
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)
