"""Decisions in a real browser: with the keyboard alone, on a phone, in the dark, and a page that follows by itself."""

from __future__ import annotations

import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from decision_scene import BrokenRun, broken, watching
from exporter_process import ExporterProcess

from exporter.protocol import RunStarted

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[1] / "node" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not installed"),
]
DEADLINE_MS = 60_000
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with watching(tmp_path_factory.mktemp("browser"), "approve") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page_of(exporter: ExporterProcess, browser: Any) -> Iterator[Any]:
    """Makes a page of somebody who is signed in; nothing may go wrong on it."""
    contexts, problems = [], []

    def make(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(DEADLINE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda it: problems.append(it.text) if it.type in ("error", "warning") else None)
        page.goto(f"{exporter.url}/console/login")
        page.get_by_label("Your name").fill("Ada")
        page.get_by_label("Token").fill("ope")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/console/")
        return page

    yield make
    for context in contexts:
        context.close()
    assert problems == []


def address(exporter: ExporterProcess, path: str, **query: str) -> str:
    return f"{exporter.url}{path}?{urllib.parse.urlencode(query)}"


@pytest.fixture(scope="module")
def waiting(exporter: ExporterProcess) -> BrokenRun:
    """A run whose plan waits, for tests that decide nothing."""
    return broken(exporter, "a long name of a run, with-everything/in_it.and.no.place.to.break.it 跑")


def addresses(exporter: ExporterProcess, run: BrokenRun) -> list[str]:
    recovery = run.recovery()
    return [
        address(exporter, "/console/recovery", id=recovery),
        address(exporter, "/console/recovery/decide", id=recovery, do="approve"),
        address(exporter, "/console/recovery/decide", id=recovery, do="refuse"),
        address(exporter, "/console/incident", id=run.incident()),
        address(exporter, "/console/recoveries"),
        address(exporter, "/console/audit"),
    ]


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (packages of npm)")
@pytest.mark.parametrize(
    ("scheme", "options"), [("light", {}), ("dark", {}), ("dark", PHONE)], ids=["light", "dark", "phone"]
)
def test_axe_finds_nothing(
    exporter: ExporterProcess, waiting: BrokenRun, page_of: Any, scheme: str, options: dict[str, Any]
) -> None:
    page = page_of(**options, color_scheme=scheme)
    for where in addresses(exporter, waiting):
        page.goto(where)
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(it["id"], [node["html"] for node in it["nodes"]]) for it in found["violations"]] == [], where


def test_nothing_sticks_out_of_a_phone(exporter: ExporterProcess, waiting: BrokenRun, page_of: Any) -> None:
    page = page_of(**PHONE)
    for language in ("en", "zh"):
        for where in addresses(exporter, waiting):
            page.goto(f"{where}&lang={language}" if "?" in where else f"{where}?lang={language}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, where


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_leads_to_the_decision_is_on_the_first_screen_of_a_phone(
    exporter: ExporterProcess, waiting: BrokenRun, page_of: Any, language: str
) -> None:
    page, recovery = page_of(**PHONE), waiting.recovery()
    for path, query, button in (
        ("/console/run", {"id": waiting.run}, "#to-plan"),
        ("/console/incident", {"id": waiting.incident()}, ".to-recovery"),
        ("/console/recovery", {"id": recovery}, "#decide-approve"),
        ("/console/recovery/decide", {"id": recovery, "do": "approve"}, "#confirm"),
    ):
        page.goto(address(exporter, path, **query, lang=language))
        box = page.locator(button).bounding_box()
        assert box is not None, path
        assert box["y"] + box["height"] <= PHONE["viewport"]["height"], (path, box)  # type: ignore[index]


def test_a_plan_is_approved_with_the_keyboard_alone(exporter: ExporterProcess, page_of: Any) -> None:
    run = broken(exporter, "keyboard")
    page = page_of()
    page.goto(address(exporter, "/console/recovery", run="keyboard"))
    _tab_to(page, "decide-approve")
    page.keyboard.press("Enter")
    page.wait_for_selector("#effects")
    _tab_to(page, "confirm")
    page.keyboard.press("Enter")
    page.wait_for_selector('#stage [data-stage="commanded"]')
    assert run.api(f"/api/v1/recoveries/{run.recovery()}")["resolved_by"] == "Ada"


def _tab_to(page: Any, element: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == element:
            return
    raise AssertionError(f"the keyboard does not come to {element}")


def test_two_quick_clicks_are_one_decision(exporter: ExporterProcess, page_of: Any) -> None:
    run = broken(exporter, "double click")
    page = page_of()
    page.goto(address(exporter, "/console/recovery/decide", id=run.recovery(), do="approve"))
    page.locator("#confirm").dblclick()
    page.wait_for_selector('#stage [data-stage="commanded"]')
    assert page.locator("#notice").count() == 0
    assert [line["summary"] for line in run.audit() if line["kind"] == "approved"] == ["Ada approved it."]


def test_the_page_follows_the_recovery_and_says_so_to_a_screen_reader(exporter: ExporterProcess, page_of: Any) -> None:
    run = broken(exporter, "followed")
    recovery = run.recovery()
    page = page_of()
    page.goto(address(exporter, "/console/recovery", id=recovery))
    other = page_of()  # somebody else decides
    other.goto(address(exporter, "/console/recovery/decide", id=recovery, do="approve"))
    other.locator("#confirm").click()
    page.wait_for_selector('#stage [data-stage="commanded"]')
    page.wait_for_selector("#decide-approve", state="detached")
    assert page.get_by_role("link", name="Abort…").is_visible()
    run.carry_to(recovery, "verifying")
    run.push("trainer-2", events=[RunStarted(time=0.0)])
    run.train(21, 22, sender="trainer-2")
    page.get_by_text("2 of 3 healthy steps, attempt 2").wait_for()
    page.wait_for_function("document.getElementById('announcer').textContent.includes('2 of 3 healthy steps')")
    run.train(23, 23, sender="trainer-2")
    page.wait_for_selector('#stage [data-stage="succeeded"]')
    page.wait_for_function("document.getElementById('announcer').textContent.includes('Succeeded')")


def test_without_scripts_everything_can_be_decided(exporter: ExporterProcess, page_of: Any) -> None:
    run = broken(exporter, "no scripts")
    page = page_of(java_script_enabled=False)
    page.goto(address(exporter, "/console/incident", id=run.incident()))
    assert page.locator(".drawing svg polyline").count() >= 2
    page.locator(".to-recovery").click()
    page.locator("#decide-refuse").click()
    page.locator("#confirm").click()
    page.wait_for_selector('#stage [data-stage="refused"]')
    page.get_by_text("Ada refused it.").first.wait_for()


def test_an_incident_is_acknowledged_by_a_tap(exporter: ExporterProcess, page_of: Any) -> None:
    run = broken(exporter, "tapped")
    page = page_of(**PHONE)
    page.goto(address(exporter, "/console/incident", id=run.incident()))
    page.locator("#acknowledge-all").tap()
    page.wait_for_selector("#acknowledge", state="detached")
    theirs = [it for it in run.api("/api/v1/incidents")["incidents"] if it["run_id"] == "tapped"]
    assert {it["acknowledged_by"] for it in theirs if it["state"] == "acknowledged"} == {"Ada"}
