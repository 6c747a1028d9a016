"""Approve, refuse, abort and acknowledge on the console's pages, against a running exporter: what they say, what they
do, who it is put down to, and who may not."""

from __future__ import annotations

import html
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from decision_scene import BrokenRun, Page, Person, broken, watching
from exporter_process import ExporterProcess

from exporter.protocol import AttemptStarted, RunStarted


@pytest.fixture(scope="module")
def approving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with watching(tmp_path_factory.mktemp("approve"), "approve") as exporter:
        yield exporter


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with watching(tmp_path_factory.mktemp("auto"), "auto") as exporter:
        yield exporter


def stage(run: BrokenRun, recovery: str) -> str:
    return str(run.api(f"/api/v1/recoveries/{recovery}")["stage"])


def lines_of(run: BrokenRun, who: str) -> list[Any]:
    return [line for line in run.audit() if who in str(line["data"]) and who in line["summary"]]


def lines_of_kind(page: Page) -> list[str]:
    return re.findall(r'data-kind="(\w+)"', page.text)


def test_the_plan_says_why_what_will_be_different_and_which_checkpoint(approving: ExporterProcess) -> None:
    run = broken(approving, "the plan")
    page = Person(approving.url, "ada").get("/console/recovery", run="the plan")
    assert page.stage() == "awaiting_approval"
    for text in (
        "Rollback to step 20",
        "non_finite on loss",
        "trainer.resume_mode",
        "<del>auto</del>",
        "<ins>resume_path</ins>",
        "<ins>/ckpt/11/global_step_20</ins>",
        "newer than step 29, the last that the findings leave unsuspected",
        "verified, and saved before the onset less the margin",
        "3 of 3 in 24 hours",
        "approve: a person decides",
    ):
        assert page.has(text), text
    assert page.has("Steps 21 to 36 are trained again."), "as far as the run has come by now"
    assert page.has("http://grafana.example:3000/g/d/verl-incidents?var-run=the%20plan")
    assert run.recovery() in page.text


def test_approving_is_asked_first_and_put_down_to_who_did_it(approving: ExporterProcess) -> None:
    run = broken(approving, "approved")
    recovery = run.recovery()
    ada = Person(approving.url, "ada")
    question = ada.question(recovery, "approve")
    assert question.has("Attempt 2 starts from the checkpoint of step 20")
    assert question.has("The audit log will say that ada decided it.")
    assert stage(run, recovery) == "awaiting_approval", "nothing is done by looking"
    page = ada.decide(recovery, "approve")
    assert (page.stage(), page.url.endswith(f"/console/recovery?id={recovery}")) == ("commanded", True)
    assert [line["summary"] for line in lines_of(run, "ada")] == ["ada approved it."]
    command = run.supervisor().command
    assert command is not None
    assert command.target_step == 20


def test_a_double_click_is_one_decision(approving: ExporterProcess) -> None:
    run = broken(approving, "twice")
    recovery = run.recovery()
    ada = Person(approving.url, "ada")
    form = ada.question(recovery, "approve").form()
    first, second = (ada.post("/console/recovery/decide", form) for _ in range(2))
    assert (first.stage(), second.stage()) == ("commanded", "commanded")
    assert 'id="notice"' not in second.text
    assert len(lines_of(run, "ada")) == 1


def test_refusing_does_nothing_to_the_run(approving: ExporterProcess) -> None:
    run = broken(approving, "refused")
    recovery = run.recovery()
    bob = Person(approving.url, "bob")
    page = bob.decide(recovery, "refuse")
    assert page.stage() == "refused"
    assert page.has("bob refused it.")
    assert run.supervisor().command is None
    assert [line["summary"] for line in lines_of(run, "bob")] == ["bob refused it."]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "http://evil.example", "Sec_Fetch_Site": ""},
        {"Origin": "null", "Sec_Fetch_Site": ""},
        {"Origin": "", "Sec_Fetch_Site": "same-site"},
        {"Origin": "", "Sec_Fetch_Site": ""},
    ],
)
def test_a_form_of_another_site_is_refused(approving: ExporterProcess, headers: dict[str, str]) -> None:
    run = _waiting(approving)
    ada = Person(approving.url, "ada")
    form = ada.question(run.recovery(), "approve").form()
    page = ada.post("/console/recovery/decide", form, **headers)
    assert page.status == 403
    assert stage(run, run.recovery()) == "awaiting_approval"


