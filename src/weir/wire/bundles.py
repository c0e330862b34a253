"""Bundles' boundaries and claims as values in the metadata store."""

from weir.model.bundles import Boundaries, BundleClaim
from weir.model.errors import InvalidNameError, WireError
from weir.wire.metadata import dump_fields, load_fields
from weir.wire.stored_values import number, text


def encode_boundaries(boundaries: Boundaries) -> bytes:
    return dump_fields({"points": list(boundaries.points)})


def decode_boundaries(data: bytes) -> Boundaries:
    found = load_fields(data, "a namespace's bundles")
    try:
        return Boundaries(tuple(number(point) for point in found["points"]))
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
            text(found["owner"]),
            text(found["instance"]),
            number(found["epoch"]),
            text(found.get("next", "")),
            number(found.get("split", 0)),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as bad:
        raise WireError(f"a bundle's claim is malformed: {bad!r}") from bad
