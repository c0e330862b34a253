"""Objects in a store of the lake, and what is read from them."""

from weir.model.errors.base import WeirError


class ObjectStoreError(WeirError):
    """A store of objects did not do what was asked; trying again may help."""

    hint = (
        "check that the store answers and that the broker's environment has its credentials "
        "(docs/reference/lake.md)"
    )


class ObjectMissingError(ObjectStoreError):
    """The store has no such object."""

    hint = "bring the object back, or move consumers behind it; the lake's table still has its messages"


class SegmentDamagedError(ObjectStoreError):
    """An object is there, and its bytes are not those that were written."""

    hint = "bring the object back, or move consumers behind it; the lake's table still has its messages"
