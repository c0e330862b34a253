"""Class 30: tickets, of versions before 0-9-1; RabbitMQ still gives one to a client that asks."""

from weir.wire.amqp.method_codec import BY_CLIENT, BY_SERVER, Bit, Method, Short, ShortStr, method


@method(30, 10, BY_CLIENT)
class Request(Method):
    realm: ShortStr = "/data"
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@method(30, 11, BY_SERVER)
class RequestOk(Method):
    ticket: Short = 1
