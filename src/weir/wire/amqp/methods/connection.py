"""Class 10: a connection is opened, tuned, blocked and closed. All on channel 0."""

from weir.wire.amqp.method_codec import (
    BY_BOTH,
    BY_CLIENT,
    BY_SERVER,
    FieldTable,
    Long,
    LongStr,
    Method,
    Octet,
    Short,
    ShortStr,
    Wire,
    method,
)
from weir.wire.amqp.tables import NO_FIELDS


@method(10, 10, BY_SERVER)
class Start(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: FieldTable = NO_FIELDS
    #: Names, with spaces between them; so are the locales.
    mechanisms: LongStr = b"PLAIN AMQPLAIN"
    locales: LongStr = b"en_US"


@method(10, 11, BY_CLIENT)
class StartOk(Method):
    client_properties: FieldTable = NO_FIELDS
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


@method(10, 20, BY_SERVER)
class Secure(Method):
    challenge: LongStr = b""


@method(10, 21, BY_CLIENT)
class SecureOk(Method):
    response: LongStr = b""


@method(10, 30, BY_SERVER)
class Tune(Method):
    """0 is no limit, and no heartbeat. The heartbeat is in seconds."""

    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 31, BY_CLIENT)
class TuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 40, BY_CLIENT, last=(Wire.SHORTSTR, Wire.BIT))
class Open(Method):
    virtual_host: ShortStr = "/"


@method(10, 41, BY_SERVER, last=(Wire.SHORTSTR,))
class OpenOk(Method):
    pass


@method(10, 50, BY_BOTH)
class Close(Method):
    """`failing_class` and `failing_method` name what was at fault; 0 if it was no method."""

    reply_code: Short
    reply_text: ShortStr = ""
    failing_class: Short = 0
    failing_method: Short = 0


@method(10, 51, BY_BOTH)
class CloseOk(Method):
    pass


@method(10, 60, BY_SERVER)
class Blocked(Method):
    reason: ShortStr = ""


@method(10, 61, BY_SERVER)
class Unblocked(Method):
    pass


@method(10, 70, BY_CLIENT)
class UpdateSecret(Method):
    new_secret: LongStr
    reason: ShortStr = ""


@method(10, 71, BY_SERVER)
class UpdateSecretOk(Method):
    pass
