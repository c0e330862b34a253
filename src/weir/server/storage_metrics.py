"""What is damaged on the disk and what readers had to leave out, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.bookie.damage import Damages


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
