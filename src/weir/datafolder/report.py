"""What a survey found, as JSON and in a sentence."""

from dataclasses import asdict
from typing import Any

from weir.datafolder.survey import FolderSurvey, LostRange


def report_fields(report: FolderSurvey) -> dict[str, Any]:
    """For programs: what was read, what is damaged where, and what is lost of which topic."""
    return {
        "folder": report.folder,
        "whole": report.is_whole,
        "read": {
            "topics": len(report.chart.chains),
            "keys": len(report.meta.items),
            "ledgers": len(report.chart.ledgers),
            "entries": report.bookie.entries,
            "entryLogs": report.bookie.logs,
            "journalRecords": report.bookie.journal_records,
            "bytes": report.bookie.bytes_read,
        },
        "damages": [{"file": each.path, "offset": each.offset, "what": each.what} for each in report.damages],
        "remedies": list(report.remedies),
        "lost": [_lost_fields(lost) for lost in report.losses],
        "knownLost": [_lost_fields(lost) for lost in report.known],
        "lostMessages": lost_messages(report),
        "lostMetadataChanges": report.meta.lost_changes,
        "positionsBeyondEnd": [
            {
                "topic": one.topic,
                "subscription": one.subscription,
                "offset": one.offset,
                "endOffset": one.end_offset,
            }
            for one in report.positions
        ],
        "adopted": list(report.adopted),
    }


def lost_messages(report: FolderSurvey) -> int:
    """How many messages at the most, as far as it can be counted."""
    return sum(lost.messages or 0 for lost in report.losses)


def _lost_fields(lost: LostRange) -> dict[str, Any]:
    fields = asdict(lost)
    return {
        "topic": fields["topic"],
        "partition": fields["partition"],
        "what": fields["what"],
        "firstOffset": fields["first_offset"],
        "endOffset": fields["end_offset"],
        "messages": lost.messages,
        "ledger": fields["ledger_id"],
        "firstEntry": fields["first_entry"],
        "lastEntry": fields["last_entry"],
        "cause": fields["cause"],
    }
