"""How verl lays a checkpoint out on disk, and what makes one complete: rules over names, for manifest and verify.

PPO: ``global_step_N/{actor,critic}/…`` and ``data.pt``. SFT: the component's files lie in ``global_step_N`` itself,
beside ``data_<dp>.pt``. A component is either FSDP shards, ``{model,optim,extra_state}_world_size_W_rank_R.pt``, one
per rank and kind, or a torch/Megatron distributed checkpoint, a directory with ``.metadata`` in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer_entry.checkpoints.problems import CheckpointError as CheckpointError  # noqa: PLC0414 - for others to import
from trainer_entry.checkpoints.problems import Code

MANIFEST_NAME = "verl_sentinel_manifest.json"
TRACKER_NAME = "latest_checkpointed_iteration.txt"
OURS_PREFIX = "verl_sentinel_"

EMPTIED = "only its data.pt is left, as verl's own retention (trainer.max_actor_ckpt_to_keep) leaves an old step"

_STEP = re.compile(r"global_step_(0|[1-9][0-9]{0,17})\Z")
_SHARD = re.compile(r"(model|optim|extra_state)_world_size_([1-9][0-9]{0,6})_rank_(0|[1-9][0-9]{0,6})\.pt\Z")
_METADATA = re.compile(r"(^|/)\.metadata\Z")
_SFT_DATA = re.compile(r"data_(0|[1-9][0-9]{0,6})\.pt\Z")


@dataclass(frozen=True, slots=True)
class Completeness:
    """``problem`` is empty for a complete checkpoint; ``world_sizes`` maps component (``.`` for SFT) to its ranks.

    ``code`` names the kind of problem.
    """

    problem: str
    world_sizes: dict[str, int]
    code: Code = "missing_shard"


def step_of(directory: str | os.PathLike[str]) -> int | None:
    """The N of a ``global_step_N`` directory name, or None.

    >>> step_of("/runs/a/global_step_40"), step_of("/runs/a/global_step_x"), step_of("global_step_007")
    (40, None, None)
    """
    match = _STEP.match(os.path.basename(os.path.normpath(os.fspath(directory))))
    return int(match.group(1)) if match else None


def step_directories(root: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """All ``global_step_N`` directories of a run, newest step first; symbolic links are listed, and refused later.

    Raises CheckpointError when the root is not a readable directory; a root that does not exist has none.
    """
    found: list[tuple[int, Path]] = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                step = step_of(entry.name)
                if step is not None and (entry.is_symlink() or entry.is_dir()):
                    found.append((step, Path(entry.path)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint directory {os.fspath(root)} cannot be read: {error.strerror}."
        ) from error
    return sorted(found, reverse=True)


def tracker_step(root: str | os.PathLike[str]) -> int | None:
    """The step that verl's own tracker names, which an automatic resume would take; None without a readable tracker."""
    try:
        with open(os.path.join(root, TRACKER_NAME), "rb") as file:
            text = file.read(64)
    except OSError:
        return None
    return int(text) if re.fullmatch(rb"\s*[0-9]{1,18}\s*", text) else None


def completeness(files: Iterable[str], expected: Mapping[str, int] | None = None) -> Completeness:
    """Judge relative file names (with ``/``) of one checkpoint.

    ``expected`` gives world sizes by component where known (from ``fsdp_config.json`` or a manifest); otherwise they
    are read off the shard names, and shards of two world sizes side by side are then refused as ambiguous.

    >>> completeness(["actor/model_world_size_2_rank_0.pt", "data.pt"]).problem
    'the model shard of rank 1 of 2 is missing in actor/'
    """
    names = sorted(files)
    top = {name for name in names if "/" not in name}
    components = [part for part in ("actor", "critic") if any(name.startswith(part + "/") for name in names)]
    if "data.pt" in top and not components and not any(_SHARD.match(n) or _METADATA.search(n) for n in names):
        return Completeness(EMPTIED, {}, "retention")
    if "critic" in components and "actor" not in components:
        return Completeness("there is a critic/ but no actor/ in it", {})
    if components and "data.pt" not in top:
        return Completeness("data.pt, the position in the data, is missing", {}, "missing_data")
    world_sizes: dict[str, int] = {}
    for component in components or ["."]:
        prefix = "" if component == "." else component + "/"
        problem, size = _component(component, [n[len(prefix) :] for n in names if n.startswith(prefix)], expected or {})
        if problem:
            return Completeness(problem, {})
        if size:
            world_sizes[component] = size
    if not components:
        ranks = {int(match.group(1)) for name in top if (match := _SFT_DATA.match(name))}
        if not ranks and "data.pt" not in top:
            return Completeness("data_0.pt, the position in the data, is missing", {}, "missing_data")
        # Absurd numbers are file names too; the shards say how many data ranks there can be.
        most = max(world_sizes.get(".", 0), len(ranks))
        if ranks and max(ranks) >= most:
            gaps = [next(rank for rank in range(most + 1) if rank not in ranks)]
        else:
            gaps = sorted(set(range(max(ranks) + 1)) - ranks) if ranks else []
            # One file for each data-parallel rank, of which all have equally many ranks.
            world = world_sizes.get(".", 0)
            if not gaps and 0 < len(ranks) < world and world % len(ranks):
                gaps = [len(ranks)]
        if gaps:
            return Completeness(f"data_{gaps[0]}.pt, the position in the data, is missing", {}, "missing_data")
    return Completeness("", world_sizes)


def _component(component: str, names: list[str], expected: Mapping[str, int]) -> tuple[str, int]:
    where = "the checkpoint directory" if component == "." else f"{component}/"
    shards = [(m.group(1), int(m.group(2)), int(m.group(3))) for n in names if (m := _SHARD.match(n))]
    if not shards:
        if any(_METADATA.search(name) for name in names):
            return "", 0
        return f"there are no model shards in {where}", 0
    sizes = {size for _, size, _ in shards}
    size = expected.get(component)
    if size is None:
        if len(sizes) > 1:
            listed = " and ".join(str(s) for s in sorted(sizes))
            return f"there are shards of world sizes {listed} side by side in {where}", 0
        size = sizes.pop()
    present: dict[str, set[int]] = {}
    for kind, world, rank in shards:
        if world == size and rank < size:
            present.setdefault(kind, set()).add(rank)
    if "model" not in present:
        return f"there are no model shards of world size {size} in {where}", 0
    for kind, ranks in sorted(present.items()):
        # Counted before a range is built: the size is a number from a file name, so it may be absurd.
        if len(ranks) < size:
            missing = next(rank for rank in range(size) if rank not in ranks)
            return f"the {kind} shard of rank {missing} of {size} is missing in {where}", 0
    return "", size
