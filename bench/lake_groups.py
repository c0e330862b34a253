"""The lake: export, scans beside plain Parquet, and a replay of one message in a hundred."""

from bench.plan import Group, Row, Run, metric
from bench.report import Target

NAME = "lake"
_SCAN = Target("<= 1.2 of plain Parquet", lambda _value, ratio: ratio is not None and ratio.median <= 1.2)


def lake_groups(*, quick: bool) -> list[Group]:
    """What Spark needs is installed with Weir; nothing is downloaded."""
    rows = 200_000 if quick else 10_000_000
    params = {"rows": rows, "rounds": 3 if quick else 5}
    return [
        Group(
            NAME,
            f"The lake, {rows:,} orders of a JSON schema in 4 partitions, local[2]",
            [Run("weir", "lake.all", params, timeout_s=1800)],
            [
                Row("export", "rows/s", metric("weir", "export_rows_s")),
                *(
                    Row(
                        f'{what}, spark.read.format("weir")',
                        "ms",
                        metric("weir", f"{name}_ms"),
                        "spark.read.parquet",
                        metric("weir", f"{name}_parquet_ms"),
                        lower_is_better=True,
                        target=_SCAN,
                    )
                    for what, name in (
                        ("sum of a filtered column", "sum"),
                        ("all columns by customer", "report"),
                    )
                ),
                Row("replay of 1 %, picked", "s", metric("weir", "picked_s"), lower_is_better=True),
                Row("replay of 1 %, delivered", "messages/s", metric("weir", "delivered_s")),
            ],
            1,
            beside="Parquet",
        )
    ]
