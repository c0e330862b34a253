"""Handlers of SaslHandshake and SaslAuthenticate: PLAIN with a password or a token."""

from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.authentication import MECHANISMS
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.session import Session
from weir.model.errors import NotAuthenticatedError
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey


@handler(ApiKey.SASL_HANDSHAKE, versions=(0, 1), before_auth=True)
async def sasl_handshake(
    session: Session, request: m.SaslHandshakeRequest, version: int
) -> m.SaslHandshakeResponse:
    known = request.mechanism in MECHANISMS
    session.credentials.shaken = known
    session.credentials.bare = known and version == 0
    code = Code.NONE if known else Code.UNSUPPORTED_SASL_MECHANISM
    return m.SaslHandshakeResponse(error_code=code, mechanisms=list(MECHANISMS))


@handler(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), before_auth=True)
async def sasl_authenticate(
    session: Session, request: m.SaslAuthenticateRequest, version: int
) -> m.SaslAuthenticateResponse:
    credentials = session.credentials
    if not credentials.shaken:
        return m.SaslAuthenticateResponse(
            error_code=Code.ILLEGAL_SASL_STATE, error_message="send SaslHandshake first", auth_bytes=b""
        )
    credentials.shaken = False
    try:
        lifetime_ms = await credentials.prove(request.auth_bytes)
    except NotAuthenticatedError as refused:
        session.end_after_answer(refused)
        return m.SaslAuthenticateResponse(
            error_code=Code.SASL_AUTHENTICATION_FAILED, error_message=str(refused), auth_bytes=b""
        )
    session.known()
    return m.SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=lifetime_ms)
