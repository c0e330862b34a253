#!/usr/bin/env python3
"""How the tree reads, in figures, beside what well-read Python code bases of this field measure.

    readability.py                     the whole checkout: figures, the range of the models, the target
    readability.py --packages          the same for each package of src/weir, worst first
    readability.py --list src/weir/broker/dispatch        every hit there, as file:line: kind: text
    readability.py --list docs README.md                  prose in Markdown, too

Run it from the root of the checkout. It reads files only. The figures show where to look; whether a text reads
well is for a second reader to decide. The models: asyncpg 0.32, trio 0.35, httpcore 1.0.9, aioquic 1.7, aiokafka
0.14, kafka-python 3.0, distributed 2026.8, faust-streaming 0.15, aiohttp 3.14, celery 5.7, pyiceberg 0.12.
`tests/test_readability.py` holds the figures that the tree has reached.
"""

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

#: kind -> (pattern, range of the models per 1,000 words, target)
PROSE = {
    "who": (r"\b(?:who|whom|whose|whoever)\b", "0.0 to 0.9", 1.0),
    "somebody": (r"\b(?:somebody|someone|anybody|nobody|anyone|everybody)\b", "0.0 to 0.5", 0.5),
    "what-subject": (
        r"\bwhat (?:is|was|are|were|has|have|had|came|comes|goes|stands|lies|may|must|can|they|it"
        r"|others?|one|does)\b",
        "0.0 to 0.3",
        0.5,
    ),
    "told": (r"\b(?:told|tell|tells|telling)\b", "0.0 to 0.5", 0.5),
    "goes-on": (
        r"\b(?:look(?:s|ed|ing)? (?:at|through|for)|goes? on|went on|comes? (?:again|back|from|with|in)|came)\b",
        "0.0 to 0.2",
        0.5,
    ),
    "there-is": (r"\bthere (?:is|are|was|were)\b", "0.3 to 1.5", 1.5),
    "passive": (
        r"\b(?:is|are|was|were|be|been) (?:[a-z]+ed|told|kept|held|given|taken|made|found|known|seen|said|left"
        r"|sent|put|let|gone|lost|read|written|begun)\b",
        "9 to 22",
        18.0,
    ),
}
VAGUE = frozenset(
    """
    tell told give given gives giving take taken takes come coming came go goes going went held hold
    thing what whatever who whose whom way look looking looked left gone anew others other rest own kept
    keep known somebody nobody behind still once here there bring brought say said ask asked let stands
    """.split()  # noqa: SIM905 - one word per list entry is 60 lines
)
NOT_PARTICIPLES = frozenset(
    """
    routing logging testing streaming string setting encoding recording caching scheduling load_shedding
    fencing tiering batching indexing partitioning timing tracing padding framing parsing ring thing
    seed feed speed embed shared
    """.split()  # noqa: SIM905 - one word per list entry is 60 lines
)
SHAPE = {  # figure -> (range of the models, target, whether lower is better)
    "modules": ("18 to 202 (9,000 to 68,000 lines)", 700, True),
    "mean lines of a module": ("190 to 540", 220, False),
    "median lines of a module": ("80 to 430", 150, False),
    "modules named by a participle, %": ("0 to 5", 2.0, True),
    "functions and classes with a vague word in the name, %": ("0 to 3", 2.0, True),
}


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each comment, docstring and string of three or more words, or line of Markdown."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".md":
        code = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("```"):
                code = not code
            elif not code and not line.startswith("    "):
                yield number, line
        return
    try:
        tree = ast.parse(text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and not re.match(
                r"#\s*(noqa|type:|pragma|mypy|ruff|-\*-|!)", token.string
            ):
                yield token.start[0], token.string.lstrip("#: ")
    except (SyntaxError, tokenize.TokenError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 3:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def python_files(root: Path) -> list[Path]:
    return [root] if root.is_file() else sorted(p for p in root.rglob("*.py") if "/testing/" not in str(p))


def prose_rates(paths: list[Path]) -> tuple[int, dict[str, float]]:
    words, hits = 0, dict.fromkeys(PROSE, 0)
    for path in paths:
        for _, text in prose_of(path):
            low = text.lower()
            words += len(re.findall(r"[a-z']+", low))
            for kind, (pattern, _, _) in PROSE.items():
                hits[kind] += len(re.findall(pattern, low))
    return words, {kind: 1000 * count / max(words, 1) for kind, count in hits.items()}


def shape(paths: list[Path]) -> dict[str, float]:
    lengths, participles, names, vague = [], 0, 0, 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.name != "__init__.py":
            lengths.append(text.count("\n"))
            participles += is_participle(path)
        for name, _ in names_of(text):
            names += 1
            vague += bool(set(words_of(name)) & VAGUE)
    return {
        "modules": len(lengths),
        "mean lines of a module": statistics.mean(lengths or [0]),
        "median lines of a module": statistics.median(lengths or [0]),
        "modules named by a participle, %": 100 * participles / max(len(lengths), 1),
        "functions and classes with a vague word in the name, %": 100 * vague / max(names, 1),
    }


def is_participle(path: Path) -> bool:
    last = path.stem.split("_")[-1]
    return bool(re.search(r"(ing|ed)$", last)) and last not in NOT_PARTICIPLES and path.stem not in NOT_PARTICIPLES


def names_of(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
            "__"
        ):
            yield node.name, node.lineno


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[a-z]+|[A-Z][a-z]*", name)]


def show_hits(roots: list[Path]) -> None:
    for root in roots:
        files = python_files(root) if root.is_dir() or root.suffix == ".py" else [root]
        if root.is_dir():
            files += sorted(root.rglob("*.md"))
        for path in files:
            for number, text in sorted(set(prose_of(path))):
                for kind, (pattern, _, _) in PROSE.items():
                    if kind != "passive" and re.search(pattern, text.lower()):
                        print(f"{path}:{number}: {kind}: {text.strip()[:150]}")
            if path.suffix == ".py":
                if is_participle(path):
                    print(f"{path}:1: module named by a participle")
                for name, line in names_of(path.read_text(encoding="utf-8")):
                    if set(words_of(name)) & VAGUE:
                        print(f"{path}:{line}: vague name: {name}")


def show_packages() -> None:
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in python_files(Path("src/weir")):
        parts = path.parts
        groups["/".join(parts[2 : min(len(parts) - 1, 4)]) or "."].append(path)
    rows = []
    for name, paths in groups.items():
        words, rates = prose_rates(paths)
        figures = shape(paths)
        rows.append((sum(rates[k] for k in PROSE if k != "passive"), name, words, rates, figures))
    print(
        f"{'package':28}{'modules':>8}{'mean':>6}{'part.%':>7}{'vague%':>7}{'words':>8}  "
        + " ".join(f"{k[:9]:>9}" for k in PROSE)
    )
    for _, name, words, rates, figures in sorted(rows, key=lambda row: -row[0] * max(row[2], 1)):
        f = list(figures.values())
        print(
            f"{name:28}{f[0]:8.0f}{f[1]:6.0f}{f[3]:7.1f}{f[4]:7.1f}{words:8}  "
            + " ".join(f"{rates[k]:9.1f}" for k in PROSE)
        )


def show_all() -> int:
    short = 0
    source = python_files(Path("src/weir"))
    docs = [p for p in [Path("README.md"), *sorted(Path("docs").rglob("*.md"))] if p.exists()]
    for title, paths in (("src/weir (comments, docstrings, messages)", source), ("README.md and docs/", docs)):
        words, rates = prose_rates(paths)
        print(f"\n{title}: {words:,} words\n{'per 1,000 words':56}{'Weir':>8}{'target':>8}   models")
        for kind, (_, models, target) in PROSE.items():
            short += rates[kind] > target
            print(f"{kind:56}{rates[kind]:8.1f}{target:8.1f}   {models}")
    print(f"\n{'shape of src/weir':56}{'Weir':>8}{'target':>8}   models")
    for figure, value in shape(source).items():
        models, target, lower = SHAPE[figure]
        short += value > target if lower else value < target
        print(f"{figure:56}{value:8.1f}{target:8.1f}   {models}")
    print(f"\n{short} figures short of their target")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", action="store_true")
    parser.add_argument("--list", nargs="+", type=Path, metavar="PATH")
    given = parser.parse_args()
    if given.list:
        show_hits(given.list)
        return 0
    if given.packages:
        show_packages()
        return 0
    return 1 if show_all() else 0


if __name__ == "__main__":
    sys.exit(main())
