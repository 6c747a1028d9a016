"""The facts that a decision rests on: what each attempt ran with and how long it was healthy, broken GPUs, unfit
checkpoints, a configuration in git; and that a restart of the exporter knows them all again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_scene import Scene
from msgspec.structs import replace

from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    Changes,
    CheckpointChecked,
    CheckpointPruned,
    CheckpointSaved,
    CommandProgress,
    Excluded,
    GpuReading,
    RunStarted,
    SettingApplied,
    Step,
)
from exporter.recovery.facts import Alert
from exporter.recovery.policy import RecoveryPolicy, Trigger
from exporter.recovery.rung_settings import ConfigRung, GitSource
from exporter.service import snapshot
from exporter.service.course import CONFIGS_KEPT
from exporter.service.stable_config import StableConfigs, parse, read

LR = "actor_rollout_ref.actor.optim.lr"
POLICY = RecoveryPolicy(
    mode="auto",
    success_steps=2,
    healthy_steps=3,
    cooldown_seconds=0.0,
    triggers=(Trigger(detectors=("scripted_step",)),),
)


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    made = Scene(tmp_path, policy=POLICY)
    yield made
    made.close()


def start(scene: Scene, attempt: int, *, lr: float = 1e-6, resume: int = 0, changes: Changes | None = None) -> None:
    started = AttemptStarted(time=0.0, pid=1, resume_step=resume, changes=changes, executor="ray")
    scene.push(sender="sup", role="supervisor", attempt=attempt, events=[started])
    told = RunStarted(time=0.0, config={LR: lr, "data.seed": 1})
    scene.push(sender=f"trainer-{attempt}", attempt=attempt, events=[told])


def facts(scene: Scene) -> Any:
    return scene.core.link.facts_of(scene.run())


def train(scene: Scene, attempt: int, *steps: int, grad: float = 1.0) -> None:
    for step in steps:
        scene.step(step, attempt=attempt, sender=f"trainer-{attempt}", grad=grad)


def test_each_attempt_has_what_it_ran_with_and_how_long_it_was_healthy(scene: Scene) -> None:
    start(scene, 1, lr=1e-6)
    train(scene, 1, 1, 2, 3, 4)
    train(scene, 1, 5, grad=500.0)
    train(scene, 1, 6)
    start(scene, 2, lr=1e-2, resume=3, changes=Changes(settings={LR: 1e-2}))
    train(scene, 2, 4)
    first, second = facts(scene).attempts
    assert (first.config[LR], first.healthy_steps, first.verl_version, first.executor) == (1e-6, 4, "0.9.1", "ray")
    assert (second.config[LR], second.healthy_steps, second.resume_step) == (1e-2, 1, 3)
    assert second.changes == Changes(settings={LR: 1e-2})
    before = facts(scene)
    scene.restart()
    assert facts(scene) == before
    scene.core.snapshot_all()
    scene.restart()
    assert facts(scene) == before


def test_an_attempt_whose_trainer_never_spoke_has_no_configuration_of_another(scene: Scene) -> None:
    start(scene, 1)
    train(scene, 1, 1)
    for attempt in (2, 3):
        started = AttemptStarted(time=0.0, pid=1, resume_step=1, changes=Changes(verl_version="0.8.0"))
        scene.push(sender="sup", role="supervisor", attempt=attempt, events=[started])
    second = facts(scene).attempts[1]
    assert (second.config, second.verl_version) == ({}, "0.8.0")


def test_configurations_of_a_few_attempts_are_kept_and_always_that_of_the_longest_healthy_one(scene: Scene) -> None:
    start(scene, 1, lr=7.0)
    train(scene, 1, *range(1, 9))
    for attempt in range(2, 30):
        start(scene, attempt, lr=float(attempt), resume=1)
        train(scene, attempt, 2)
    kept = [one.number for one in facts(scene).attempts if one.config]
    assert kept[0] == 1
    assert kept[-1] == 29
    assert len(kept) <= CONFIGS_KEPT + 1


def test_a_broken_gpu_is_known_after_its_trainer_has_died_and_until_it_works_again(scene: Scene) -> None:
    start(scene, 1)
    lost = GpuReading(node="node-b", index=3, uuid="GPU-3", lost=True, error="GPU is lost")
    of_a_program = GpuReading(node="node-a", index=0, xid_errors=1, last_xid=31)
    scene.push(gpus=[lost, of_a_program])
    scene.push(sender="sup", role="supervisor", events=[AttemptExited(time=0.0, exit_code=1)])
    expected = (Excluded(node="node-b", gpu="GPU-3", reason="the GPU is lost (GPU is lost)"),)
    assert facts(scene).nodes_at_fault == expected
    scene.restart()
    assert facts(scene).nodes_at_fault == expected
    scene.push(gpus=[GpuReading(node="node-b", index=4, uuid="GPU-4", xid_errors=2, last_xid=79)])
    assert facts(scene).nodes_at_fault == (Excluded(node="node-b", reason="2 GPUs: Xid 79"),)
    start(scene, 2)
    scene.push(attempt=2, gpus=[GpuReading(node="node-b", index=3, uuid="GPU-3", utilization_ratio=0.5)])
    assert [one.gpu for one in facts(scene).nodes_at_fault] == ["GPU-4"]


def test_a_checkpoint_that_failed_its_check_or_was_removed_is_no_target(scene: Scene) -> None:
    start(scene, 1)
    for step in (2, 4, 6):
        scene.push(events=[CheckpointSaved(time=0.0, step=step, path=f"/c/global_step_{step}", verified=True)])
    bad = CheckpointChecked(time=0.0, step=6, depth="load", ok=False, reason="a tensor has another shape")
    scene.push(events=[bad, CheckpointPruned(time=0.0, step=4)])
    scene.push(events=[CheckpointChecked(time=0.0, step=2, depth="content", ok=False, tier="snapshot")])
    sound = {one.step: one.verified for one in facts(scene).checkpoints}
    assert sound == {2: True, 4: False, 6: False}
    assert "another shape" in next(one.reason for one in facts(scene).checkpoints if one.step == 6)
    scene.now += 1
    scene.push(events=[CheckpointSaved(time=0.0, step=6, path="/c/global_step_6", verified=True)])
    assert facts(scene).checkpoints[-1].verified, "it was saved again"


def test_a_snapshot_from_before_there_was_any_of_this_is_still_read(scene: Scene) -> None:
    start(scene, 1)
    train(scene, 1, 1)
    from backports import zstd

    stored = msgspec.msgpack.decode(zstd.decompress(snapshot.take(scene.run())))
    del stored["state"]["course"]
    stored["state"]["attempts"] = [{"number": 1, "resume_step": 0}]
    body = zstd.compress(msgspec.msgpack.encode(stored), 1)
    run = snapshot.restore(body, scene.core._make_detectors, scene.core._rules)
    assert (run.state.attempts_now()[0].number, run.state.course.healthy_steps) == (1, 0)


def command_of(scene: Scene, attempt: int) -> Any:
    return scene.push(sender="sup", role="supervisor", attempt=attempt).command


def fail(scene: Scene, attempt: int, step: int) -> Any:
    train(scene, attempt, step, grad=500.0)
    found = scene.incidents()["scripted_step"]
    labels = {"run": "r", "detector": found.detector, "signal": found.signal, "action": "rollback"}
    alert = Alert(fingerprint="f", starts_at=str(attempt), status="firing", labels=labels)
    return scene.core.alert(alert, scene.now)


def test_a_bad_configuration_is_climbed_out_of_through_the_core_and_proved(scene: Scene) -> None:
    """Attempt 2 has a ruinous rate; the checkpoint does not hold, the configuration of attempt 1 does."""
    start(scene, 1, lr=1e-6)
    train(scene, 1, 1, 2, 3, 4)
    scene.push(events=[CheckpointSaved(time=0.0, step=4, path="/c/global_step_4", verified=True)])
    start(scene, 2, lr=1e-2, resume=4)
    train(scene, 2, 5)
    assert fail(scene, 2, 7).outcome == "planned"
    first = command_of(scene, 2)
    assert (first.rung, first.target_step, first.changes.settings) == ("checkpoint", 4, {})
    carried(scene, first, 3, lr=1e-2)
    train(scene, 3, 5, grad=500.0)
    assert scene.engine.get(first.id).failed_by == "relapse"
    scene.restart()
    second = command_of(scene, 3)
    assert (second.rung, second.attempt, second.target_step) == ("config", 3, 4)
    assert second.changes.settings == {LR: 1e-6}
    assert not scene.engine.state_of("r").failed
    carried(scene, second, 4, lr=1e-6)
    applied = SettingApplied(time=0.0, name=LR, wanted=1e-6, restored=1e-2, found=1e-6)
    scene.push(attempt=4, sender="trainer-4", events=[applied])
    train(scene, 4, 5, 6)
    done = scene.engine.get(second.id)
    assert (done.stage, done.climbed_from) == ("succeeded", first.id)
    scene.tick(times=3)
    assert not scene.incidents(), "what the climb has answered is resolved"


def carried(scene: Scene, command: Any, attempt: int, *, lr: float) -> None:
    for state in ("accepted", "stopping", "stopped", "starting"):
        report(scene, attempt - 1, command, state)
    start(scene, attempt, lr=lr, resume=4, changes=command.changes)
    for state in ("started", "succeeded"):
        report(scene, attempt, command, state)


def report(scene: Scene, attempt: int, command: Any, state: Any) -> None:
    said = CommandProgress(time=0.0, command_id=command.id, state=state, target_step=4, target_path="/c/global_step_4")
    scene.push(sender="sup", role="supervisor", attempt=attempt, events=[said])


def repository(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()

    def git(*words: str) -> None:
        named = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *named, "-C", str(folder), *words], check=True, capture_output=True, timeout=60)

    git("init", "-q", "-b", "prod-stable")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    git("add", ".")
    git("commit", "-qm", "as it runs")
    return folder


def test_a_configuration_is_read_from_a_branch_of_a_repository(tmp_path: Path) -> None:
    files = {
        "nested.yaml": b"actor_rollout_ref:\n  actor:\n    optim: {lr: 1e-6, betas: [0.9, 0.95]}\n",
        "flat.json": f'{{"{LR}": 2e-6}}'.encode(),
        "words.txt": f"# by hand\n++{LR}=3e-6\ntrainer.project_name=a b\n".encode(),
        "words.yaml": f"- {LR}=4e-6\n".encode(),
    }
    folder = repository(tmp_path / "repo", files)
    found = {name: read((str(folder), "prod-stable", name)) for name in files}
    assert {name: one.settings.get(LR) for name, one in found.items()} == {
        "nested.yaml": 1e-6,
        "flat.json": 2e-6,
        "words.txt": 3e-6,
        "words.yaml": 4e-6,
    }
    assert not [one.error for one in found.values() if one.error]
    (folder / "nested.yaml").write_text("uncommitted: {lr: 9}")
    assert read((str(folder), "prod-stable", "nested.yaml")).settings == found["nested.yaml"].settings


def _aliases(levels: int) -> bytes:
    """A few lines of YAML that are 9 to the power of ``levels`` empty sections, and no setting."""
    sections = ["k0: &k0 {}"]
    for level in range(1, levels + 1):
        inner = ", ".join(f"x{i}: *k{level - 1}" for i in range(9))
        sections.append(f"k{level}: &k{level} {{{inner}}}")
    return "\n".join(sections).encode()


@pytest.mark.parametrize(
    ("branch", "file", "words"),
    [
        ("gone", "a.yaml", "no such branch"),
        ("prod-stable", "gone.yaml", "gone.yaml"),
        ("prod-stable", "binary", "not UTF-8"),
        ("prod-stable", "text", "no setting of the form key=value"),
        ("prod-stable", "broken.yaml", "neither YAML nor JSON"),
        ("prod-stable", "empty.yaml", "has no setting"),
        ("prod-stable", "large", "bytes"),
        ("prod-stable", "deep.json", "nested"),
        ("prod-stable", "aliases.yaml", "more settings than are read"),
        ("prod-stable", "itself.yaml", "nested more than"),
        ("prod-stable", "long.yaml", "a value that cannot be used"),
    ],
)
def test_what_is_no_configuration_is_a_sentence(tmp_path: Path, branch: str, file: str, words: str) -> None:
    files = {
        "binary": b"\xff\xfe",
        "text": b"just words",
        "broken.yaml": b"a: [",
        "aliases.yaml": _aliases(12),
        "itself.yaml": b"a: &a {b: *a, c: *a}\n",
        "empty.yaml": b"",
        "long.yaml": b"a: 0x" + b"f" * 5000,
        "large": b"a" * (1024 * 1024 + 1),
        "deep.json": b'{"a":' * 60 + b"1" + b"}" * 60,
    }
    folder = repository(tmp_path / "repo", files)
    found = read((str(folder), branch, file))
    assert words in found.error
    assert not found.settings


def test_a_repository_that_is_none_is_a_sentence_and_a_source_that_was_not_named_too(tmp_path: Path) -> None:
    known = StableConfigs([(str(tmp_path), "main", "a")])
    assert "not been read" in known.of((str(tmp_path), "main", "a")).error
    known.refresh()
    assert known.of((str(tmp_path), "main", "a")).error
    assert known.of(("/x", "main", "a")).error


def test_hostile_settings_are_bounded() -> None:
    found = dict(parse("a: 99999999999999999999999999\nb: .nan\nc: !!timestamp 2020-01-01\nd: [1]\n"))
    assert set(found) == {"a", "b", "c"}
    assert msgspec.json.encode(found)


def test_the_link_gives_the_configuration_of_the_branch_that_the_policy_of_the_run_names(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {"grpo.yaml": b"algorithm: {kl_ctrl: {kl_coef: 0.5}}"})
    git = GitSource(repository=str(folder), branch="prod-stable", file="grpo.yaml")
    (tmp_path / "data").mkdir()
    scene = Scene(tmp_path / "data", policy=replace(POLICY, config=ConfigRung(source="git", git=git)))
    scene.push(steps=[Step(step=1, metrics={"actor/loss": 1.0})])
    assert "not been read" in facts(scene).stable_config.error
    scene.core.link.stable_configs.refresh()
    assert facts(scene).stable_config.settings == {"algorithm.kl_ctrl.kl_coef": 0.5}
    scene.close()


def test_a_start_that_failed_counts_as_an_attempt_and_the_climb_is_meant_for_the_next(scene: Scene) -> None:
    start(scene, 1, lr=1e-6)
    train(scene, 1, 1, 2, 3, 4)
    scene.push(events=[CheckpointSaved(time=0.0, step=4, path="/c/global_step_4", verified=True)])
    start(scene, 2, lr=1e-2, resume=4)
    train(scene, 2, 5)
    assert fail(scene, 2, 7).outcome == "planned"
    first = command_of(scene, 2)
    for state in ("accepted", "stopping", "stopped", "starting"):
        report(scene, 2, first, state)
    failed = CommandProgress(time=0.0, command_id=first.id, state="failed", detail="It did not come up.", code=6)
    second = scene.push(sender="sup", role="supervisor", attempt=3, events=[failed]).command
    assert (second.rung, second.attempt, scene.engine.get(first.id).new_attempt) == ("config", 3, 3)
    told = AttemptExited(time=0.0, exit_code=1, last_output=["ImportError"])
    assert scene.push(sender="sup", role="supervisor", attempt=3, events=[told]).command == second
    scene.restart()
    assert command_of(scene, 3) == second
