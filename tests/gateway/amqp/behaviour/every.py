"""Every scenario, what RabbitMQ answered, and the differences that are on purpose."""

import json
from pathlib import Path
from typing import Any

from tests.gateway.amqp.behaviour import (  # noqa: F401
    blocking,
    certificates,
    connections,
    consuming,
    exchanges,
    limits,
    permissions,
    policies,
    publishing,
    queues,
    rules,
    streams,
)
from tests.gateway.amqp.behaviour.differences import DIFFERENCES

RECORDED = Path(__file__).parent / "rabbitmq-3.10.json"


def recorded() -> dict[str, Any]:
    """What RabbitMQ answered, by scenario."""
    found: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return found


def save(answers: dict[str, Any]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(answers[name], ensure_ascii=False)}" for name in sorted(answers)]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def judged(name: str, found: Any, known: Any) -> str:
    """What is wrong with an answer, or nothing: it is RabbitMQ's, or the one that differs on purpose."""
    wanted = json.loads(json.dumps(known))
    for path, here in DIFFERENCES.get(name, {}).items():
        wanted = _with(wanted, path, here)
    got = json.loads(json.dumps(found))
    return "; ".join(_differing(got, wanted, ""))


def _with(value: Any, path: str, here: Any) -> Any:
    """The value with another part: `path` are keys and numbers with `/` between them, "" is all of it."""
    if not path:
        return here
    key, _, rest = path.partition("/")
    at: Any = int(key) if isinstance(value, list) else key
    value[at] = _with(value[at] if isinstance(value, list) else value.get(at), rest, here)
    return value


def _differing(got: Any, wanted: Any, where: str) -> list[str]:
    if isinstance(got, dict) and isinstance(wanted, dict):
        keys = [*wanted, *(key for key in got if key not in wanted)]
        return [
            line
            for key in keys
            for line in _differing(got.get(key), wanted.get(key), f"{where}/{key}".lstrip("/"))
        ]
    if isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        return [
            line
            for at, (one, other) in enumerate(zip(got, wanted, strict=True))
            for line in _differing(one, other, f"{where}/{at}".lstrip("/"))
        ]
    if got == wanted and type(got) is type(wanted):
        return []
    return [f"[{where}] {json.dumps(got, ensure_ascii=False)}, RabbitMQ: {json.dumps(wanted, ensure_ascii=False)}"]
