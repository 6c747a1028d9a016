"""Copies, checks, changed settings and gradient histograms: known, bounded, and known again after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_scene import Scene, ScriptedLive, batch
from pages import exposition, value

from exporter.app.views import run_detail
from exporter.protocol import (
    AttemptStarted,
    Changes,
    CheckpointChecked,
    CheckpointCopied,
    CheckpointPruned,
    Excluded,
    GradientHistogram,
    SettingApplied,
)
from exporter.service import snapshot
from exporter.service.admission import Refused
from exporter.service.gradients import GIVE_UP_SECONDS, HistogramSettings
from exporter.service.tiers import BAD_KEPT, KEPT, PRIMARY

LR = "actor_rollout_ref.actor.optim.lr"
ASKED = HistogramSettings(steps=2, detectors=("scripted_step",))


def copied(step: int, tier: Any = "snapshot", **more: Any) -> CheckpointCopied:
    return CheckpointCopied(time=0.0, step=step, tier=tier, name=f"toy-step{step}-ab", place="/s", bytes=7, **more)


def test_the_newest_copy_of_a_tier_and_what_failed_are_known(scene: Scene) -> None:
    scene.push(events=[copied(10), copied(20)])
    scene.now += 5.0
    scene.push(events=[copied(30, ok=False, reason="the disk is full")])
    tier = scene.run().state.care.tiers["snapshot"]
    assert (tier.last.step, tier.copied, tier.failed, tier.failure) == (20, 2, 1, "the disk is full")
    page = exposition(scene).render().body.decode()
    assert value(page, "verl_checkpoint_tier_failing", tier="snapshot") == 1
    assert value(page, "verl_checkpoint_tier_last_timestamp_seconds", tier="snapshot") == scene.now - 5.0
    scene.now += 5.0
    scene.push(events=[copied(30)])
    assert value(exposition(scene).render().body.decode(), "verl_checkpoint_tier_failing", tier="snapshot") == 0


def test_a_copy_that_was_removed_is_not_shown_as_one_that_lies_there(scene: Scene) -> None:
    scene.push(
        events=[copied(10), copied(20), CheckpointPruned(time=0.0, step=10, tier="snapshot", name="toy-step10-ab")]
    )
    assert [one.step for one in scene.run().state.care.tiers["snapshot"].kept] == [20]


def checked(step: int, ok: bool, depth: Any = "load", tier: Any = "", name: str = "") -> CheckpointChecked:
    return CheckpointChecked(time=0.0, step=step, depth=depth, ok=ok, tier=tier, name=name, reason="" if ok else "bad")


def failing(scene: Scene, event: CheckpointChecked) -> float:
    scene.now += 1.0
    scene.push(events=[event])
    page = exposition(scene).render().body.decode()
    return value(page, "verl_checkpoint_check_failing", tier=event.tier or PRIMARY, depth=event.depth)


def test_a_check_that_fails_is_said_until_that_step_or_a_newer_one_passes(scene: Scene) -> None:
    assert [failing(scene, checked(step, ok)) for step, ok in ((10, True), (20, False), (30, True))] == [0, 1, 0]
    assert [failing(scene, checked(step, ok)) for step, ok in ((40, False), (30, True), (40, True))] == [1, 1, 0]
    page = exposition(scene).render().body.decode()
    assert value(page, "verl_checkpoint_last_checked_step", tier=PRIMARY, depth="load") == 40


def test_retention_that_finds_an_older_copy_good_does_not_hide_that_the_newest_is_bad(scene: Scene) -> None:
    def look(step: int, ok: bool, tier: str = "snapshot", of: str = "aa") -> float:
        return failing(scene, checked(step, ok, "content", tier, f"toy-step{step}-{of}"))

    assert (look(50, False), look(40, True)) == (1, 1)
    assert look(60, True, tier="archive") == 0
    assert look(50, True, of="bb") == 1  # another content of that step
    assert look(50, True) == 0
    assert (look(50, False), look(40, False), look(50, True)) == (1, 1, 0)


def test_of_two_that_are_bad_each_is_cleared_by_itself(scene: Scene) -> None:
    assert [failing(scene, checked(step, ok)) for step, ok in ((50, False), (40, False), (40, True))] == [1, 1, 1]
    assert failing(scene, checked(50, True)) == 0


def test_checks_are_counted_by_tier(scene: Scene) -> None:
    scene.push(events=[checked(10, True), checked(10, False, tier="milestone", name="toy-step10-aa")])
    page = exposition(scene).render().body.decode()
    counted = {
        (tier, outcome): value(page, "verl_checkpoint_checks_total", tier=tier, depth="load", outcome=outcome)
        for tier in (PRIMARY, "milestone")
        for outcome in ("passed", "failed")
    }
    assert counted == {
        (PRIMARY, "passed"): 1,
        (PRIMARY, "failed"): 0,
        ("milestone", "passed"): 0,
        ("milestone", "failed"): 1,
    }


def test_a_thousand_bad_ones_leave_the_state_small(scene: Scene) -> None:
    for first in range(0, 1000, 500):
        scene.push(
            events=[checked(step, False, tier="snapshot", name=f"{step}-x") for step in range(first, first + 500)]
        )
    assert [one.step for one in scene.run().state.care.checks["snapshot/load"].bad] == list(
        range(1000 - BAD_KEPT, 1000)
    )


def test_however_many_copies_there_are_the_state_stays_small(scene: Scene) -> None:
    long = "x" * 4000
    for first in range(0, 2000, 500):
        events = [
            CheckpointCopied(time=0.0, step=step, tier="snapshot", name=f"{step}-{long}", place=long, reason=long)
            for step in range(first, first + 500)
        ]
        scene.push(events=events)
    state = scene.run().state
    assert len(state.care.tiers["snapshot"].kept) == KEPT
    assert len(msgspec.msgpack.encode(state.care)) < 20_000


def test_what_the_supervisor_started_an_attempt_with_is_shown_and_bounded(scene: Scene) -> None:
    changes = Changes(settings={LR: 1e-6, "long": "x" * 9000}, exclude=[Excluded(node="n1", gpu="GPU-1")], skip_steps=2)
    event = AttemptStarted(time=0.0, pid=1, changes=changes, executor="slurm")
    scene.push(sender="sup", role="supervisor", events=[event])
    scene.push(events=[SettingApplied(time=0.0, name=LR, wanted=1e-6, restored=1e-5, found=1e-6)])
    shown = run_detail(scene.run(), scene.now)
    assert shown.changes is not None
    assert (shown.executor, shown.changes.exclude[0].node, shown.changes.skip_steps) == ("slurm", "n1", 2)
    assert len(str(shown.changes.settings["long"])) < 3000
    assert [(one.name, one.ok) for one in shown.settings_applied] == [(LR, True)]
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=2)])
    assert (scene.run().state.in_force.changes, scene.run().state.in_force.settings) == (None, [])


def test_what_a_dead_attempt_says_of_its_settings_is_not_taken_for_the_newest(scene: Scene) -> None:
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=2)])
    scene.push(attempt=1, events=[SettingApplied(time=0.0, name=LR, wanted=1e-6, found=1e-5, ok=False)])
    assert scene.run().state.in_force.settings == []


@pytest.mark.parametrize(
    ("event", "where"),
    [
        (copied(2**60), "$.events[0].step"),
        (CheckpointCopied(time=0.0, step=1, tier="snapshot", name="x" * 5000), "$.events[0].name"),
        (GradientHistogram(time=0.0, step=1, file="f", layers=-1), "$.events[0].layers"),
        (SettingApplied(time=0.0, name="lr", wanted=2**64), "$.events[0].wanted"),
        (AttemptStarted(time=0.0, pid=1, changes=Changes(settings={"a": 2**70})), '$.events[0].changes.settings["a"]'),
        (AttemptStarted(time=0.0, pid=1, changes=Changes(removed=["a"] * 1001)), "$.events[0].changes.removed"),
    ],
)
def test_what_breaks_a_bound_is_refused_with_its_place(scene: Scene, event: Any, where: str) -> None:
    with pytest.raises(Refused) as refused:
        scene.core.accept(batch(events=[event]), scene.now)
    assert refused.value.where == where


def test_all_of_it_is_known_after_a_restart_by_journal_and_by_snapshot(scene: Scene) -> None:
    scene.push(events=[copied(10), CheckpointChecked(time=0.0, step=10, depth="content", ok=True)])
    scene.push(events=[GradientHistogram(time=0.0, step=3, file="/g/3.npz", layers=4, norm=float("nan"))])
    before = scene.run().state.care, scene.run().state.gradients.count
    scene.restart()
    assert (scene.run().state.care, scene.run().state.gradients.count) == before
    scene.core.snapshot_all()
    scene.restart()
    assert (scene.run().state.care, scene.run().state.gradients.count) == before


def test_a_snapshot_of_an_older_exporter_still_loads(scene: Scene) -> None:
    from backports import zstd

    scene.step(3)
    plain = msgspec.msgpack.decode(zstd.decompress(snapshot.take(scene.run())))
    for name in ("care", "gradients", "in_force"):
        del plain["state"][name]
    old = zstd.compress(msgspec.msgpack.encode(plain))
    restored = snapshot.restore(old, scene.core._make_detectors, scene.core._rules)
    assert (restored.state.current, restored.state.care.tiers, restored.state.gradients.count) == (3, {}, 0)


def test_a_snapshot_that_has_one_state_for_a_depth_still_loads_and_still_says_what_failed(scene: Scene) -> None:
    from backports import zstd

    old = {"passed": 3, "failed": 1, "last_step": 40, "last_at": 100.0, "failed_step": 50, "failed_at": 101.0}
    scene.step(3)
    plain = msgspec.msgpack.decode(zstd.decompress(snapshot.take(scene.run())))
    plain["state"]["care"]["checks"] = {
        "content": {**old, "failed_tier": "snapshot", "failure": "one file differs"},
        "load": {**old, "failed_at": 99.0, "failed_tier": "snapshot", "failure": "one file differs"},
    }
    body = zstd.compress(msgspec.msgpack.encode(plain))
    care = snapshot.restore(body, scene.core._make_detectors, scene.core._rules).state.care
    assert [(tier, depth, check.passed) for tier, depth, check in care.verifications()] == [
        ("snapshot", "content", 3),
        (PRIMARY, "load", 3),
    ]
    assert [(one.step, one.reason) for one in care.checks["snapshot/content"].bad] == [(50, "one file differs")]
    assert care.checks["primary/load"].bad == []


def asking(folder: Path) -> Scene:
    return Scene(folder, histogram=ASKED)


def beat(scene: Scene, **more: Any) -> Any:
    return scene.push(**more).histogram


def test_an_incident_asks_the_trainer_once_until_a_histogram_has_come(tmp_path: Path) -> None:
    scene = asking(tmp_path)
    scene.step(1)
    assert beat(scene) is None
    scene.step(2, grad=50.0)
    asked = beat(scene)
    assert (asked.steps, asked.reason) == (2, f"Incident {scene.incidents()['scripted_step'].id}: grad_norm is 50")
    assert beat(scene, sender="w", role="worker") is None
    assert beat(scene, sender="sup", role="supervisor") is None
    scene.restart()
    assert beat(scene) == asked
    scene.push(events=[GradientHistogram(time=0.0, step=3, file="/g/3.npz", layers=4)])
    scene.step(3, grad=500.0)
    assert beat(scene) is None
    scene.close()


def test_a_trainer_that_writes_none_is_not_asked_for_ever(tmp_path: Path) -> None:
    scene = asking(tmp_path)
    scene.step(1, grad=50.0)
    assert beat(scene) is not None
    scene.now += GIVE_UP_SECONDS + 1
    assert beat(scene) is None
    scene.close()


def test_the_next_attempt_is_not_asked_for_what_the_last_one_had(tmp_path: Path) -> None:
    scene = asking(tmp_path)
    scene.step(1, grad=50.0)
    scene.push(sender="sup", role="supervisor", attempt=2, events=[AttemptStarted(time=0.0, pid=2)])
    assert beat(scene, attempt=2, sender="trainer-2") is None
    scene.close()


def test_other_detectors_and_none_at_all_ask_for_nothing(tmp_path: Path) -> None:
    for number, settings in enumerate((HistogramSettings(), HistogramSettings(steps=0, detectors=("scripted_step",)))):
        folder = tmp_path / str(number)
        folder.mkdir()
        scene = Scene(folder, histogram=settings)
        scene.step(1, grad=500.0)
        assert beat(scene) is None
        scene.close()


def test_live_detectors_may_ask_too(tmp_path: Path) -> None:
    from exporter.protocol import OpenPhase, PhaseReport

    scene = Scene(tmp_path, histogram=HistogramSettings(detectors=(ScriptedLive.name,)))
    scene.step(1)
    scene.push(phase=PhaseReport(step=2, open=[OpenPhase(name="gen", seconds=90.0)]))
    scene.tick()
    assert beat(scene) is not None
    scene.close()
