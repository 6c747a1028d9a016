"""What a changed run puts back into a restored optimizer, and leaves out of restored data, without a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.protocol import Changes, Excluded, SettingApplied
from trainer_entry.plugin.hooks import HOOKS, hooks_for
from trainer_entry.plugin.hooks.changed_settings import _built, put_back, summed
from trainer_entry.plugin.hooks.excluded_nodes import excluded_ids, fits
from trainer_entry.plugin.hooks.skipped_batches import CannotSkip, skip
from trainer_entry.plugin.proofs import read_changes

torch = pytest.importorskip("torch")

KEY = "actor_rollout_ref.actor.optim.lr"


def warmup(step: int) -> float:
    return min(1.0, step / 4)


def cosine(step: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / 100))


def engine(rate: float, schedule: Callable[[int], float] | None, steps: int = 0, decay: float = 0.01) -> Any:
    """An optimizer with two groups as verl builds it from a configuration, after so many steps."""
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)]
    optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule) if schedule else None
    for _ in range(steps):
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return SimpleNamespace(optimizer=optimizer, lr_scheduler=scheduler)


def restored(old: Any, new: Any) -> Any:
    """The new engine as verl leaves it after a load: with everything that the old one held."""
    new.optimizer.load_state_dict(old.optimizer.state_dict())
    if new.lr_scheduler is not None:
        new.lr_scheduler.load_state_dict(old.lr_scheduler.state_dict())
    return new


@pytest.mark.parametrize("schedule", [warmup, cosine])
@pytest.mark.parametrize("steps", [2, 30])
def test_the_new_rate_acts_at_the_restored_step_and_after_it(schedule: Callable[[int], float], steps: int) -> None:
    new = engine(1e-6, schedule)
    built = _built(new)
    assert built is not None
    restored(engine(1e-3, schedule, steps), new)
    assert new.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * schedule(steps)), "verl alone keeps the old rate"
    proof = put_back(new, "lr", KEY, 1e-6, built)
    assert (proof.ok, proof.restored, proof.found) == (True, 1e-3, 1e-6)
    for group in new.optimizer.param_groups:
        assert group["lr"] == pytest.approx(1e-6 * schedule(steps))
        assert group["initial_lr"] == 1e-6
    new.optimizer.step()
    new.lr_scheduler.step()
    assert new.lr_scheduler.get_last_lr() == pytest.approx([1e-6 * schedule(steps + 1)] * 2)


def test_a_rate_that_the_configuration_does_not_have_is_no_proof() -> None:
    new = engine(1e-6, warmup)
    built = _built(new)
    assert built is not None
    restored(engine(1e-3, warmup, 5), new)
    proof = put_back(new, "lr", KEY, 5e-7, built)
    assert (proof.ok, proof.found, proof.reason) == (False, 1e-6, "the trainer's configuration has another value")


def test_an_optimizer_without_a_schedule_and_a_changed_decay() -> None:
    new = engine(1e-6, None, decay=0.5)
    built = _built(new)
    assert built is not None
    restored(engine(1e-3, None, 3), new)
    assert put_back(new, "lr", KEY, 1e-6, built).ok
    assert [group["lr"] for group in new.optimizer.param_groups] == [1e-6, 1e-6]
    proof = put_back(new, "weight_decay", "optim.weight_decay", 0.5, built)
    assert (proof.ok, proof.restored, proof.found) == (True, 0.01, 0.5)
    assert [group["weight_decay"] for group in new.optimizer.param_groups] == [0.5, 0.5]


def test_a_schedule_of_another_kind_keeps_its_ratio() -> None:
    def with_steps(rate: float) -> Any:
        made = engine(rate, None)
        made.lr_scheduler = torch.optim.lr_scheduler.StepLR(made.optimizer, step_size=2, gamma=0.1)
        return made

    old, new = with_steps(1e-3), with_steps(1e-6)
    for _ in range(3):
        old.optimizer.step()
        old.lr_scheduler.step()
    built = _built(new)
    assert built is not None
    proof = put_back(restored(old, new), "lr", KEY, 1e-6, built)
    assert proof.ok
    assert new.optimizer.param_groups[0]["lr"] == pytest.approx(1e-7)


def test_one_worker_that_failed_makes_the_proof_fail_and_none_is_no_proof() -> None:
    good = SettingApplied(time=0.0, name=KEY, wanted=1e-6, found=1e-6)
    bad = SettingApplied(time=0.0, name=KEY, wanted=1e-6, found=1e-3, ok=False, reason="why")
    assert summed(KEY, 1e-6, [good, bad, good], resumed=True) == bad
    assert summed(KEY, 1e-6, [good, good], resumed=True) == good
    nobody = summed(KEY, 1e-6, [], resumed=True)
    assert (nobody.ok, "its engine is not FSDP" in nobody.reason) == (False, True)
    assert summed(KEY, 1e-6, [], resumed=False).ok, "from scratch the configuration is all there is"
    assert not summed(KEY, 1e-6, [], resumed=False, problem="a worker did not answer").ok


def loader(workers: int, length: int = 20, fail_at: int = -1) -> Any:
    data = pytest.importorskip("torchdata.stateful_dataloader")

    class Numbers:
        def __len__(self) -> int:
            return length

        def __getitem__(self, index: int) -> int:
            if index == fail_at:
                raise OSError("the file is gone")
            return index

    return data.StatefulDataLoader(Numbers(), batch_size=2, num_workers=workers, collate_fn=list)


def seen(batches: Iterator[list[int]], count: int) -> list[int]:
    return [number for _ in range(count) for number in next(batches)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_after_the_restored_place_are_left_out_and_the_rest_follows(workers: int) -> None:
    first = loader(workers)
    seen(iter(first), 3)
    resumed = loader(workers)
    resumed.load_state_dict(first.state_dict())
    before = torch.get_rng_state()
    assert skip(resumed, 2) == (3, 5)
    assert torch.equal(torch.get_rng_state(), before), "the random state of the checkpoint is as it was restored"
    batches = iter(resumed)
    assert seen(batches, 2) == [10, 11, 12, 13]
    again = loader(workers)
    again.load_state_dict(resumed.state_dict())
    assert seen(iter(again), 1) == [14, 15], "a checkpoint that is saved later has the skip in it"


@pytest.mark.parametrize("count", [7, 8, 1000])
def test_what_is_not_left_in_the_epoch_is_not_skipped(count: int) -> None:
    first = loader(0)
    seen(iter(first), 3)
    resumed = loader(0)
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(CannotSkip, match="only 7 batches are left in the epoch"):
        skip(resumed, count)
    assert seen(iter(resumed), 1) == [6, 7], "nothing was changed"


def test_data_that_cannot_be_read_meanwhile_are_as_they_were() -> None:
    first = loader(0)
    seen(iter(first), 3)
    resumed = loader(0, fail_at=8)
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(CannotSkip, match="OSError: the file is gone"):
        skip(resumed, 3)
    assert seen(iter(resumed), 1) == [6, 7]


@pytest.mark.parametrize("it", [None, [1, 2, 3], SimpleNamespace(next_iter_state="pickled")])
def test_a_loader_of_another_kind_is_left_alone(it: object) -> None:
    with pytest.raises(CannotSkip):
        skip(it, 2)
    with pytest.raises(CannotSkip, match="restored no place in the data"):
        skip(loader(0), 2)


def test_without_changes_there_is_no_hook_of_a_changed_run() -> None:
    assert hooks_for(Changes()) == HOOKS
    names = [hook.name for hook in hooks_for(Changes(skip_steps=1))[len(HOOKS) :]]
    assert names == ["skipped_batches", "changed_settings"]
    names = [hook.name for hook in hooks_for(Changes(exclude=[Excluded(node="a")]))[len(HOOKS) :]]
    assert names == ["excluded_nodes", "changed_settings"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"settings": 5}', "[" * 100_000])
def test_changes_that_cannot_be_read_change_nothing_and_are_said(text: str) -> None:
    said: list[str] = []
    assert read_changes(text, said.append) == Changes()
    assert "cannot be read" in said[0]
    assert read_changes("", said.append) == Changes()
    assert len(said) == 1


@pytest.mark.parametrize("name", ["n-1", "gpu-7", "gpu-7.example.org", "10.0.0.7"])
def test_a_node_is_known_by_its_id_its_host_and_its_address(name: str) -> None:
    node = {
        "NodeID": "n-1",
        "NodeManagerHostname": "gpu-7.example.org",
        "NodeManagerAddress": "10.0.0.7",
        "Alive": True,
    }
    other = {"NodeID": "n-2", "NodeManagerHostname": "gpu-70", "NodeManagerAddress": "10.0.0.70", "Alive": True}
    assert excluded_ids([Excluded(node=name)], [node, other]) == {"n-1"}
    assert excluded_ids([Excluded(node=name)], [{**node, "Alive": False}, other]) == set()


def test_a_group_that_must_be_on_one_node_needs_one_that_has_it_all() -> None:
    nodes = [{"Alive": True, "Resources": {"GPU": 4.0, "CPU": 8.0}}, {"Alive": True, "Resources": {"GPU": 4.0}}]
    assert fits([{"GPU": 1, "CPU": 1}] * 4, "STRICT_PACK", nodes)
    assert not fits([{"GPU": 1}] * 5, "STRICT_PACK", nodes)
    assert fits([{"GPU": 1}] * 8, "PACK", nodes)
    assert not fits([{"GPU": 1}] * 9, "PACK", nodes)
