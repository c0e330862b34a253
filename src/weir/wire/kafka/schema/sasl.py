"""Kafka's messages for authentication; `form` says how to read them."""

from weir.wire.kafka.schema.form import Api, api

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

APIS: tuple[Api, ...] = (
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)
