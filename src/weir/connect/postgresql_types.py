"""Values of PostgreSQL's that Python has no type for: dates beyond its years, infinity, intervals of months."""

import re
from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.adapt import Loader
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader

if TYPE_CHECKING:
    import psycopg

#: As databases' change logs have them: the ends of the numbers, of microseconds and of days.
FOREVER_US, FOREVER_DAYS = (1 << 63) - 1, (1 << 31) - 1
_MOMENT = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:[+]00)?( BC)?")
_DAY_US = 86_400_000_000
#: Python's years, in days since 1970.
_FIRST, _LAST = -719_162, 2_932_896
#: Types whose own text says it best: JSON with all its digits, times of 24:00, intervals of months, ranges, ...
_TEXTS = (114, 3802, 1083, 1266, 1186, 2950, 869, 650, 3904, 3906, 3908, 3910, 3912, 3926)
_MULTIRANGES = (4451, 4532, 4533, 4534, 4535, 4536)


class _Text(Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode()


class _Date(DateLoader):
    def load(self, data: Any) -> Any:
        try:
            return super().load(data)
        except DataError:
            return _beyond(bytes(data).decode(), FOREVER_DAYS, 1)


class _Timestamp(TimestampLoader):
    def load(self, data: Any) -> Any:
        try:
            return super().load(data)
        except DataError:
            return _beyond(bytes(data).decode(), FOREVER_US, _DAY_US)


class _Timestamptz(TimestamptzLoader):
    def load(self, data: Any) -> Any:
        try:
            return super().load(data)
        except DataError:
            return _beyond(bytes(data).decode(), FOREVER_US, _DAY_US)


def _beyond(text: str, forever: int, per_day: int) -> int:
    """Since 1970, in UTC."""
    if text.endswith("infinity"):
        return -forever - 1 if text.startswith("-") else forever
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise DataError(f"{text!r} is no date")
    year, month, day, *clock = (int(part or 0) for part in found.groups()[:6])
    days = _days(1 - year if found[8] else year, month, day)
    if per_day == 1:
        return days
    hour, minute, second = clock
    return days * per_day + (hour * 3600 + minute * 60 + second) * 1_000_000 + int((found[7] or "").ljust(6, "0"))


def _days(year: int, month: int, day: int) -> int:
    """Since 1970, by the Gregorian calendar for all years; years begin in March here."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def text_of(number: int, kind: str) -> str | None:
    """Such a number as PostgreSQL writes it, for a column of this type; None if Python has a date for it."""
    forever, per_day = (FOREVER_DAYS, 1) if kind == "date" else (FOREVER_US, _DAY_US)
    if number in (forever, -forever - 1):
        return "infinity" if number > 0 else "-infinity"
    days, of_day = divmod(number, per_day)
    if _FIRST <= days <= _LAST:
        return None
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    year, of_month = year + era * 400 + (month >= 10), of_year - (153 * month + 2) // 5 + 1
    text = f"{year if year > 0 else 1 - year:04d}-{month + (3 if month < 10 else -9):02d}-{of_month:02d}"
    if per_day > 1:
        text += (
            f" {of_day // 3_600_000_000:02d}:{of_day // 60_000_000 % 60:02d}:{of_day % 60_000_000 / 1e6:09.6f}+00"
        )
    return text if year > 0 else f"{text} BC"


def read_everything(connection: "psycopg.Connection[Any]") -> None:
    """Let no value that PostgreSQL has be an error."""
    for kind in (*_TEXTS, *_MULTIRANGES):
        connection.adapters.register_loader(kind, _Text)
    connection.adapters.register_loader("date", _Date)
    connection.adapters.register_loader("timestamp", _Timestamp)
    connection.adapters.register_loader("timestamptz", _Timestamptz)
