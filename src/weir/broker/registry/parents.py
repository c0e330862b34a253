"""How something that holds others is deleted while brokers may be adding to it, without transactions.

The deleter marks it, then looks for children; whoever adds a child puts it first, then looks whether the parent
still stands unmarked. Whatever the order of events, at least one of the two sees the other and steps back.
"""

from collections.abc import Callable
from typing import TypeVar

from weir.broker.registry.mirror import Mirror
from weir.meta.interfaces import MetaStore
from weir.model.errors import MetaConflictError, NotEmptyError

T = TypeVar("T")


async def delete_if_empty(
    meta: MetaStore, mirror: Mirror[T], key: str, *, children: str, mark: Callable[[T, bool], T]
) -> None:
    """Delete the key unless there is something under the prefix `children` (NotEmptyError).

    `mark(value, deleting)` returns the value with the mark as asked, the same object if it has it already.
    MetaKeyMissingError if there is no such key.
    """
    while True:
        marked = await mirror.change(key, lambda value: mark(value, True))
        if (await meta.page(children, limit=1)).items:
            await mirror.change(key, lambda value: mark(value, False))
            raise NotEmptyError(f"{children} is not empty")
        try:
            await mirror.delete(key, expect=marked.version)
        except MetaConflictError:
            continue  # somebody changed it meanwhile, perhaps only its mark
        return
