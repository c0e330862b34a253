"""What is damaged on the disk and what readers had to leave out, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.bookie.damage import Damages
from weir.server.storage import Space


def damage_families(damages: Damages, skipped_entries: int) -> list[GatewayFamily]:
    return [
        GatewayFamily(name, kind, text, [({}, value)])
        for name, kind, text, value in (
            ("weir_damaged_entries", "gauge", "Entries known to be damaged on the disk.", damages.count),
            (
                "weir_healed_entries_total",
                "counter",
                "Damaged entries that were written again from another copy.",
                damages.healed_entries,
            ),
            (
                "weir_mended_indexes_total",
                "counter",
                "Damaged indexes of entry logs that were made anew.",
                damages.mended_indexes,
            ),
            (
                "weir_skipped_entries",
                "gauge",
                "Entries that are damaged in every copy and left out by readers.",
                skipped_entries,
            ),
        )
    ]


def space_families(space: Space | None, *, writable: bool) -> list[GatewayFamily]:
    """Whether messages are taken, and how full the disk is, where this process has one."""
    rows: list[tuple[str, str, int]] = [
        ("weir_storage_read_only", "1 while nothing new can be stored, because disks are full.", int(not writable))
    ]
    if space is not None:
        rows += [
            ("weir_disk_free_bytes", "Space left on the disk of the data folder.", space.free_bytes),
            (
                "weir_disk_low_water_bytes",
                "Below this much space nothing new is taken (storage.low_water_bytes).",
                space.low_water_bytes,
            ),
        ]
    return [GatewayFamily(name, "gauge", text, [({}, value)]) for name, text, value in rows]
