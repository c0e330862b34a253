"""Where this Weir listens and keeps its data: what a program on the same machine asks before it starts."""

from msgspec import Struct

from weir.admin.context import AdminContext
from weir.admin.routing import Call, Route


class AddressesAnswer(Struct, rename="camel"):
    """Empty where it does not listen."""

    pulsar: str
    pulsar_tls: str
    kafka: str
    kafka_tls: str
    http: str
    https: str
    #: The data folder, on the machine of this broker; for superusers.
    data: str


class Addresses:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/weir/v1/addresses",
                "Every listener; for superusers, the data folder too.",
                self._get,
                answer=AddressesAnswer,
                tag="brokers",
            )
        ]

    async def _get(self, call: Call) -> AddressesAnswer:
        urls = self._context.urls
        data = urls.data if self._context.authoriser.may_see_machine(call.role) else ""
        names = ("pulsar", "pulsar_tls", "kafka", "kafka_tls", "http", "https")
        return AddressesAnswer(**{name: urls.url(name) for name in names}, data=data)
