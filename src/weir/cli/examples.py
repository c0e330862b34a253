"""Examples under a command's help, one line each."""


def examples(*lines: str) -> str:
    """What `click.command(epilog=...)` takes."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(("", "\b", head, *(f"  {line}" for line in lines), ""))
