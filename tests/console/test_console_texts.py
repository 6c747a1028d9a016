"""The texts of the console: every one is translated, and no other is in the catalogue; files of others are theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from console_visitor import Visitor
from exporter_process import ExporterProcess

from exporter import detectors
from exporter.console import extraction
from exporter.console.labels import LABELS, STATES
from exporter.console.languages import HTML_LANG, LANGUAGES, Texts, chosen
from exporter.console.rendering import make_environment
from exporter.console.shown import Shown
from exporter.service.run_state import STATES as RUN_STATES
from exporter.signals import SIGNALS

ROOT = Path(__file__).parents[2]
UPLOT = ROOT / "tests" / "node" / "node_modules" / "uplot"
_SLOT = re.compile(r"%\((\w+)\)s|\{(\w+)\}")
_SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)+|[A-Z]+_[A-Z_]+")


def test_no_text_is_without_its_translation_or_has_one_that_nobody_looked_at() -> None:
    assert extraction.missing("zh") == []


def test_no_translation_is_of_a_text_that_is_gone() -> None:
    assert extraction.unused("zh") == []


def test_a_translation_keeps_what_is_filled_in_and_the_names_of_settings() -> None:
    for message in extraction.read("zh"):
        if not message.id:
            continue
        one = message.id if isinstance(message.id, str) else message.id[1]
        text = message.string if isinstance(message.string, str) else message.string[0]
        assert sorted(_SLOT.findall(one)) == sorted(_SLOT.findall(text)), one
        assert set(_SETTING.findall(one)) <= set(_SETTING.findall(text)), one


def test_texts_are_found_in_templates_code_and_detectors() -> None:
    found = extraction.messages()
    assert "templates/runs.html" in found["No run matches this."]
    assert "labels.py" in found["Waits for approval"]
    assert "detectors/watches.py" in found["actor_rollout_ref.actor.clip_ratio: lower it"]
    assert "templates/runs.html" in found[("%(num)s run", "%(num)s runs")]


def test_a_text_that_is_new_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = extraction.messages()
    monkeypatch.setattr(extraction, "messages", lambda: {**real, "A text of tomorrow.": ["x.html"]})
    assert extraction.missing("zh") == ["A text of tomorrow."]


def said_by_detectors() -> set[str]:
    """Signals that the code of the detectors names."""
    folder = Path(detectors.__file__).parent
    return {name for file in folder.rglob("*.py") for name in re.findall(r'signal="([a-z_]+)"', file.read_text())}


def test_every_state_and_signal_has_a_name() -> None:
    assert set(STATES) == set(RUN_STATES)
    assert set(LABELS["signal"]) == set(SIGNALS) | said_by_detectors()
    assert set(LABELS["unit"]) == {signal.unit for signal in SIGNALS.values()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_template_compiles(language: str) -> None:
    made = make_environment(Texts(language), {})
    for name in made.list_templates(["html"]):
        made.get_template(name)


@pytest.mark.parametrize(
    ("asked", "remembered", "accept", "expected"),
    [
        ("", "", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "", "en-GB,en;q=0.9,zh;q=0.1", "en"),
        ("", "", "de,fr", "en"),
        ("", "", "zh;q=0", "en"),
        ("", "", "", "en"),
        ("", "zh", "en", "zh"),
        ("en", "zh", "zh", "en"),
        ("xx", "yy", "zh", "zh"),
        ("", "", "," * 5000 + "zh", "en"),
    ],
)
def test_the_address_goes_before_the_cookie_and_that_before_what_the_browser_prefers(
    asked: str, remembered: str, accept: str, expected: str
) -> None:
    assert chosen(asked, remembered, accept) == expected


def test_a_language_is_remembered_and_named_in_the_page(console: ExporterProcess) -> None:
    visitor = Visitor(console.url)
    assert '<html lang="en"' in visitor.get("/console/").text
    chinese = visitor.get("/console/?lang=zh")
    assert f'<html lang="{HTML_LANG["zh"]}"' in chinese.text
    assert chinese.heading == "训练任务"
    assert visitor.get("/console/").heading == "训练任务"
    assert visitor.get("/console/?lang=en").heading == "Runs"
    assert visitor.get("/console/").heading == "Runs"
    assert Visitor(console.url, headers={"Accept-Language": "zh-CN"}).get("/console/").heading == "训练任务"


def test_a_theme_is_remembered(console: ExporterProcess) -> None:
    visitor = Visitor(console.url)
    assert 'data-theme="auto"' in visitor.get("/console/").text
    assert 'data-theme="dark"' in visitor.get("/console/?theme=dark").text
    assert 'data-theme="dark"' in visitor.get("/runbooks/").text or "verl_console_theme" in visitor.cookies
    assert 'data-theme="light"' in visitor.get("/console/?theme=light").text
    assert 'data-theme="light"' in visitor.get("/console/?theme=<x>").text


def test_what_a_detector_says_is_chinese_where_it_is_fixed_and_marked_where_it_is_not(console: ExporterProcess) -> None:
    visitor = Visitor(console.url, headers={"Accept-Language": "zh"})
    page = visitor.get("/console/run?id=grpo-qwen2.5-7b%2Fseed-2")
    assert "首先尝试" in page.text
    assert re.search(r'<h3 lang="en"><a [^>]*>[a-z]', page.text)
    assert "The policy" not in page.text


def test_numbers_and_times_are_spelled_in_each_language() -> None:
    english, chinese = Shown("en", lambda text: text), Shown("zh", {"%(time)s ago": "%(time)s前"}.__getitem__)
    assert [english.seconds(value) for value in (None, 0, 0.25, 7.0, 61, 3600, 90_000, float("nan"))] == [
        *("–", "0s", "0.25s", "7s", "1m 1s", "1h", "1d 1h", "–")
    ]
    assert chinese.ago(61) == "1分钟1秒前"
    assert [english.number(value) for value in (1234567, 0.00001234, float("nan"), -float("inf"), 0.5, None, 0)] == [
        *("1,234,567", "1.23e-5", "NaN", "-∞", "0.5", "–", "0")
    ]
    assert (english.percent(0.9551), english.integer(12345), english.amount(3 * 1024**3)) == (
        *("95.5%", "12,345", "3.0 GiB"),
    )
    assert str(english.when(0)) == "–"
    assert str(english.when(1e300)) == "–"
    assert 'datetime="2023-11-14T22:13:20Z"' in str(english.when(1.7e9))


@pytest.mark.skipif(not UPLOT.is_dir(), reason="packages of npm are not installed (make setup)")
@pytest.mark.parametrize("name", ["uPlot.iife.min.js", "uPlot.min.css"])
def test_uplot_is_the_package_of_npm(name: str) -> None:
    ours = ROOT / "exporter" / "console" / "static"
    assert (ours / name).read_bytes() == (UPLOT / "dist" / name).read_bytes()
    assert (ours / "uPlot.LICENSE").read_bytes() == (UPLOT / "LICENSE").read_bytes()
