"""The causes that do more than change one value: a checkpoint that is damaged, memory that is kept."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from demo.faults import causes
from demo.faults.causes import arm
from demo.faults.plan import Fault, Plan, plan_from
from trainer_entry.checkpoints import MANIFEST_NAME


def plan(folder: Path, fault: Fault, step: int = 3) -> Plan:
    return Plan(fault, step, folder, folder / "checkpoints")


def checkpoint(folder: Path, step: int, *, manifest: bool = True) -> Path:
    shard = folder / "checkpoints" / f"global_step_{step}" / "actor" / "model_world_size_1_rank_0.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(os.urandom(4096))
    if manifest:
        (shard.parents[1] / MANIFEST_NAME).write_text("{}")
    return shard


def test_the_newest_checkpoint_is_damaged_and_keeps_its_size(tmp_path: Path) -> None:
    older, newest = checkpoint(tmp_path, 5), checkpoint(tmp_path, 10)
    before = {path: path.read_bytes() for path in (older, newest)}

    told = causes._damage_the_newest(plan(tmp_path, Fault.CORRUPT_CHECKPOINT))

    assert told == {"damaged": "global_step_10/actor/model_world_size_1_rank_0.pt"}
    assert older.read_bytes() == before[older]
    after = newest.read_bytes()
    assert len(after) == len(before[newest])
    assert sum(a != b for a, b in zip(after, before[newest], strict=True)) == 64


def test_a_checkpoint_is_damaged_only_once_its_manifest_is_written(tmp_path: Path) -> None:
    shard = checkpoint(tmp_path, 10, manifest=False)
    before = shard.read_bytes()
    thread = threading.Thread(target=causes._damage_the_newest, args=(plan(tmp_path, Fault.CORRUPT_CHECKPOINT),))
    thread.start()
    assert shard.read_bytes() == before
    (shard.parents[1] / MANIFEST_NAME).write_text("{}")
    thread.join(30.0)
    assert shard.read_bytes() != before


def test_what_a_fault_did_is_in_its_file(tmp_path: Path) -> None:
    plan(tmp_path, Fault.CORRUPT_CHECKPOINT).record(damaged="global_step_10/a.pt")

    told = json.loads((tmp_path / "fault.json").read_text())

    assert (told["fault"], told["damaged"]) == ("corrupt_checkpoint", "global_step_10/a.pt")


def trainer_module() -> Any:
    class PPOTrainer:
        global_steps = 0

        def on_step_begin(self) -> None:
            pass

    module: Any = ModuleType("trainer")
    module.PPOTrainer = PPOTrainer
    return module


def test_memory_is_kept_from_the_step_on_and_never_more_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "LEAK_BYTES", 1000)
    monkeypatch.setattr(causes, "MOST_LEAKED", 2500)
    module, leaking = trainer_module(), plan(tmp_path, Fault.MEMORY_LEAK)
    causes._tell_the_step(leaking, module)
    causes._keep_memory(leaking, module)
    trainer = module.PPOTrainer()
    # What is kept is known to the cause alone.
    held = next(
        cell.cell_contents
        for cell in module.PPOTrainer.on_step_begin.__closure__
        if isinstance(cell.cell_contents, list)
    )
    sizes = []
    for step in range(1, 7):
        trainer.global_steps = step
        trainer.on_step_begin()
        sizes.append(sum(map(len, held)))

    assert sizes == [0, 0, 1000, 2000, 2000, 2000]
    assert json.loads((tmp_path / "fault.json").read_text())["step"] == 3


def test_a_later_attempt_has_no_fault(tmp_path: Path) -> None:
    wanted = {
        "VERL_SENTINEL_DEMO_FAULT": "memory_leak",
        "VERL_SENTINEL_DEMO_FAULT_STEP": "16",
        "VERL_SENTINEL_DEMO_CHECKPOINTS": str(tmp_path / "c"),
        "VERL_SENTINEL_STATE_DIR": str(tmp_path),
    }
    found = plan_from(wanted)
    assert found is not None
    assert (found.fault, found.step, found.checkpoints) == (Fault.MEMORY_LEAK, 16, tmp_path / "c")
    assert plan_from({**wanted, "VERL_SENTINEL_ATTEMPT": "2"}) is None


def test_each_attempt_has_its_own_fault_after_some_steps_of_its_own(tmp_path: Path) -> None:
    wanted = {
        "VERL_SENTINEL_DEMO_FAULTS": "nan:8,crash:8",
        "VERL_SENTINEL_STATE_DIR": str(tmp_path),
    }
    plans = [plan_from({**wanted, "VERL_SENTINEL_ATTEMPT": str(attempt)}) for attempt in (1, 2, 3)]
    first, second, third = (one for one in plans if one is not None)
    assert [one.fault for one in (first, second, third)] == [Fault.NAN, Fault.CRASH, Fault.NAN]
    first.begin_step(1)
    first.begin_step(8)
    assert not first.due()
    first.begin_step(9)
    assert first.due()
    assert not second.due()  # the step in the file is that of the attempt before
    second.begin_step(6)
    second.begin_step(13)
    assert not second.due()
    second.begin_step(14)
    assert second.due()
    first.record()
    second.record()
    assert [json.loads((tmp_path / f"fault-{n}.json").read_text())["step"] for n in (1, 2)] == [0, 14]


@pytest.mark.parametrize("each", ["nan", "nan:", "nan:0", "meteor:3"])
def test_faults_that_cannot_be_read_are_a_sentence(tmp_path: Path, each: str) -> None:
    with pytest.raises(ValueError, match="VERL_SENTINEL_DEMO_FAULTS is "):
        plan_from({"VERL_SENTINEL_DEMO_FAULTS": each, "VERL_SENTINEL_STATE_DIR": str(tmp_path)})


def test_every_fault_has_a_cause(tmp_path: Path) -> None:
    for fault in Fault:
        arm(plan(tmp_path, fault))  # raises KeyError for one without