def test_a_form_without_its_token_or_with_that_of_another_is_refused(approving: ExporterProcess) -> None:
    run = _waiting(approving)
    recovery = run.recovery()
    ada, eve = Person(approving.url, "ada"), Person(approving.url, "eve")
    form = ada.question(recovery, "approve").form()
    for token in ("", "x", eve.question(recovery, "approve").token):
        page = ada.post("/console/recovery/decide", {**form, "csrf": token})
        assert page.status == 403
    assert stage(run, recovery) == "awaiting_approval"


def test_who_is_not_signed_in_decides_nothing(approving: ExporterProcess) -> None:
    run = _waiting(approving)
    recovery = run.recovery()
    form = Person(approving.url, "ada").question(recovery, "approve").form()
    stranger = Person(approving.url)
    assert stranger.get("/console/recovery", id=recovery).url.startswith(f"{approving.url}/console/login")
    assert stranger.post("/console/recovery/decide", form).status in (401, 403)
    pusher = Person(approving.url, "mallory", token="pu")
    assert pusher.get("/console/recovery", id=recovery).url.startswith(f"{approving.url}/console/login")
    assert pusher.post("/console/recovery/decide", form).status in (401, 403)
    assert pusher.post("/console/incident/acknowledge", {**form, "id": run.incident()}).status in (401, 403)
    assert stage(run, recovery) == "awaiting_approval"


def _waiting(exporter: ExporterProcess) -> BrokenRun:
    """One run for all tests in which nothing may happen."""
    run = BrokenRun(exporter, "nobody decides")
    return (
        run
        if any(it["run_id"] == run.run for it in run.api("/api/v1/recoveries")["recoveries"])
        else broken(exporter, run.run)
    )


def test_a_target_that_moved_since_it_was_shown_is_not_approved(approving: ExporterProcess) -> None:
    run = broken(approving, "moved")
    recovery = run.recovery()
    ada = Person(approving.url, "ada")
    page = ada.decide(recovery, "approve", target="30")  # what the page showed a while ago
    assert page.has("The target has moved since you looked, and nothing was done.")
    assert page.stage() == "awaiting_approval"
    assert page.has("Rollback to step 20"), "the plan as it is now"
    assert ada.decide(recovery, "approve").stage() == "commanded"


def test_a_plan_that_is_another_since_it_was_shown_is_not_approved(approving: ExporterProcess) -> None:
    """The same checkpoint with other settings, or a stop, is another plan."""
    run = broken(approving, "another plan")
    recovery = run.recovery()
    ada = Person(approving.url, "ada")
    page = ada.decide(recovery, "approve", plan="of a while ago")
    assert page.has("The plan has changed since you looked, and nothing was done.")
    assert page.stage() == "awaiting_approval"
    assert ada.decide(recovery, "approve").stage() == "commanded"


def test_what_somebody_else_has_decided_meanwhile_is_said(approving: ExporterProcess) -> None:
    run = broken(approving, "meanwhile")
    recovery = run.recovery()
    ada, bob = Person(approving.url, "ada"), Person(approving.url, "bob")
    form = ada.question(recovery, "approve").form()
    bob.decide(recovery, "refuse")
    page = ada.post("/console/recovery/decide", form)
    assert page.has("It has moved on since you looked, and nothing was done.")
    assert (page.stage(), page.has("bob refused it.")) == ("refused", True)
    late = ada.question(recovery, "approve")
    assert late.has("It has moved on since you looked"), "nor is one asked what cannot be decided"


