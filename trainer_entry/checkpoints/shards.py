"""Put the shards of a model together, as FSDP cut them. Called by the forward step, in its process.

FSDP saves a DTensor for each weight and rank: the part of this rank, the mesh of ranks, and how it was placed on each
dimension of the mesh. A weight that is no DTensor is whole on every rank.
"""

from __future__ import annotations

from typing import Any

from trainer_entry.checkpoints.loading import Refused


def merged(torch: Any, states: list[dict[str, Any]], prefix: str) -> dict[str, Any]:
    """Whole weights by name, from one state a rank. The states are emptied on the way. Raises Refused."""
    names = list(states[0])
    for rank, state in enumerate(states):
        if len(state) != len(names) or any(name not in state for name in names):
            raise Refused(
                "not_runnable", f"The shard of rank {rank} in {prefix or 'the checkpoint'} has other weights."
            )
    return {name: _whole(torch, name, [state.pop(name) for state in states]) for name in names}


def _whole(torch: Any, name: str, parts: list[Any]) -> Any:
    first = parts[0]
    if not hasattr(first, "_local_tensor"):
        if any(part.shape != first.shape for part in parts):
            raise Refused("not_tried", f"{name} is sharded in a way that is not known (FSDP1 without a mesh?).")
        return first
    mesh = first.device_mesh.mesh
    if mesh.numel() != len(parts) or int(mesh.max()) >= len(parts):
        raise Refused("not_tried", f"{name} is spread over {mesh.numel()} ranks, but there are {len(parts)} shards.")
    whole = _along(torch, name, parts, mesh, tuple(first.placements))
    if tuple(whole.shape) != tuple(first.shape):
        raise Refused(
            "not_runnable", f"The shards of {name} make {tuple(whole.shape)}, and it should be {tuple(first.shape)}."
        )
    return whole


def _along(torch: Any, name: str, parts: list[Any], mesh: Any, placements: tuple[Any, ...]) -> Any:
    """The tensor that the ranks of a (part of a) mesh hold together: the first dimension of the mesh was cut first."""
    if not placements:
        return parts[int(mesh)]._local_tensor
    placement, rest = placements[0], placements[1:]
    if placement.is_replicate():
        return _along(torch, name, parts, mesh[0], rest)
    if type(placement).__name__ != "Shard":
        raise Refused("not_tried", f"{name} is placed as {placement}, which is not put together here.")
    pieces = [_along(torch, name, parts, mesh[index], rest) for index in range(mesh.shape[0])]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=placement.dim)
