"""A recovery that was given up, while its supervisor may still go on: what a person can do about it in the console."""

from __future__ import annotations

from pathlib import Path

from decision_scene import CONFIG, Person, broken, watching
from exporter_process import wait_for

SOON = CONFIG.replace("  mode: {mode}\n", "  mode: {mode}\n  deadlines: {{prepare_seconds: 0.1}}\n")


def test_it_can_be_aborted_and_the_pages_say_what_that_does(tmp_path: Path) -> None:
    with watching(tmp_path, "auto", config=SOON) as exporter:
        run = broken(exporter)
        recovery = run.recovery()
        run.carry_to(recovery, "commanded")
        wait_for(lambda: run.api(f"/api/v1/recoveries/{recovery}")["stage"] == "failed", exporter)
        ada = Person(exporter.url, "ada")
        page = ada.get("/console/recovery", id=recovery)
        assert page.has("The supervisor has not begun to stop the trainer within 0.1 s.")
        assert ('id="decide-acknowledge"' in page.text, 'id="decide-abort"' in page.text) == (True, True)
        assert ada.question(recovery, "abort").has("If the trainer was not stopped yet, it goes on as it is.")
        page = ada.decide(recovery, "abort")
        assert page.stage() == "aborted"
        assert page.has("ada aborted it after it had failed. The supervisor has not answered yet.")
        abort = run.supervisor().abort
        assert abort is not None
        assert abort.id == recovery
        run.report(recovery, "failed", running=True)
        assert ada.get("/console/recovery", id=recovery).has("attempt 1 goes on")
        chinese = ada.get("/console/recovery", id=recovery, lang="zh")
        assert not chinese.has("after it had failed"), "said in the reader's language"
