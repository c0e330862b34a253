"""Functions beside the broker: the groups and their rows."""

from bench.plan import Group, Row, Run, metric
from bench.report import Target

#: All names of these groups begin so.
NAME = "functions"
_MILLISECONDS = Target("< 50 ms", lambda value, _ratio: value.median < 50)


def function_groups(*, quick: bool) -> list[Group]:
    count, many = (200, 20_000) if quick else (2_000, 200_000)
    kinds = {"stateless": False, "stateful": True}
    return [
        Group(
            f"{NAME}-latency",
            "Functions, light: from a message's receipt to its output's delivery, exactly once, one at a time",
            [Run(kind, "functions.latency", {"count": count, "stateful": state}) for kind, state in kinds.items()],
            [
                Row(
                    f"{kind}, {part}",
                    "ms",
                    lambda found, kind=kind, part=part: metric(kind, f"{part}_us")(found) / 1000,
                    lower_is_better=True,
                    target=_MILLISECONDS if part == "p50" else None,
                )
                for kind in kinds
                for part in ("p50", "p99")
            ],
            1 if quick else 3,
        ),
        Group(
            f"{NAME}-rate",
            f"Functions, light: {many:,} messages of 100 B through one worker, exactly once",
            [Run(kind, "functions.rate", {"count": many, "stateful": state}) for kind, state in kinds.items()],
            [Row(kind, "messages/s", metric(kind, "per_s")) for kind in kinds],
            1 if quick else 3,
        ),
    ]
