"""The generated classes make themselves when they are imported: a type checker knows of none."""

from typing import Any

def __getattr__(name: str) -> Any: ...
