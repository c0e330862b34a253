"""Class 40: exchanges, and their bindings to other exchanges."""

from weir.wire.amqp.method_codec import BY_CLIENT, BY_SERVER, Bit, FieldTable, Method, ShortStr, Wire, method
from weir.wire.amqp.tables import NO_FIELDS

_TICKET = (Wire.SHORT,)


@method(40, 10, BY_CLIENT, first=_TICKET)
class Declare(Method):
    exchange: ShortStr
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = NO_FIELDS


@method(40, 11, BY_SERVER)
class DeclareOk(Method):
    pass


@method(40, 20, BY_CLIENT, first=_TICKET)
class Delete(Method):
    exchange: ShortStr
    if_unused: Bit = False
    no_wait: Bit = False


@method(40, 21, BY_SERVER)
class DeleteOk(Method):
    pass


@method(40, 30, BY_CLIENT, first=_TICKET)
class Bind(Method):
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = NO_FIELDS


@method(40, 31, BY_SERVER)
class BindOk(Method):
    pass


@method(40, 40, BY_CLIENT, first=_TICKET)
class Unbind(Method):
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = NO_FIELDS


#: Not 41: so it is in RabbitMQ, and in its clients.
@method(40, 51, BY_SERVER)
class UnbindOk(Method):
    pass
