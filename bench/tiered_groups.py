"""Tiered storage: reads of a whole topic from the lake beside reads from its ledgers."""

from bench.plan import Group, Row, Run, metric

NAME = "tiered"
_STORES = {"folder": "a folder", "s3": "an S3 server on this machine"}
_CLIENTS = {"kafka": "Kafka", "pulsar": "Pulsar"}


def tiered_groups(*, quick: bool) -> list[Group]:
    params = {"messages": 20_000 if quick else 400_000, "size": 1024}
    runs = [Run(store, "tiered", params | {"store": store}, timeout_s=600) for store in _STORES]
    title = f"Tiered storage: {params['messages']:,} messages of 1 KiB, read by official clients after a restart"
    return [Group(NAME, title, runs, _rows(), 1 if quick else 2, beside="ledgers")]


def _rows() -> list[Row]:
    rows = []
    for store, says in _STORES.items():
        for client, name in _CLIENTS.items():
            for what, unit, lower in (("messages/s", "messages/s", False), ("first ms", "ms", True)):
                words = "to the first message" if lower else "all of it"
                rows.append(
                    Row(
                        f"{name}, {words}, from {says}",
                        unit,
                        metric(store, f"{client} lake {what}"),
                        "ledgers",
                        metric(store, f"{client} ledgers {what}"),
                        lower_is_better=lower,
                    )
                )
        rows.append(Row(f"ledgers to {says}, read back", "MB/s", metric(store, "copied MB/s")))
    return rows
