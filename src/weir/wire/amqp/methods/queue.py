"""Class 50: queues and their bindings. A queue named "" is the last one declared on the channel."""

from weir.wire.amqp.method_codec import BY_CLIENT, BY_SERVER, Bit, FieldTable, Long, Method, ShortStr, Wire, method
from weir.wire.amqp.tables import NO_FIELDS

_TICKET = (Wire.SHORT,)


@method(50, 10, BY_CLIENT, first=_TICKET)
class Declare(Method):
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = NO_FIELDS


@method(50, 11, BY_SERVER)
class DeclareOk(Method):
    queue: ShortStr
    message_count: Long
    consumer_count: Long


@method(50, 20, BY_CLIENT, first=_TICKET)
class Bind(Method):
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = NO_FIELDS


@method(50, 21, BY_SERVER)
class BindOk(Method):
    pass


@method(50, 50, BY_CLIENT, first=_TICKET)
class Unbind(Method):
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr = ""
    arguments: FieldTable = NO_FIELDS


@method(50, 51, BY_SERVER)
class UnbindOk(Method):
    pass


@method(50, 30, BY_CLIENT, first=_TICKET)
class Purge(Method):
    queue: ShortStr
    no_wait: Bit = False


@method(50, 31, BY_SERVER)
class PurgeOk(Method):
    message_count: Long


@method(50, 40, BY_CLIENT, first=_TICKET)
class Delete(Method):
    queue: ShortStr
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@method(50, 41, BY_SERVER)
class DeleteOk(Method):
    message_count: Long
