"""A run that goes on with changes: the stock trainers apply what verl would have ignored, and prove it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from push_receiver import Receiver
from trainer_run import finish, start

from demo.toy import make, overrides, sft_overrides
from exporter.protocol import Changes, Excluded, SettingApplied
from trainer_entry.checkpoints import newest_verified

pytestmark = pytest.mark.trainer


def applied(receiver: Receiver) -> dict[str, SettingApplied]:
    """Proofs by name."""
    return {event.name: event for event in receiver.events(SettingApplied) if isinstance(event, SettingApplied)}


def rates(receiver: Receiver, metric: str) -> list[float]:
    return [float(step.metrics[metric]) for step in receiver.steps() if metric in step.metrics]  # type: ignore[arg-type]


def test_a_resumed_ppo_run_has_the_new_rate_skips_batches_and_leaves_a_machine_out(tmp_path: Path) -> None:
    toy = make(tmp_path / "toy")
    key, decay = "actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.optim.weight_decay"
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "state" / "attempts" / "1").mkdir(parents=True)
    words = {"use_v1": True, "save_every": 2, "validate_every": 1000, "learning_rate": 1e-4}
    with Receiver() as receiver:
        arguments = overrides(toy, tmp_path / "checkpoints", steps=2, **words)  # type: ignore[arg-type]
        arrived = finish(start("trainer_entry.main_ppo", arguments, receiver, first), receiver, first)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        assert rates(receiver, "actor/lr") == pytest.approx([1e-4, 1e-4])
        assert applied(receiver) == {}
    record = json.loads((first / "state" / "attempts" / "1" / "config.json").read_text())
    assert record[key] == 1e-4, "the configuration lies where the supervisor can compare it"

    changes = Changes(
        settings={key: 3e-7, decay: 0.25, "actor_rollout_ref.actor.clip_ratio": 0.1},
        exclude=[Excluded(node="gpu-17", reason="Xid 79")],
        skip_steps=1,
    )
    with Receiver() as receiver:
        arguments = overrides(toy, tmp_path / "checkpoints", steps=4, **words)  # type: ignore[arg-type]
        arguments += [f"++{name}={value}" for name, value in changes.settings.items()]
        told = {"VERL_SENTINEL_CHANGES": msgspec.json.encode(changes).decode()}
        arrived = finish(start("trainer_entry.main_ppo", arguments, receiver, second, **told), receiver, second)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        assert [step.step for step in receiver.steps()] == [3, 4]
        assert rates(receiver, "actor/lr") == pytest.approx([3e-7, 3e-7])
        proofs = applied(receiver)
        assert {name: proof.reason for name, proof in proofs.items() if not proof.ok} == {}
        assert set(proofs) == {*changes.settings, "data.skip_steps", "exclude"}
        assert (proofs[key].restored, proofs[key].found) == pytest.approx((1e-4, 3e-7))
        assert proofs[decay].found == 0.25
        assert (proofs["data.skip_steps"].restored, proofs["data.skip_steps"].found) == (2, 1)
        assert str(proofs["exclude"].found).startswith("workers on ")
    on_disk = json.loads((second / "state" / "attempts" / "1" / "applied.json").read_text())
    assert {each["name"] for each in on_disk} == set(proofs)
    newest = newest_verified(tmp_path / "checkpoints").chosen
    assert newest is not None
    assert newest.manifest is not None
    assert newest.manifest.data_position["batches"] == 5, "two, one left out, two more"


def test_a_resumed_sft_run_has_the_new_rate_and_skips_batches(tmp_path: Path) -> None:
    toy = make(tmp_path / "toy")
    with Receiver() as receiver:
        arguments = sft_overrides(toy, tmp_path / "checkpoints", steps=2, save_every=2)
        arrived = finish(start("trainer_entry.main_sft", arguments, receiver, tmp_path), receiver, tmp_path)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        before = rates(receiver, "train/lr")[-1]
    changes = Changes(settings={"optim.lr": before / 100}, skip_steps=1)
    with Receiver() as receiver:
        arguments = sft_overrides(toy, tmp_path / "checkpoints", steps=4, save_every=2)
        arguments.append(f"++optim.lr={before / 100!r}")
        told = {"VERL_SENTINEL_CHANGES": msgspec.json.encode(changes).decode()}
        arrived = finish(start("trainer_entry.main_sft", arguments, receiver, tmp_path, **told), receiver, tmp_path)
        assert arrived.exit_code == 0, arrived.output[-3000:]
        proofs = applied(receiver)
        assert {name: proof.reason for name, proof in proofs.items() if not proof.ok} == {}
        assert proofs["optim.lr"].found == pytest.approx(before / 100)
        assert proofs["data.skip_steps"].found == 1
        assert max(rates(receiver, "train/lr")) <= before / 100 * 1.001
