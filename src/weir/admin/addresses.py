"""Where this Weir and its cluster listen, and where it keeps its data: what a program asks before it starts."""

from msgspec import Struct

from weir.admin.context import AdminContext
from weir.admin.routing import Call, Route

_NAMES = ("pulsar", "pulsar_tls", "kafka", "kafka_tls", "amqp", "amqps", "http", "https")


class BrokerAddresses(Struct, rename="camel"):
    """Empty where it does not listen."""

    pulsar: str
    pulsar_tls: str
    kafka: str
    kafka_tls: str
    amqp: str
    amqps: str
    http: str
    https: str


class AddressesAnswer(BrokerAddresses, rename="camel"):
    #: The data folder, on the machine of this broker; for superusers.
    data: str
    #: The cluster's other brokers.
    others: list[BrokerAddresses]


class Addresses:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/weir/v1/addresses",
                "Every listener of every broker; for superusers, the data folder too.",
                self._get,
                answer=AddressesAnswer,
                tag="brokers",
            )
        ]

    async def _get(self, call: Call) -> AddressesAnswer:
        urls = self._context.urls
        data = urls.data if self._context.authoriser.may_see_machine(call.role) else ""
        others = [
            BrokerAddresses(**{name: info.listeners.get(name, "") for name in _NAMES})
            for info in self._context.broker.brokers()
            if info.broker_id != self._context.broker_id
        ]
        return AddressesAnswer(**{name: urls.url(name) for name in _NAMES}, data=data, others=others)
