"""Class 90: a channel whose publishes and acknowledgements count when they are committed."""

from weir.wire.amqp.method_codec import BY_CLIENT, BY_SERVER, Method, method


@method(90, 10, BY_CLIENT)
class Select(Method):
    pass


@method(90, 11, BY_SERVER)
class SelectOk(Method):
    pass


@method(90, 20, BY_CLIENT)
class Commit(Method):
    pass


@method(90, 21, BY_SERVER)
class CommitOk(Method):
    pass


@method(90, 30, BY_CLIENT)
class Rollback(Method):
    pass


@method(90, 31, BY_SERVER)
class RollbackOk(Method):
    pass
