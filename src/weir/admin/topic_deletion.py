"""Deleting topics and namespaces, with everything that belongs to them."""

from weir.admin.context import AdminContext
from weir.model.errors import TopicNotFoundError
from weir.model.topics import NamespaceName, TopicName


async def delete_topic(context: AdminContext, name: TopicName, *, force: bool) -> None:
    """With its messages, subscriptions, grants and schemas."""
    await context.broker.delete(name, force=force)


async def delete_namespace(context: AdminContext, name: NamespaceName, *, force: bool) -> None:
    """NotEmptyError if it has topics, unless forced."""
    context.registry.namespaces.get(name)
    if force:
        async for record in context.registry.topics.of(name):
            try:
                await delete_topic(context, record.name, force=True)
            except TopicNotFoundError:
                continue  # somebody else was faster
    await context.registry.delete_namespace(name)
