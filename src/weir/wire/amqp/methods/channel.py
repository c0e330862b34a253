"""Class 20: channels are opened, paused and closed."""

from weir.wire.amqp.method_codec import BY_BOTH, BY_CLIENT, BY_SERVER, Bit, Method, Short, ShortStr, Wire, method


@method(20, 10, BY_CLIENT, last=(Wire.SHORTSTR,))
class Open(Method):
    pass


@method(20, 11, BY_SERVER, last=(Wire.LONGSTR,))
class OpenOk(Method):
    pass


@method(20, 20, BY_BOTH)
class Flow(Method):
    active: Bit


@method(20, 21, BY_BOTH)
class FlowOk(Method):
    active: Bit


@method(20, 40, BY_BOTH)
class Close(Method):
    """`failing_class` and `failing_method` name what was at fault; 0 if it was no method."""

    reply_code: Short
    reply_text: ShortStr = ""
    failing_class: Short = 0
    failing_method: Short = 0


@method(20, 41, BY_BOTH)
class CloseOk(Method):
    pass
