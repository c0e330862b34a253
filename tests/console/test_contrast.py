"""The colors of the console's text: a contrast of at least 4.5 : 1 in both themes, which is level AA of WCAG 2."""

import re
from importlib.resources import files

import pytest

CSS = files("weir.console").joinpath("static", "console.css").read_text(encoding="utf-8")
LEAST = 4.5
#: Where text of a color is shown: on a page, a panel (also its inputs and buttons), a row or button below the
#: pointer, code and tags.
PLAIN = ("bg", "panel", "sunken")
#: Backgrounds of each color of text.
SHOWN_ON = {
    "text": PLAIN,
    "soft": PLAIN,
    "faint": PLAIN,
    "accent": (*PLAIN, "accent-soft"),
    "accent-text": ("accent",),
    "good": ("panel", "good-soft"),
    "warn": PLAIN,
    "bad": ("panel", "bg", "bad-soft"),
}
THEMES = {
    "light": r":root \{",
    "dark, by the system": r":root:not\(\[data-theme=\"light\"\]\) \{",
    "dark, by choice": r":root\[data-theme=\"dark\"\] \{",
}


def colors(theme: str) -> dict[str, str]:
    found = re.search(rf"{THEMES[theme]}(.*?)\}}", CSS, re.DOTALL)
    assert found is not None
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", found[1]))


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_computed_as_wcag_defines_it() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read(theme: str) -> None:
    known = colors(theme)
    found = {
        f"{text} on {ground}": round(contrast(known[text], known[ground]), 2)
        for text, grounds in SHOWN_ON.items()
        for ground in grounds
    }
    assert {pair: ratio for pair, ratio in found.items() if ratio < LEAST} == {}


def test_every_color_of_text_is_checked() -> None:
    used = set(re.findall(r"(?<![-\w])color: var\(--([a-z-]+)\)", CSS))
    assert used <= SHOWN_ON.keys()
    assert not re.findall(r"(?<![-\w])color: (?!var|inherit)[^;]+;", CSS)


def test_both_dark_themes_are_the_same() -> None:
    assert colors("dark, by the system") == colors("dark, by choice")
