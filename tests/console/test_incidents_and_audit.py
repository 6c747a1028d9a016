"""Incidents, the audit log, and texts from outside on the console's pages, against a running exporter."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from decision_scene import RUN, BrokenRun, Page, Person, broken, watching
from exporter_process import ExporterProcess, wait_for

from exporter.console.recovery_shown import sure
from exporter.protocol import AttemptExited, AttemptStarted, RunStarted


@pytest.fixture(scope="module")
def approving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with watching(tmp_path_factory.mktemp("approve"), "approve") as exporter:
        yield exporter


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with watching(tmp_path_factory.mktemp("auto"), "auto") as exporter:
        yield exporter


def test_no_text_from_outside_becomes_markup(approving: ExporterProcess) -> None:
    run = BrokenRun(approving, RUN)
    hostile = {
        "trainer.resume_mode": '"><img src=x onerror=alert(1)>',
        "trainer.resume_from_path": "</td><script>1</script>",
    }
    run.supervisor(AttemptStarted(time=0.0, pid=1, resume_step=0))
    run.start()
    run.push(events=[RunStarted(time=0.0, config=hostile)])
    run.break_down()
    recovery = run.recovery()
    who = "<b>ada</b> 王"
    ada = Person(approving.url, who)
    pages = [
        ada.get("/console/recovery", id=recovery),
        ada.get("/console/recovery", run=RUN),
        ada.get("/console/incident", id=run.incident()),
        ada.question(recovery, "approve"),
        ada.decide(recovery, "refuse"),
        ada.get("/console/recoveries", run=RUN),
        ada.get("/console/audit", run=RUN, kind="<script>", recovery="'\"><script>"),
        ada.get("/console/audit", run=RUN),
        ada.get("/console/recovery", id="<script>alert(2)</script>"),
        ada.get("/console/incident", id="<script>alert(2)</script>:a:b:1"),
        ada.get("/console/recovery/decide", id=recovery, do="<script>"),
    ]
    for page in pages:
        for text in ("<script>alert", "<img src=x", "<script>1", "<b>ada", '"><script>'):
            assert text not in page.text, (page.url, text)
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
        assert " style=" not in page.text
    assert html.escape(RUN) in pages[0].text
    assert [page.status for page in pages[-3:]] == [404, 404, 404]


def test_an_incident_says_what_it_is_and_what_was_done(approving: ExporterProcess) -> None:
    run = broken(approving, "the incident")
    found = run.incident()
    page = Person(approving.url, "ada").get("/console/incident", id=found)
    for text in (
        "loss is NaN",
        "What to try",
        "Likely cause",
        "runbooks/VerlNonFinite.md",
        "/g/d/verl-run?var-run=the%20incident&from=",
        "KL to the reference",
        "A plan waits for your approval",
        'data-signal="kl"',
    ):
        assert page.has(text), text
    assert page.text.count('<tr role="row" data-incident=') >= 3
    assert "confidence 1.00" not in page.text, "its own headline repeats what is above it"
    then = re.search(r'id="then">(.*?)</p>', page.text)
    assert then is not None
    assert "KL to the reference (step 32)" in then[1]
    assert page.has(f'href="/console/recovery?id={run.recovery()}"')


def test_a_confidence_is_rounded_down_as_in_a_headline() -> None:
    assert [sure(0.9996), sure(1.0), sure(0.0)] == [0.99, 1.0, 0.0]


def test_acknowledging_one_or_all_says_who(approving: ExporterProcess) -> None:
    run = broken(approving, "acknowledged")
    found = run.incident()
    ada = Person(approving.url, "ada")
    form = {"id": found, "csrf": ada.get("/console/incident", id=found).token}
    page = ada.post("/console/incident/acknowledge", form)
    states = {it["id"]: it["state"] for it in run.api("/api/v1/incidents")["incidents"] if it["run_id"] == run.run}
    assert states.pop(found) == "acknowledged"
    assert set(states.values()) == {"opened"}
    assert page.has("ada acknowledged incident")
    ada.post("/console/incident/acknowledge", {**form, "all": "1"})
    ada.post("/console/incident/acknowledge", {**form, "all": "1"})
    incidents = [it for it in run.api("/api/v1/incidents")["incidents"] if it["run_id"] == run.run]
    assert {it["state"] for it in incidents} == {"acknowledged"}
    lines = [line for line in run.audit() if line["kind"] == "acknowledged"]
    assert sorted(line["data"]["incident"] for line in lines) == sorted(it["id"] for it in incidents)
    assert {line["data"]["who"] for line in lines} == {"ada"}


def test_an_incident_that_is_over_is_still_there_and_says_how_it_ended(acting: ExporterProcess) -> None:
    run = broken(acting, "over")
    found, recovery = run.incident(), run.recovery()
    run.carry_to(recovery, "verifying")
    run.push("trainer-2", events=[RunStarted(time=0.0)])
    run.train(21, 24, sender="trainer-2")
    ada = Person(acting.url, "ada")
    page = wait_for(lambda: (p := ada.get("/console/incident", id=found)).has("Over since") and p, acting)
    assert page.has(f"recovery {recovery} succeeded")
    assert 'id="acknowledge"' not in page.text


def test_a_run_that_is_gone_leaves_its_recovery_and_no_incident(approving: ExporterProcess) -> None:
    run = broken(approving, "gone")
    found, recovery = run.incident(), run.recovery()
    ada = Person(approving.url, "ada")
    ada.decide(recovery, "refuse")
    run.supervisor(AttemptExited(time=0.0, exit_code=0, expected=True))
    answer = approving.request("DELETE", "/api/v1/runs/gone?who=ada", None, {"Authorization": "Bearer ope"})
    assert answer.status == 200, answer.body
    assert ada.get("/console/incident", id=found).status == 404
    page = ada.get("/console/recovery", id=recovery)
    assert (page.status, page.has("The run is not known here any more.")) == (200, True)
    assert ada.get("/console/recovery", run="gone").status == 200
    assert ada.get("/console/recovery", run="never was").status == 404


def test_equal_lines_are_folded_with_their_count_and_alerts_are_named(approving: ExporterProcess) -> None:
    run = broken(approving, "folded")
    found = run.incident()
    detector, signal = found.rsplit(":", 3)[1:3]
    ada = Person(approving.url, "ada")
    labels = {"run": run.run, "alertname": "VerlNonFinite", "action": "rollback", "severity": "critical"}
    labels |= {"detector": detector, "signal": signal}
    alerts = [
        {"status": "firing", "labels": labels, "startsAt": f"2026-01-01T00:00:0{n}Z", "fingerprint": f"same{n}"}
        for n in range(3)
    ]
    assert approving.post("/api/v1/alerts", {"version": "4", "alerts": alerts}).status == 200
    page = ada.get("/console/recovery", id=run.recovery())
    assert page.text.count('class="about">VerlNonFinite · ') == 1
    assert page.has("×3")
    log = ada.get("/console/audit", run=run.run)
    assert log.text.count('class="about">VerlNonFinite · ') == 3, "the log itself has every line"


def test_in_chinese_what_one_decides_on_is_chinese(acting: ExporterProcess) -> None:
    run = broken(acting, "chinese")
    recovery = run.recovery()
    ada = Person(acting.url, "ada")
    ada.decide(recovery, "abort")
    page = ada.get("/console/recovery", id=recovery, lang="zh")
    assert page.has("ada 中止了它")
    assert page.has("因此没有对训练任务做任何操作。")
    assert page.has("即各发现未怀疑的最后一步")
    assert not page.has("aborted it while")
    ada.decide(recovery, "acknowledge")
    assert ada.get("/console/audit", recovery=recovery, lang="zh").has("ada 确认了它。")
    assert ada.get("/console/recovery", id="nope", lang="zh").has("没有恢复 nope。")


def test_the_audit_log_is_filtered_and_paged(approving: ExporterProcess) -> None:
    run = broken(approving, "audited")
    recovery = run.recovery()
    ada = Person(approving.url, "ada")
    ada.decide(recovery, "refuse")
    page = ada.get("/console/audit", run="audited")
    kinds = set(_kinds(page))
    assert {"alert_planned", "refused"} <= kinds
    assert _kinds(ada.get("/console/audit", run="audited", kind="refused")) == ["refused"]
    only = ada.get("/console/audit", recovery=recovery)
    assert (only.text.count("data-kind="), only.has("ada")) == (len(_kinds(only)), True)
    assert ada.get("/console/audit", run="nobody").has("No line matches this.")
    newest = run.audit()[0]["id"]
    older = ada.get("/console/audit", run="audited", before=str(newest))
    assert "refused" not in _kinds(older)
    assert ada.get("/console/audit", before="x" * 50).status == 200


def test_a_long_audit_log_has_pages(approving: ExporterProcess) -> None:
    ada = Person(approving.url, "ada")
    webhook = {"version": "4", "alerts": [_nobody(number) for number in range(120)]}
    assert approving.post("/api/v1/alerts", webhook).status == 200
    page = ada.get("/console/audit", kind="alert_unknown_run")
    assert len(_kinds(page)) == 100
    older = next(part for part in page.text.split('"') if "before=" in part)
    assert len(_kinds(ada.get(html.unescape(older)))) >= 20


def _nobody(number: int) -> dict[str, Any]:
    labels = {"run": f"nobody-{number}", "action": "rollback", "detector": "surge", "signal": "kl"}
    return {"status": "firing", "labels": labels, "startsAt": "2026-01-01T00:00:00Z", "fingerprint": f"f{number}"}


def _kinds(page: Page) -> list[str]:
    return re.findall(r'data-kind="(\w+)"', page.text)
