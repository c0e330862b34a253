"""Secrets by reference: a variable or a file of the machine that runs the connector; never shown, never kept."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Secret:
    """`{ env = "NAME" }` or `{ file = "/path" }`."""

    kind: str
    name: str

    @classmethod
    def read(cls, where: str, value: Any) -> "Secret":
        if isinstance(value, dict) and len(value) == 1:
            kind, name = next(iter(value.items()))
            if kind in ("env", "file") and isinstance(name, str) and name:
                return cls(kind, name)
        raise ConfigError(
            f"{where} is a secret, which is not written into a definition",
            hint='name where it is: { env = "NAME" } or { file = "/path" }, on the machine that runs it',
        )

    def reveal(self) -> str:
        """ConfigError if it is not there."""
        if self.kind == "env":
            found = os.environ.get(self.name)
            if found is None:
                raise ConfigError(
                    f"the variable {self.name} is not set", hint="set it where weir connect run runs"
                )
            return found
        try:
            return Path(self.name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as failure:
            raise ConfigError(f"the secret's file cannot be read: {failure}") from None


def reveal(secret: "Secret | None") -> str | None:
    return None if secret is None else secret.reveal()
