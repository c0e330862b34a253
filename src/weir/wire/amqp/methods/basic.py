"""Class 60: messages are published, returned, consumed, fetched, acknowledged and refused."""

from weir.wire.amqp.method_codec import (
    BY_BOTH,
    BY_CLIENT,
    BY_SERVER,
    Bit,
    FieldTable,
    Long,
    LongLong,
    Method,
    Short,
    ShortStr,
    Wire,
    method,
)
from weir.wire.amqp.tables import NO_FIELDS

_TICKET = (Wire.SHORT,)


@method(60, 10, BY_CLIENT)
class Qos(Method):
    """0 is no limit. `global_`: for the channel; else for each consumer that comes after."""

    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


@method(60, 11, BY_SERVER)
class QosOk(Method):
    pass


@method(60, 20, BY_CLIENT, first=_TICKET)
class Consume(Method):
    queue: ShortStr
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = NO_FIELDS


@method(60, 21, BY_SERVER)
class ConsumeOk(Method):
    consumer_tag: ShortStr


#: From a server: the queue is gone, or has another leader.
@method(60, 30, BY_BOTH)
class Cancel(Method):
    consumer_tag: ShortStr
    no_wait: Bit = False


@method(60, 31, BY_BOTH)
class CancelOk(Method):
    consumer_tag: ShortStr


@method(60, 40, BY_CLIENT, content=True, first=_TICKET)
class Publish(Method):
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@method(60, 50, BY_SERVER, content=True)
class Return(Method):
    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 60, BY_SERVER, content=True)
class Deliver(Method):
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 70, BY_CLIENT, first=_TICKET)
class Get(Method):
    queue: ShortStr
    no_ack: Bit = False


@method(60, 71, BY_SERVER, content=True)
class GetOk(Method):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    #: How many are left.
    message_count: Long


@method(60, 72, BY_SERVER, last=(Wire.SHORTSTR,))
class GetEmpty(Method):
    pass


#: From a server: what was published is safe.
@method(60, 80, BY_BOTH)
class Ack(Method):
    delivery_tag: LongLong
    multiple: Bit = False


@method(60, 90, BY_CLIENT)
class Reject(Method):
    delivery_tag: LongLong
    requeue: Bit = True


@method(60, 100, BY_CLIENT)
class RecoverAsync(Method):
    requeue: Bit = False


@method(60, 110, BY_CLIENT)
class Recover(Method):
    requeue: Bit = False


@method(60, 111, BY_SERVER)
class RecoverOk(Method):
    pass


#: From a server: what was published is lost.
@method(60, 120, BY_BOTH)
class Nack(Method):
    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit = True