def test_an_abort_before_the_supervisor_was_told_withdraws_it(acting: ExporterProcess) -> None:
    run = broken(acting, "abort untold")
    recovery = run.recovery()
    ada = Person(acting.url, "ada")
    assert ada.question(recovery, "abort").has("The supervisor has not been told yet: the command is withdrawn")
    page = ada.decide(recovery, "abort")
    assert (page.stage(), page.has("nothing was done to the run")) == ("aborted", True)
    answer = run.supervisor()
    assert (answer.command, answer.abort) == (None, None)


@pytest.mark.parametrize(
    ("at", "said", "running", "left"),
    [
        ("commanded", "If the trainer was not stopped yet, it goes on as it is.", True, "attempt 1 goes on"),
        ("stopping", "A stop that has begun is finished", False, "a person has to start it"),
        ("starting", "The trainer is stopped, and stays so until", False, "a person has to start it"),
        ("verifying", "Attempt 2 goes on.", True, "Attempt 2 was started from step 20 and left running, not verified."),
    ],
)
def test_an_abort_is_shown_in_every_stage(
    acting: ExporterProcess, at: str, said: str, running: bool, left: str
) -> None:
    run = broken(acting, f"abort {at}")
    recovery = run.recovery()
    run.carry_to(recovery, at)
    ada = Person(acting.url, "ada")
    assert ada.get("/console/recovery", id=recovery).stage() == at
    assert ada.question(recovery, "abort").has(said)
    page = ada.decide(recovery, "abort")
    assert page.stage() == "aborted"
    if at != "verifying":
        abort = run.supervisor().abort
        assert abort is not None
        assert (abort.id, abort.reason) == (recovery, "ada aborted it.")
        run.report(recovery, "failed", running=running)
        page = ada.get("/console/recovery", id=recovery)
    assert page.has(left)
    assert run.supervisor().abort is None
    line = next(line for line in run.audit() if line["kind"] == "aborted")
    assert "ada aborted it while it was" in line["summary"]
    assert ada.get("/console/run", id=run.run).has("A recovery was aborted: until that is acknowledged")
    assert ada.decide(recovery, "acknowledge").has("ada acknowledged it.")
    for kind in ("aborted", "acknowledged"):
        assert lines_of_kind(ada.get("/console/audit", recovery=recovery, kind=kind)) == [kind]
    assert not ada.get("/console/run", id=run.run).has("A recovery was aborted")


def test_an_abort_holds_when_the_recovery_goes_on_while_its_question_is_read(acting: ExporterProcess) -> None:
    run = broken(acting, "abort while it moves")
    recovery = run.recovery()
    assert run.supervisor().command is not None
    ada = Person(acting.url, "ada")
    form = ada.question(recovery, "abort").form()
    run.report(recovery, "stopping", running=True)
    page = ada.post("/console/recovery/decide", form)
    assert (page.stage(), 'id="notice"' in page.text) == ("aborted", False)
    assert page.has("ada aborted it while it was stopping.")


def test_question_and_page_of_an_abort_agree_on_whether_the_supervisor_is_told(acting: ExporterProcess) -> None:
    told = "it is told of the abort with each of its pushes until it has"
    ada = Person(acting.url, "ada")
    for name, closed in (("verifying, command open", False), ("verifying, command closed", True)):
        run = broken(acting, name)
        recovery = run.recovery()
        run.carry_to(recovery, "starting")
        run.attempt = 2
        run.supervisor(AttemptStarted(time=0.0, pid=2, resume_step=20, command_id=recovery))
        if closed:
            run.report(recovery, "succeeded", running=True)
        question = ada.question(recovery, "abort")
        assert (question.has("Attempt 2 goes on."), question.has(told)) == (True, not closed)
        page = ada.decide(recovery, "abort")
        assert page.has("The supervisor is told again with each of its pushes") is not closed


