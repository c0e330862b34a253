"""What `weir functions deploy` can say of a function besides its code and its topics."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.model.errors import ConfigError
from weir.model.retry import RetryPolicy, parse_schedule

_CONFIG = "config."
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """As text they are kept with the function; each has a name there."""

    #: light: in processes beside the broker; spark: as a streaming query.
    on: str = "light"
    parallelism: int = 1
    #: Of what fails: when it comes again, how often, and where it goes then.
    retry: str = "1s..1m"
    max_deliveries: int = 5
    dead_letter_topic: str = ""
    #: Where what it says goes; "": nowhere.
    log_topic: str = ""
    log_level: str = "INFO"
    #: Where it begins when it is new.
    start: str = "earliest"
    #: Messages that are committed at once, at the most; and for how long more of them are waited for.
    batch_messages: int = 1_000
    linger_ms: int = 0
    #: How long one message may take; 0: as long as it likes.
    timeout_s: float = 0.0
    #: Whether what fails holds up what comes behind it.
    ordered: bool = False
    stateful: bool = False
    #: Whether it is of Arrow batches; None: as its signature says.
    batch: bool | None = None
    #: Spark's: where it runs, its memory, and how often it looks.
    master: str = "local[*]"
    memory: str = "1g"
    trigger: str = "100 milliseconds"
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(parse_schedule(self.retry), self.max_deliveries, self.dead_letter_topic)


def to_text(options: FunctionOptions) -> dict[str, str]:
    """What differs from the defaults."""
    usual = FunctionOptions()
    found: dict[str, str] = {}
    for name in FunctionOptions.__slots__:
        value = getattr(options, name)
        if name == "config":
            found |= {f"{_CONFIG}{key}": text for key, text in value.items()}
        elif value != getattr(usual, name):
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def from_text(given: Mapping[str, str]) -> FunctionOptions:
    """ConfigError names what cannot be."""
    usual = FunctionOptions()
    found: dict[str, object] = {}
    for name, text in given.items():
        if name.startswith(_CONFIG):
            continue
        if name not in FunctionOptions.__slots__ or name == "config":
            raise ConfigError(f"functions have no option {name[:80]!r}", hint="see weir functions deploy --help")
        found[name] = _parsed(name, text, getattr(usual, name))
    config = {name.removeprefix(_CONFIG): text for name, text in given.items() if name.startswith(_CONFIG)}
    return _checked(FunctionOptions(**found, config=config))  # type: ignore[arg-type]


def _parsed(name: str, text: str, usual: object) -> object:
    if isinstance(usual, bool) or name == "batch":
        if text not in ("true", "false"):
            raise ConfigError(f"{name} is {text!r}", hint="write true or false")
        return text == "true"
    try:
        if isinstance(usual, int):
            return int(text)
        return float(text) if isinstance(usual, float) else text
    except ValueError:
        raise ConfigError(f"{name} is {text!r}", hint="write a number") from None


def _checked(options: FunctionOptions) -> FunctionOptions:
    bounds = {
        "parallelism": (1, 64),
        "max_deliveries": (0, 1_000),
        "batch_messages": (1, 100_000),
        "linger_ms": (0, 10_000),
        "timeout_s": (0, 86_400),
    }
    for name, (least, most) in bounds.items():
        if not least <= getattr(options, name) <= most:
            raise ConfigError(f"{name} is {getattr(options, name)}", hint=f"write {least} to {most}")
    words = {"on": ("light", "spark"), "start": ("earliest", "latest"), "log_level": _LEVELS}
    for name, known in words.items():
        if getattr(options, name) not in known:
            raise ConfigError(f"{name} is {getattr(options, name)!r}", hint=f"write one of {', '.join(known)}")
    if options.stateful and options.batch:
        raise ConfigError("state by key is for functions of messages", hint="take a message, and not a batch")
    _ = options.policy
    return options
