"""The way of an operator at night, by clicking: alert, link, evidence, plan, approval, and the run is back.

On the stock trainer, with real Prometheus and Alertmanager, in a real browser. With VERL_SENTINEL_SCREENSHOTS set to a
folder, what is seen on the way is kept there as pictures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from demo_run import DemoRun
from playwright.sync_api import Browser, Page, expect

pytestmark = [pytest.mark.trainer, pytest.mark.programs, pytest.mark.timeout(1500)]

PATIENCE_MS = 60_000
RECOVERY_MS = 600_000
"""A rollback has to start the trainer again, which takes most of a minute on two quiet cores."""
WHO = "Ada Night-Watch"


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    # For whoever looks into a failure.
    page.screenshot(path=tmp_path / "last.png", full_page=True)
    context.close()
    # Chromium notes that a wrong token was answered 401, as it should be.
    assert [problem for problem in problems if "401" not in problem] == []


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("VERL_SENTINEL_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=False)


def on_a_phone(page: Page, name: str) -> None:
    """The same page as a Chinese user sees it at night, for a picture."""
    if os.environ.get("VERL_SENTINEL_SCREENSHOTS"):
        assert page.context.browser is not None
        phone = page.context.browser.new_context(
            viewport={"width": 390, "height": 844}, color_scheme="dark", locale="zh-CN", device_scale_factor=2
        )
        phone.add_cookies(page.context.cookies())  # type: ignore[arg-type]
        other = phone.new_page()
        other.goto(page.url)
        picture(other, name)
        phone.close()


def test_an_operator_goes_from_the_firing_alert_to_an_approved_rollback_by_clicking(
    broken_run: DemoRun, page: Page
) -> None:
    run = broken_run
    # The alert fires in Prometheus, Alertmanager has it, its webhook has made a plan.
    alert = run.until(
        lambda: next((one for one in run.alerts() if one["labels"].get("action") == "rollback"), None),
        "an alert that may trigger a recovery fired",
    )
    plan = run.until(
        lambda: found if (found := run.recovery()) and found["stage"] == "awaiting_approval" else None,
        "a plan waited for approval",
    )
    assert alert["labels"]["severity"] == "critical"
    link = alert["annotations"]["console_url"]
    assert link.startswith(run.addresses["exporter"]), "the alert's link leads to this exporter"

    # Whoever follows the link signs in first, and lands where it leads.
    page.goto(link)
    expect(page).to_have_url(re.compile(r"/console/login"))
    page.get_by_label("Your name").fill(WHO)
    page.get_by_label("Token").fill("wrong-" + run.token("operate"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Your name").fill(WHO)
    page.get_by_label("Token").fill(run.token("operate"))
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/console/run\?"))
    assert parse_qs(urlsplit(page.url).query)["id"] == [run.run_id]
    expect(page.get_by_role("heading", level=1)).to_have_text(run.run_id)
    expect(page.locator("#charts canvas").first).to_be_visible()
    picture(page, "run-with-a-situation")

    # The evidence, and the runbook of the alert.
    page.locator("#open").get_by_role("link", name="Evidence and what was done").first.click()
    expect(page.locator("#findings")).to_contain_text("non_finite")
    picture(page, "incident")
    page.get_by_role("link", name="Runbook", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(alert["labels"]["alertname"])
    page.go_back()

    # The plan: the target, why, and what will be different.
    page.locator(".to-recovery").first.click()
    expect(page).to_have_url(re.compile(r"/console/recovery\?"))
    target = plan["planned_target_step"]
    expect(page.get_by_role("heading", level=1)).to_contain_text(str(target))
    expect(page.locator("#different")).to_contain_text("trainer.resume_mode")
    expect(page.locator(f'#checkpoints [data-step="{target}"]')).to_contain_text("Target")
    picture(page, "recovery-awaiting-approval")
    on_a_phone(page, "recovery-on-a-phone")
    page.locator("#decide-approve").click()
    expect(page.locator("#effects")).to_contain_text(f"step {target}")
    assert run.recovery()["stage"] == "awaiting_approval", "looking at it decides nothing"  # type: ignore[index]
    picture(page, "recovery-approve")
    page.locator("#confirm").click()

    # It is carried out, and the page follows by itself.
    expect(page).to_have_url(re.compile(r"/console/recovery\?"))
    expect(page.locator('#progress [data-step="verify"]')).to_have_attribute("data-state", "now", timeout=RECOVERY_MS)
    picture(page, "recovery-verifying")
    expect(page.locator('#stage [data-stage="succeeded"]')).to_be_visible(timeout=RECOVERY_MS)
    picture(page, "recovery-succeeded")

    ended = run.recovery()
    assert ended is not None
    assert (ended["stage"], ended["resolved_by"], ended["target_step"]) == ("succeeded", WHO, target)
    detail = run.detail()
    assert detail is not None
    assert detail["run"]["attempt"] == 2
    assert any(line["recovery_id"] == ended["id"] and WHO in str(line["data"]) for line in run.audit())

    # What was done, and by whom, can be read in the audit log.
    page.get_by_role("link", name="Audit").first.click()
    expect(page.locator("main")).to_contain_text(WHO)
    picture(page, "audit")
    page.goto(run.addresses["exporter"] + "/")
    expect(page.get_by_role("link", name=run.run_id)).to_be_visible()
    picture(page, "runs")


def test_after_ctrl_c_the_demo_ends_with_what_it_promised(broken_run: DemoRun) -> None:
    """After the test above: what was approved by hand counts as the recovery that the scenario promises."""
    if (broken_run.recovery() or {}).get("stage") != "succeeded":
        pytest.skip("needs the recovery of the test above")
    broken_run.until(lambda: "everything goes on" in broken_run.output or None, "the scenario was over")
    assert broken_run.end() == 0, broken_run.output
    assert "recovered" in broken_run.output
