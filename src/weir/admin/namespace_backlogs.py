"""What is done to the subscriptions of all topics of a namespace, or of one of its bundles, at once."""

from collections.abc import Awaitable, Callable

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TOPIC, NAMESPACE, namespace_of, subscription_of, topic_of
from weir.admin.routing import Call, Route
from weir.broker.api import BundleName
from weir.model.registry import Action
from weir.model.topics import Domain, TopicName

_TAG = "namespaces"
#: Pulsar has no such call on one topic; brokers ask it of each other.
_ONE = "/admin/weir/v1/backlog/persistent/{tenant}/{namespace}/{topic}"


class NamespaceBacklogs:
    """Each topic is loaded for it by the broker that has it."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._clear_one_route = self._on_topic("POST", f"{_ONE}/clear", "Skip everything.", self._clear_one)
        self._clear_named_route = self._on_topic(
            "POST", f"{_ONE}/clear/{{subscription}}", "Skip everything of a subscription.", self._clear_one
        )
        self._unsubscribe_route = self._on_topic(
            "DELETE", f"{_ONE}/subscription/{{subscription}}", "Delete a subscription.", self._unsubscribe_one
        )

    def _on_topic(self, method: str, path: str, summary: str, action: Callable[[Call], Awaitable[None]]) -> Route:
        return Route(method, path, summary, action, refusals=ABOUT_TOPIC, tag=_TAG)

    def routes(self) -> list[Route]:
        routes = [self._clear_one_route, self._clear_named_route, self._unsubscribe_route]
        for base, where in ((NAMESPACE, "everywhere"), (f"{NAMESPACE}/{{bundle}}", "in a bundle")):
            routes += [
                Route("POST", f"{base}/{path}", f"{summary}, {where}.", action, refusals=ABOUT_NAMESPACE, tag=_TAG)
                for path, summary, action in (
                    ("clearBacklog", "Skip everything", self._clear),
                    ("clearBacklog/{subscription}", "Skip everything of one subscription", self._clear),
                    ("unsubscribe/{subscription}", "Delete one subscription", self._unsubscribe),
                )
            ]
        return routes

    async def _topics(self, call: Call) -> list[TopicName]:
        """The topics that store messages and that the call is about."""
        name = namespace_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        bundle = BundleName.of_range(name, call.path["bundle"]) if "bundle" in call.path else None
        if bundle is not None:
            self._context.broker.bundles.info(bundle)
        return [
            topic
            async for some in self._context.registry.topic_names(name, domain=Domain.PERSISTENT)
            for topic in some
            if bundle is None or bundle.holds(topic)
        ]

    async def _clear(self, call: Call) -> None:
        route = self._clear_named_route if "subscription" in call.path else self._clear_one_route
        await self._context.on_topics(call, await self._topics(call), route=route)

    async def _unsubscribe(self, call: Call) -> None:
        await self._context.on_topics(call, await self._topics(call), route=self._unsubscribe_route)

    # --- one topic ----------------------------------------------------------------------------------------------

    def _consumed(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        return name

    async def _clear_one(self, call: Call) -> None:
        topic = await self._context.stored_one(self._consumed(call))
        only = subscription_of(call.path) if "subscription" in call.path else None
        for subscription in list(topic.subscriptions.values()):
            if only in (None, subscription.name):
                subscription.skip_all()
                await subscription.persisted()

    async def _unsubscribe_one(self, call: Call) -> None:
        """Fine if the topic has none of that name."""
        topic, wanted = await self._context.stored_one(self._consumed(call)), subscription_of(call.path)
        if wanted in topic.subscriptions:
            await topic.delete_subscription(wanted)
