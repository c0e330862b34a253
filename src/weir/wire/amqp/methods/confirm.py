"""Class 85: a channel whose publishes are confirmed."""

from weir.wire.amqp.method_codec import BY_CLIENT, BY_SERVER, Bit, Method, method


@method(85, 10, BY_CLIENT)
class Select(Method):
    no_wait: Bit = False


@method(85, 11, BY_SERVER)
class SelectOk(Method):
    pass
