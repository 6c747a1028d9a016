"""The console in a real browser: nothing sticks out, nothing is too pale, nothing is from elsewhere, keys suffice."""

from __future__ import annotations

import shutil
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_fleet import HOSTILE, Fleet
from console_visitor import TOKEN
from exporter_process import ExporterProcess

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[1] / "node" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not installed"),
]
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (packages of npm)")
DEADLINE_MS = 60_000


def run_path(run_id: str) -> str:
    return f"/console/run?id={urllib.parse.quote(run_id, safe='')}"


PAGES = {
    "runs": "/console/",
    "run": run_path("dapo-14b-restarted"),
    "hostile": run_path(HOSTILE),
    "recoveries": "/console/recoveries",
    "audit": "/console/audit",
    "runbooks": "/runbooks/",
    "runbook": "/runbooks/VerlNonFinite.md",
    "error": run_path("nobody"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Watched:
    """A page of the browser, with what went wrong in it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(DEADLINE_MS)
        self.url = url
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        # That a page was not found is what its test asks for.
        if message.type in ("error", "warning") and "status of 404" not in message.text:
            self.problems.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self.problems.append(f"asked for {request.url}")

    def go(self, path: str) -> Any:
        self.page.goto(self.url + path)
        if path.startswith("/console/run?") and "nobody" not in path:
            self.page.wait_for_selector(".chart .uplot canvas")
            self.until("/detectors|检测器/.test(document.getElementById('chart-state').textContent)")
        return self.page

    def until(self, expression: str) -> None:
        """Wait until it holds. Not by a function of the page's own, which its policy forbids to be made of a text."""
        last = time.monotonic() + DEADLINE_MS / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < last, f"never held: {expression}"
            self.page.wait_for_timeout(50)

    def close(self) -> None:
        self.context.close()


def opened(watched: Watched, path: str) -> Any:
    """A page with everything on it that can be opened."""
    page = watched.go(path)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    return page


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_nothing_is_wider_than_a_phone_and_nothing_goes_wrong(
    browser: Any, console: ExporterProcess, language: str
) -> None:
    watched = Watched(browser, console.url, viewport={"width": 360, "height": 740}, locale=language)
    widths = {
        name: opened(watched, path).evaluate("document.documentElement.scrollWidth") for name, path in PAGES.items()
    }
    assert widths == dict.fromkeys(PAGES, 360)
    assert watched.problems == []
    watched.close()


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_barrier(browser: Any, console: ExporterProcess, scheme: str) -> None:
    watched = Watched(browser, console.url, color_scheme=scheme, reduced_motion="reduce")
    axe, serious = AXE.read_text(), []
    for name, path in PAGES.items():
        page = opened(watched, path)
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        serious += [
            (name, one["id"], [node["html"][:200] for node in one["nodes"]][:5])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    assert serious == []
    assert watched.problems == []
    watched.close()


@needs_axe
@pytest.mark.parametrize("width", [1280, 360])
def test_a_run_meets_wcag_2_2_on_a_desk_and_in_a_hand(browser: Any, console: ExporterProcess, width: int) -> None:
    watched = Watched(browser, console.url, viewport={"width": width, "height": 740}, reduced_motion="reduce")
    page = opened(watched, PAGES["run"])
    page.evaluate(AXE.read_text())
    tags = [f"wcag{level}" for level in ("2a", "2aa", "21a", "21aa", "22aa")]
    rules = '{ "landmark-unique": { enabled: true }, "target-size": { enabled: true } }'
    tagged = page.evaluate(f"axe.run(document, {{ runOnly: {tags}, rules: {rules} }})")
    found = [(one["id"], [node["html"][:200] for node in one["nodes"]][:5]) for one in tagged["violations"]]
    passed = {one["id"] for one in tagged["passes"]}
    assert found == []
    assert {"target-size", "landmark-unique"} <= passed
    links = page.evaluate("[...document.querySelectorAll('.found a')].map((one) => one.getBoundingClientRect().height)")
    assert links
    assert min(links) >= 24
    watched.close()


def test_checkpoints_and_gpus_can_be_read_on_a_phone(browser: Any, console: ExporterProcess) -> None:
    watched = Watched(browser, console.url, viewport={"width": 360, "height": 740})
    page = opened(watched, run_path("grpo-qwen2.5-7b/seed-1"))
    widths = page.evaluate(
        "[...document.querySelectorAll('#checkpoints .saved-at, #gpus th.title, #values th.title')]"
        ".map((one) => one.clientWidth)"
    )
    assert len(widths) > 5 + 8 + 10
    assert min(widths) > 200
    watched.close()


def test_the_foot_says_of_which_zone_the_times_are(browser: Any, console: ExporterProcess) -> None:
    said = {}
    for zone, language, scripts in (
        ("Asia/Shanghai", "en-US", True),
        ("Asia/Tehran", "zh-CN", True),
        ("America/St_Johns", "en-US", True),
        ("Asia/Shanghai", "en-US", False),
    ):
        watched = Watched(
            browser,
            console.url,
            timezone_id=zone,
            locale=language,
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        watched.page.goto(f"{console.url}/console/")
        if scripts:
            watched.page.wait_for_selector(f"#zone:has-text('{zone}')")
        said[zone, scripts] = watched.page.text_content("#zone")
        assert watched.problems == []
        watched.close()
    assert said["Asia/Shanghai", True] == "times are in Asia/Shanghai (UTC+8)"
    assert said["Asia/Tehran", True] == "时间为 Asia/Tehran (UTC+3:30)"
    assert said["America/St_Johns", True].startswith("times are in America/St_Johns (UTC-")
    assert said["Asia/Shanghai", False] == "times are in UTC"


@pytest.mark.parametrize("theme", ["auto", "dark"])
def test_paper_is_light_and_nothing_is_cut_off_or_to_be_pressed(
    browser: Any, console: ExporterProcess, theme: str
) -> None:
    watched = Watched(browser, console.url, color_scheme="dark")
    page = opened(watched, f"{PAGES['run']}&theme={theme}")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(media="print", color_scheme="dark")
    printed = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark, printed) == ("rgb(15, 19, 23)", "rgb(245, 246, 247)")
    seen = "[...document.querySelectorAll('form, button, .button, .top')].filter((one) => one.offsetHeight).length"
    assert page.evaluate(seen) == 0
    heights = page.evaluate("[...document.querySelectorAll('.tall')].map((one) => getComputedStyle(one).maxHeight)")
    assert set(heights) == {"none"}
    watched.close()


def test_units_are_in_the_language_of_the_page(browser: Any, console: ExporterProcess) -> None:
    watched = Watched(browser, console.url, locale="zh-CN")
    page = opened(watched, PAGES["run"])
    assert page.evaluate("document.querySelector('#phases .told').textContent").count("秒") > 3
    units = set(page.evaluate("[...document.querySelectorAll('#values td:last-child')].map((one) => one.textContent)"))
    assert {"秒", "比率"} <= units
    assert not any(unit.isascii() and unit for unit in units)
    watched.close()


def test_from_the_list_to_a_run_by_keys_alone(browser: Any, console: ExporterProcess) -> None:
    watched = Watched(browser, console.url)
    page = watched.go("/console/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("restarted")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/?q=restarted*")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "dapo-14b-restarted":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Enter")
    page.wait_for_selector(".chart .uplot canvas")
    plot = page.locator(".chart .plot").first
    plot.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    watched.until("document.querySelector('.told').textContent.includes('139')")
    assert watched.problems == []
    watched.close()


def test_a_page_keeps_itself_up_to_date_and_says_when_it_cannot(browser: Any, tmp_path: Path) -> None:
    exporter = ExporterProcess(tmp_path, ("--data-dir", str(tmp_path / "data")))
    exporter.start()
    try:
        fleet = Fleet(exporter.url)
        fleet.steps("growing", 1, 30)
        watched = Watched(browser, exporter.url)
        page = watched.go(run_path("growing"))
        fleet.steps("growing", 31, 77)
        watched.until("document.querySelector('.facts').textContent.includes('77')")
        listed = watched.context.new_page()
        listed.goto(f"{exporter.url}/console/")
        fleet.push("another")
        listed.wait_for_selector("text=another")
    finally:
        exporter.kill()
    watched.until("!document.getElementById('live-trouble').hidden")
    assert "No answer from the exporter" in page.text_content("#live-trouble")
    watched.close()


def test_whoever_is_signed_in_comes_in_by_a_link_from_elsewhere(browser: Any, guarded: ExporterProcess) -> None:
    """From another site the browser keeps a strict cookie back; the way in must not end at the sign-in."""
    watched = Watched(browser, guarded.url)
    page = watched.page
    page.goto(guarded.url + run_path("a/b"))
    page.fill("#who", "Ada")
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("h1.id")
    assert page.text_content("h1") == "a/b"
    assert page.evaluate("document.cookie") == ""
    elsewhere = guarded.url.replace("127.0.0.1", "localhost")
    page.route(f"{elsewhere}/message", lambda route: route.fulfill(body=link, content_type="text/html"))
    link = f'<a href="{guarded.url}{run_path("a/b")}">the run</a>'
    page.goto(f"{elsewhere}/message")
    page.click("a")
    page.wait_for_selector("h1.id")
    assert page.url == guarded.url + run_path("a/b")
    page.click("text=Sign out")
    page.wait_for_selector("#token")
    watched.close()


def test_colours_and_language_are_switched_and_stay(browser: Any, console: ExporterProcess) -> None:
    watched = Watched(browser, console.url, color_scheme="light")
    page = watched.go("/console/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("button[name=theme]")
    page.wait_for_selector("html[data-theme=dark]")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.click("button[name=lang]")
    page.wait_for_selector("html[lang=zh-Hans]")
    page = watched.go(run_path("sft-warmup"))
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.get_attribute("html", "lang") == "zh-Hans"
    watched.close()
