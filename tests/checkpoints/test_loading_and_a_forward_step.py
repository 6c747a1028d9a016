"""Depths ``load`` and ``forward`` on real shards: FSDP2 over two processes, as verl saves them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_made import ppo, trained

from trainer_entry import checkpoints
from trainer_entry.checkpoints import verify, write_manifest
from trainer_entry.checkpoints.deeper import Request, verify_deeper
from trainer_entry.checkpoints.record import VERIFIED_NAME, note_verified, verified

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from trainer_entry.checkpoints.loading import Refused, examine  # noqa: E402
from trainer_entry.checkpoints.shards import merged  # noqa: E402

RANK_1 = "model_world_size_2_rank_1.pt"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("trained"), ranks=2)


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def examined(directory: Path, *, forward: bool = True) -> list[tuple[str, str]]:
    """What the process would find, in this one: torch is imported once."""
    request = Request(
        directory=str(directory),
        files=sorted(path.name for path in directory.glob("*.pt")),
        world_sizes={".": 2},
        forward=forward,
        data_limit_bytes=0,
    )
    return [(found.code, found.sentence) for found in examine(request).problems]


def test_what_fsdp_saved_on_two_ranks_loads_and_makes_a_step(directory: Path) -> None:
    write_manifest(directory, 7)
    result = verify(directory, "forward", urgent=True)
    assert result.ok, result.reason
    record = verified(directory, result.manifest)  # type: ignore[arg-type]
    assert record is not None
    assert (record.depth, record.torch_version) == ("forward", torch.__version__)


def resaved(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        state = torch.load(directory / RANK_1, weights_only=True)
        change(state)
        torch.save(state, directory / RANK_1)

    return damage


def poison(state: Any) -> None:
    with torch.no_grad():
        state["lm_head.weight"]._local_tensor[0, 0] = float("nan")


def rename(state: Any) -> None:
    state["other"] = state.pop("lm_head.weight")


class Dangerous:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


def dangerous(directory: Path) -> None:
    torch.save({"lm_head.weight": Dangerous()}, directory / RANK_1)


def no_state(directory: Path) -> None:
    torch.save([1, 2], directory / RANK_1)


def poisoned_optimizer(directory: Path) -> None:
    state = torch.load(directory / "optim_world_size_2_rank_0.pt", weights_only=True)
    state["state"][0]["exp_avg"]._local_tensor[:] = float("inf")
    torch.save(state, directory / "optim_world_size_2_rank_0.pt")


def other_model(directory: Path) -> None:
    edit_config(directory, hidden_size=20)


def one_layer_more(directory: Path) -> None:
    edit_config(directory, num_hidden_layers=2, layer_types=["full_attention", "full_attention"])


def own_code(directory: Path) -> None:
    edit_config(directory, auto_map={"AutoModelForCausalLM": "modeling.Mine"})


def no_class(directory: Path) -> None:
    edit_config(directory, architectures=["SomethingElse"])


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "huggingface" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (lambda d: (d / RANK_1).write_bytes(b"no archive"), "not_loadable", f"{RANK_1} cannot be loaded"),
        (dangerous, "not_loadable", "could run code"),
        (no_state, "not_loadable", "not a state"),
        (resaved(poison), "not_finite", "lm_head.weight holds values that are NaN"),
        (poisoned_optimizer, "not_finite", "optim_world_size_2_rank_0.pt"),
        (resaved(rename), "not_runnable", "shard of rank 1"),
        (other_model, "not_runnable", "do not fit its model"),
        (one_layer_more, "not_runnable", "is in no shard"),
        (lambda d: (d / "huggingface" / "config.json").unlink(), "not_runnable", "config.json cannot be read"),
        (own_code, "not_tried", "code of its own"),
        (no_class, "not_tried", "No forward step is known"),
    ],
)
def test_what_a_resume_would_fail_on_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object], code: str, words: str
) -> None:
    monkeypatch.chdir(directory)
    damage(directory)
    found = examined(directory)
    assert [problem for problem, _ in found] == [code], found
    assert words in found[0][1]
    assert not (directory / "ran").exists()


def test_a_distributed_checkpoint_is_said_to_be_verified_by_hashes_only(tmp_path: Path) -> None:
    request = Request(directory=str(tmp_path), files=[], world_sizes={}, forward=False, data_limit_bytes=0)
    assert [found.code for found in examine(request).problems] == ["not_tried"]


def test_a_process_that_does_not_end_is_ended(directory: Path) -> None:
    manifest = write_manifest(directory, 7)
    problems, _ = verify_deeper(directory, manifest, "load", 0.05)
    assert [problem.code for problem in problems] == ["not_tried"]


def test_a_process_that_is_killed_is_no_verdict_on_the_checkpoint(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(killed))
    write_manifest(directory, 7)
    result = verify(directory, "load")
    assert result.problem == "not_tried"
    assert "signal 9" in result.reason


class Placed:
    """A part of a weight as FSDP places it: replicated over the first dimension of a mesh, cut over the second."""

    def __init__(self, whole: Any, part: Any, mesh: Any, *placements: Any) -> None:
        self._local_tensor, self.placements, self.shape = part, placements, whole.shape
        self.device_mesh = SimpleNamespace(mesh=mesh)


def test_hybrid_shards_are_put_together_from_one_replica() -> None:
    from torch.distributed.tensor import Replicate, Shard

    whole = torch.arange(15.0).reshape(5, 3)
    mesh = torch.tensor([[0, 1], [2, 3]])
    parts = [whole[:3], whole[3:], whole[:3], whole[3:]]
    states = [{"w": Placed(whole, part, mesh, Replicate(), Shard(0))} for part in parts]
    assert torch.equal(merged(torch, states, "")["w"], whole)
    tensor_parallel = [
        {"w": Placed(whole, part, mesh, Shard(0), Shard(1))}
        for part in (whole[:3, :2], whole[:3, 2:], whole[3:, :2], whole[3:, 2:])
    ]
    assert torch.equal(merged(torch, tensor_parallel, "")["w"], whole)


def test_a_shard_of_another_mesh_is_refused() -> None:
    from torch.distributed.tensor import Shard

    whole = torch.arange(4.0)
    states = [{"w": Placed(whole, whole[:2], torch.tensor([0, 1, 2]), Shard(0))} for _ in range(2)]
    with pytest.raises(Refused, match="spread over 3 ranks"):
        merged(torch, states, "")


def test_the_record_keeps_the_deepest_success_and_falls_with_the_manifest_or_a_failure(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    manifest = write_manifest(directory, 5)
    note_verified(directory, manifest, "load", 1.0, "2.13.0")
    assert verify(directory).ok
    kept = verified(directory, manifest)
    assert kept is not None
    assert kept.depth == "load", "a shallower success does not hide a deeper one"
    body = (directory / "data.pt").read_bytes()
    (directory / "data.pt").write_bytes(b"POSITION")
    assert not verify(directory).ok
    assert verified(directory, manifest) is None
    (directory / "data.pt").write_bytes(body)
    assert verify(directory).ok
    assert (directory / VERIFIED_NAME).is_file()
    again = write_manifest(directory, 5)
    assert verified(directory, again) is None
    assert checkpoints.verified(directory, manifest) is None


def test_a_refusal_for_its_world_size_says_nothing_against_its_content(tmp_path: Path) -> None:
    directory = ppo(tmp_path, 5)
    manifest = write_manifest(directory, 5)
    assert verify(directory).ok
    assert verify(directory, world_size=8).problem == "world_size"
    assert verified(directory, manifest) is not None
