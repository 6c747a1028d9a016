"""The numbers at the side of a drawing are all there, as a browser lays them out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import exporter.console
from exporter.console.around import Around, drawn
from exporter.console.languages import Texts
from exporter.console.rendering import make_environment

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
STATIC = Path(exporter.console.__file__).parent / "static"
pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not installed"),
]

RANGES = {
    "small and negative": ("kl", -0.0012347, -0.0010013),
    "tiny and negative": ("kl", -1.237e-23, -1.018e-23),
    "large and negative": ("reward", -999_999.0, -987_654.0),
    "larger": ("reward", -9_876_543_211.0, 123_456_789_012.0),
    "the largest": ("reward", -2.9e38, 2.9e38),
    "bytes": ("gpu_memory", -1023.4 * 1024**3, 1023.9 * 1024**3),
}


def svg(signal: str, low: float, high: float) -> str:
    values = [low + (high - low) * row / 9 for row in range(10)]
    nothing = [float("nan")] * 10
    one = drawn(Around(signal, list(range(1_234_567, 1_234_577)), values, nothing, nothing, [False] * 10, 3, 5))
    one = replace(one, unit="bytes" if signal == "gpu_memory" else one.unit)
    pages = make_environment(Texts("en"), {})
    return pages.get_template("drawing.html").render(one=one)


def test_no_number_at_the_side_of_a_drawing_is_cut_off() -> None:
    style = "".join((STATIC / name).read_text() for name in ("console.css", "decisions.css"))
    drawings = "".join(f'<figure class="drawing">{svg(*given)}</figure>' for given in RANGES.values())
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 360, "height": 740})
        page.set_content(f"<!doctype html><style>{style}</style>{drawings}")
        found = page.evaluate(
            "[...document.querySelectorAll('.d-up')].map((text) => [text.textContent, text.getBBox().x])"
        )
        browser.close()
    assert len(found) == 3 * len(RANGES)
    assert [one for one in found if one[1] < 0] == []
    assert len({text for text, _ in found}) == len(found)
