"""The store's own promises, and the reading of Alertmanager's webhook."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import msgspec
import pytest
from recovery_scene import RUN, Scene, incident

from exporter.detectors.base import Severity
from exporter.recovery.alertmanager import MAX_ALERTS, alerts_from_webhook
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.store import RecoveryStore

ALERT = {
    "status": "firing",
    "labels": {"alertname": "VerlNonFinite", "run": RUN},
    "annotations": {"summary": "loss is NaN"},
    "startsAt": "2026-01-01T00:00:00Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://127.0.0.1:9090/graph",
    "fingerprint": "c0ffee",
}


def body(**changes: object) -> bytes:
    return json.dumps({"version": "4", "groupKey": "{}", "receiver": "x", "alerts": [ALERT], **changes}).encode()


@pytest.mark.parametrize("statement", ["DELETE FROM audit", "UPDATE audit SET summary = 'nothing happened'"])
def test_the_audit_log_cannot_be_changed(scene: Scene, statement: str) -> None:
    scene.fail_with(incident())
    other = sqlite3.connect(scene.path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)
    other.close()
    assert len(scene.engine.audit()) == 1


def test_a_second_active_recovery_of_a_run_is_refused_by_the_database(scene: Scene) -> None:
    recovery = scene.fail_with(incident())
    twin = msgspec.structs.replace(recovery, id="rtwin")
    with pytest.raises(sqlite3.IntegrityError), scene.store.transaction():
        scene.store.save(twin)


def test_a_transaction_that_breaks_leaves_nothing(scene: Scene) -> None:
    def note_and_break() -> None:
        with scene.store.transaction():
            scene.store.note(1.0, RUN, "", "test", "half done", data={})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        note_and_break()
    assert scene.engine.audit() == []


def test_another_thread_may_ask(scene: Scene) -> None:
    import concurrent.futures

    recovery = scene.fail_with(incident())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(scene.engine.get, recovery.id).result() == recovery


def test_a_store_whose_disk_does_not_work_is_opened_when_it_does(tmp_path: Path) -> None:
    store = RecoveryStore(tmp_path / "missing" / "recovery.sqlite")
    with pytest.raises(sqlite3.OperationalError):
        store.newest(1)
    (tmp_path / "missing").mkdir()
    assert store.newest(1) == []
    store.close()


def test_a_file_that_is_no_store_is_a_sentence(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"this is no database, and it is long enough to be read as one" * 20)
    with pytest.raises(OSError, match="check the data directory"):
        RecoveryStore(garbage)


def test_old_alerts_are_forgotten_and_their_incident_still_makes_no_second_recovery(scene: Scene) -> None:
    found = incident()
    scene.carry_out(scene.fail_with(found))
    scene.now += 40 * 86_400
    scene.restart()
    scene.tick()
    assert scene.alert(found).outcome == "refused"
    assert len(scene.engine.recoveries()) == 1


def test_a_webhook_is_read() -> None:
    (alert,) = alerts_from_webhook(body())
    assert (alert.fingerprint, alert.starts_at, alert.status, alert.run_id) == (
        "c0ffee", "2026-01-01T00:00:00Z", "firing", RUN,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        (body(version="3"), r"\$.version"),
        (body(alerts=[{**ALERT, "status": "on fire"}]), r"\$.alerts\[0\].status"),
        (body(alerts=[{**ALERT, "labels": {"run": 7}}]), r"\$.alerts\[0\].labels"),
        (body(alerts=[{k: v for k, v in ALERT.items() if k != "fingerprint"}]), "fingerprint"),
        (body(alerts=[{**ALERT, "fingerprint": ""}]), r"\$.alerts\[0\]"),
        (body(alerts=[ALERT] * (MAX_ALERTS + 1)), "at most 1000"),
        (b"[]", "Expected `object`"),
    ],
)
def test_a_webhook_that_is_wrong_says_where(bad: bytes, where: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=where):
        alerts_from_webhook(bad)


def test_a_webhook_that_is_not_json_is_a_decode_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        alerts_from_webhook(b"\x00\xff")


def test_a_policy_from_the_configuration_names_the_place_of_a_mistake() -> None:
    good = msgspec.convert({"mode": "auto", "deadlines": {"stop_seconds": 5}}, RecoveryPolicy)
    assert (good.mode, good.deadlines.stop_seconds) == ("auto", 5)
    with pytest.raises(msgspec.ValidationError, match=r"stop_seconds is 0.* - at `\$.deadlines`"):
        msgspec.convert({"deadlines": {"stop_seconds": 0}}, RecoveryPolicy)
    with pytest.raises(msgspec.ValidationError, match="unknown field `moed`"):
        msgspec.convert({"moed": "auto"}, RecoveryPolicy)


def test_a_full_disk_is_named_and_the_store_works_again_when_there_is_room(scene: Scene) -> None:
    found = incident()
    scene.open(found)
    scene.store._db.execute("PRAGMA max_page_count = 1")

    def alert_until_it_fails() -> None:
        for number in range(100):
            scene.alert(found, starts_at=str(number))

    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        alert_until_it_fails()
    scene.store._db.execute("PRAGMA max_page_count = 100000")
    assert scene.alert(found, starts_at="later").recovery_id is not None


OLD = {
    "id": "rold",
    "run_id": RUN,
    "attempt": 1,
    "mode": "auto",
    "action": "rollback",
    "stage": "verifying",
    "stage_since": 900.0,
    "reason": "non_finite on loss: loss is NaN. Back to step 40.",
    "outcome": "",
    "fingerprint": "f",
    "starts_at": "a",
    "incidents": [{"id": "i", "detector": "non_finite", "signal": "loss", "severity": "critical", "onset": 42}],
    "incident_keys": ["i@1@900.0"],
    "onset": 42,
    "not_after_step": 40,
    "planned_target_step": 40,
    "planned_target_path": "/ckpt/global_step_40",
    "planned_at_step": 50,
    "changes": [{"name": "attempt", "kind": "run", "old": 1, "new": 2, "known": True}],
    "candidates": [{"step": 40, "path": "/c", "attempt": 1, "eligible": True, "reason": "verified"}],
    "new_attempt": 2,
    "progress": "started",
    "command_closed": True,
    "times": {"planned": 890.0, "commanded": 890.0, "started": 900.0},
}
"""A row as it was written before there were rungs, with a field that there is no more."""


def test_a_recovery_from_before_there_were_rungs_is_read_and_goes_on(scene: Scene) -> None:
    db = sqlite3.connect(scene.path)
    row = json.dumps({**OLD, "no_longer_known": 1}).encode()
    columns = "(id, run_id, stage, has_result, record)"
    db.execute(f"INSERT INTO recoveries {columns} VALUES ('rold', ?, 'verifying', 0, ?)", (RUN, row))
    db.commit()
    db.close()
    scene.restart()
    found = scene.recovery("rold")
    assert (found.rung, found.climbed_to, found.considered, found.stages) == ("checkpoint", "", (), ())
    scene.steps(2, 41, 42)
    scene.exit_attempt(2, 1)
    failed = scene.recovery("rold")
    assert (failed.stage, failed.failed_by, failed.considered[-1].rung) == ("failed", "died", "person")
    assert scene.engine.state_of(RUN).failed


def test_what_was_weighed_is_in_the_audit_log(scene: Scene) -> None:
    scene.fail_with(incident(), incident("surge", "kl", severity=Severity.WARNING))
    data = scene.engine.audit()[0].data
    assert [stage["stage"] for stage in data["stages"]] == ["evidence", "assessment", "history", "policy", "plan"]
    assert "surge on kl (warning) may trigger nothing" in data["stages"][0]["refused"][0]
    assert data["considered"] == [{"rung": "checkpoint", "taken": True, "reason": "back to the checkpoint of step 48"}]


def test_what_waits_says_in_the_audit_log_which_stage_it_came_to(scene: Scene) -> None:
    kl = incident("surge", "kl")
    scene.open(kl)
    scene.alert(kl)
    assert [stage["stage"] for stage in scene.engine.audit()[0].data["stages"]] == ["evidence"]