def test_an_abort_of_what_has_ended_meanwhile_does_nothing_and_says_so(acting: ExporterProcess) -> None:
    run = broken(acting, "abort too late")
    recovery = run.recovery()
    assert run.supervisor().command is not None
    ada = Person(acting.url, "ada")
    form = ada.question(recovery, "abort").form()
    run.report(recovery, "failed", running=True)
    page = ada.post("/console/recovery/decide", form)
    assert (page.stage(), page.has("It has moved on since you looked")) == ("failed", True)
    assert not lines_of(run, "ada")


def test_the_progress_is_shown_with_times_and_healthy_steps(acting: ExporterProcess) -> None:
    run = broken(acting, "progress")
    recovery = run.recovery()
    ada = Person(acting.url, "ada")
    states = _states(ada.get("/console/recovery", id=recovery))
    assert states == {"plan": "done", "command": "now", "stop": "todo", "start": "todo", "verify": "todo"}
    run.carry_to(recovery, "verifying")
    run.push("trainer-2", events=[RunStarted(time=0.0)])
    run.train(21, 22, sender="trainer-2")
    page = ada.get("/console/recovery", id=recovery)
    assert _states(page) == {"plan": "done", "command": "done", "stop": "done", "start": "done", "verify": "now"}
    assert page.has("2 of 3 healthy steps, attempt 2")
    run.train(23, 23, sender="trainer-2")
    page = ada.get("/console/recovery", id=recovery)
    assert (page.stage(), set(_states(page).values())) == ("succeeded", {"done"})
    assert 'id="decisions"' not in page.text
    assert page.has("What was to be different")


def _states(page: Page) -> dict[str, str]:
    return dict(re.findall(r'data-step="(\w+)" data-state="(\w+)"', page.text))


def test_a_supervisor_that_took_an_older_checkpoint_is_told_of(acting: ExporterProcess) -> None:
    run = broken(acting, "older")
    recovery = run.recovery()
    assert run.supervisor().command is not None
    run.report(recovery, "accepted", running=True)
    run.report(recovery, "starting", running=False, target_step=10, target_path="/ckpt/1/global_step_10")
    page = Person(acting.url, "ada").get("/console/recovery", id=recovery)
    assert page.has("The supervisor took the checkpoint of step 10")


OPEN = """
recovery:
  mode: {mode}
  trigger: direct
"""


def test_without_tokens_the_form_asks_for_a_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    with watching(tmp_path_factory.mktemp("open"), "approve", config=OPEN) as exporter:
        run = broken(exporter, "open")
        recovery = run.recovery()
        person = Person(exporter.url)
        question = person.question(recovery, "approve")
        assert 'name="who"' in question.text
        refused = person.post("/console/recovery/decide", {**question.form(), "who": "  "})
        assert refused.status == 400
        assert stage(run, recovery) == "awaiting_approval"
        page = person.decide(recovery, "approve", who="Grace 王")
        assert page.stage() == "commanded"
        assert [line["summary"] for line in run.audit() if line["kind"] == "approved"] == ["Grace 王 approved it."]
        assert html.escape("Grace 王") in person.question(recovery, "abort").text, "it is remembered"


def test_while_the_store_cannot_be_read_the_page_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("locked")
    with watching(folder, "approve") as exporter:
        run = broken(exporter, "locked")
        recovery = run.recovery()
        ada = Person(exporter.url, "ada")
        form = ada.question(recovery, "approve").form()
        store = next(folder.rglob("*recover*.sqlite*"))
        lock = sqlite3.connect(str(store).removesuffix("-wal").removesuffix("-shm"), isolation_level=None)
        try:
            lock.execute("BEGIN EXCLUSIVE")
            page = ada.post("/console/recovery/decide", form)
            assert (page.status, page.has("cannot be written")) == (503, True)
        finally:
            lock.execute("ROLLBACK")
            lock.close()
        assert stage(run, recovery) == "awaiting_approval"
