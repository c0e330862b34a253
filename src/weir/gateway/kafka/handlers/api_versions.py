"""ApiVersions: which APIs are served, and in which versions."""

import re

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.connection.versions import api_versions as response
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_SOFTWARE_SINCE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


@handler(ApiKey.API_VERSIONS, versions=(0, 4), before_auth=True)
async def api_versions(session: Session, request: m.ApiVersionsRequest, version: int) -> m.ApiVersionsResponse:
    if version >= _SOFTWARE_SINCE:
        named = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in named):
            return response(Code.INVALID_REQUEST, version)
    return response(version=version)
