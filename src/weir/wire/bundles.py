"""Bundles' boundaries and claims as values in the metadata store."""

from weir.model.bundles import Boundaries, BundleClaim
from weir.model.errors import InvalidNameError, WireError
from weir.wire.metadata import dump_fields, load_fields


def encode_boundaries(boundaries: Boundaries) -> bytes:
    return dump_fields({"points": list(boundaries.points)})


def decode_boundaries(data: bytes) -> Boundaries:
    found = load_fields(data, "a namespace's bundles")
    try:
        return Boundaries(tuple(_number(point) for point in found["points"]))
    except (KeyError, ValueError, TypeError, OverflowError, InvalidNameError) as bad:
        raise WireError(f"a namespace's bundles are malformed: {bad!r}") from bad


def encode_claim(claim: BundleClaim) -> bytes:
    """What is not said is not written: there are many."""
    return dump_fields(
        {
            "owner": claim.owner,
            "instance": claim.instance,
            "epoch": claim.epoch,
            **({"next": claim.next} if claim.next else {}),
            **({"split": claim.split} if claim.split else {}),
        }
    )


def decode_claim(data: bytes) -> BundleClaim:
    found = load_fields(data, "a bundle's claim")
    try:
        return BundleClaim(
            _text(found["owner"]),
            _text(found["instance"]),
            _number(found["epoch"]),
            _text(found.get("next", "")),
            _number(found.get("split", 0)),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as bad:
        raise WireError(f"a bundle's claim is malformed: {bad!r}") from bad


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of text")
    return item


def _number(item: object) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of a whole number")
    return item
