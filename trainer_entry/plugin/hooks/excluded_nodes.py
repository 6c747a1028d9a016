"""Hook of a changed run: no worker on a machine that is at fault, by Ray's labels.

Each placement group that verl makes, and each actor without one, gets the condition that its node is none of the
excluded (``ray.io/node-id`` not in …). Ray knows no condition on one GPU of a machine, so an excluded GPU leaves the
whole machine out where the trainer joined a cluster; on a single machine the supervisor hides that GPU from the trainer
instead. Where the machines that are left are too few, nothing is held back, for a trainer that waits for ever is no
recovery; it is said, and the proof fails.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from exporter.protocol import Excluded, SettingApplied
from trainer_entry.plugin.hooks.base import LEGACY, SFT, V1, Hook
from trainer_entry.plugin.runtime import Runtime, now
from trainer_entry.plugin.wrapping import Target, wrap

NAME = "exclude"
LABEL = "ray.io/node-id"
_PPO = frozenset({V1, LEGACY})


class ExcludedNodes(Hook):
    name = "excluded_nodes"
    targets = (
        Target("verl.single_controller.ray.base", "placement_group", trainers=_PPO),
        Target("ray.actor", "ActorClass._remote", trainers=_PPO),
    )
    not_for: ClassVar[Mapping[str, str]] = {SFT: "SFT has no Ray; its launcher decides where it runs"}

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._exclude = runtime.changes.exclude
        self._groups: list[Any] = []
        self._problem = ""
        runtime.at_open.append(self._opened)

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, self._group if target.attribute == "placement_group" else self._actor)

    def _group(self, original: Any) -> Any:
        @functools.wraps(original)
        def placement_group(*args: Any, **kwargs: Any) -> Any:
            self.runtime.guarded(self.name, self._steer_group, original, args, kwargs)
            group = original(*args, **kwargs)
            self._groups.append(group)
            return group

        return placement_group

    def _actor(self, original: Any) -> Any:
        @functools.wraps(original)
        def _remote(actor_class: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            changed = self.runtime.guarded(self.name, self._steer_actor, actor_class, options)
            return original(actor_class, args, kwargs, **(options if changed is None else changed))

        return _remote

    def _steer_group(self, original: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if "bundle_label_selector" not in inspect.signature(original).parameters:
            self._fails("this version of Ray knows no labels of nodes; 2.49 does")
            return
        bundles = kwargs.get("bundles", args[0] if args else [])
        strategy = kwargs.get("strategy", args[1] if len(args) > 1 else "PACK")
        nodes = _nodes()
        out = excluded_ids(self._exclude, nodes)
        if not out:
            return
        if not fits(bundles, str(strategy), [node for node in nodes if node["NodeID"] not in out]):
            self._fails("the machines that are left have too few GPUs or CPUs for the run")
            return
        given = kwargs.get("bundle_label_selector") or [{} for _ in bundles]
        kwargs["bundle_label_selector"] = [{**each, LABEL: _not_in(out)} for each in given]

    def _steer_actor(self, actor_class: Any, options: dict[str, Any]) -> dict[str, Any] | None:
        """The options with the condition in them; None where they stay as they are."""
        if self._problem:
            return None
        defaults = getattr(actor_class, "_default_options", None) or {}
        strategy: Any = options.get("scheduling_strategy", defaults.get("scheduling_strategy"))
        kind = type(strategy).__name__
        if kind == "PlacementGroupSchedulingStrategy" or options.get("placement_group") not in (None, "default"):
            return None
        out = excluded_ids(self._exclude, _nodes())
        if not out:
            return None
        if kind == "NodeAffinitySchedulingStrategy":
            # Spread over all nodes by hand (agent loops, reward loops), softly: another node will do. A hard one is
            # for that very node, and is left alone.
            if strategy.node_id not in out or not strategy.soft:
                return None
            options = {**options, "scheduling_strategy": "DEFAULT"}
        given = options.get("label_selector") or defaults.get("label_selector") or {}
        return {**options, "label_selector": {**given, LABEL: _not_in(out)}}

    def _fails(self, reason: str) -> None:
        if not self._problem:
            self._problem = reason
            self.runtime.report(f"no machine is left out: {reason}")

    def _opened(self) -> None:
        """The workers are there: on which machines?"""
        self.runtime.at_open.remove(self._opened)
        wanted = ", ".join(f"{each.node}/{each.gpu}" if each.gpu else each.node for each in self._exclude)[:500]
        found, reason = self._used()
        self.runtime.proofs.add(
            SettingApplied(time=now(), name=NAME, wanted=wanted, found=found[:500], ok=not reason, reason=reason)
        )

    def _used(self) -> tuple[str, str]:
        """Where the workers are, and why that is not as it was asked for."""
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        nodes = _nodes() if self._groups else []
        alive = [node for node in nodes if node.get("Alive")]
        if len(alive) <= 1 and all(each.gpu for each in self._exclude):
            shown = hidden.split(",") if hidden else []
            seen = [each.gpu for each in self._exclude if each.gpu in shown]
            return f"GPUs {hidden or '(all)'}", "the trainer sees it" if seen or not hidden else ""
        out = excluded_ids(self._exclude, nodes)
        used: set[str] = set()
        for group in self._groups:
            from ray.util.placement_group import placement_group_table

            used |= set((placement_group_table(group).get("bundles_to_node_id") or {}).values())
        names = {node["NodeID"]: node.get("NodeManagerHostname") or node.get("NodeManagerAddress") for node in nodes}
        found = "workers on " + (", ".join(sorted(str(names.get(each, each)) for each in used)) or "no machine")
        return found, self._problem or ("workers are on it all the same" if used & out else "")


def excluded_ids(exclude: Iterable[Excluded], nodes: Iterable[Mapping[str, Any]]) -> set[str]:
    """IDs of the live nodes that the exclusions name, by id, host name or address.

    >>> excluded_ids([Excluded(node="b")], [{"NodeID": "1", "NodeManagerHostname": "b.cluster", "Alive": True}])
    {'1'}
    """
    names = {each.node for each in exclude}
    found = set()
    for node in nodes:
        host = str(node.get("NodeManagerHostname") or "")
        known = {node["NodeID"], host, host.split(".", 1)[0], node.get("NodeManagerAddress"), node.get("NodeName")}
        if node.get("Alive") and known & names:
            found.add(str(node["NodeID"]))
    return found


def fits(bundles: Sequence[Mapping[str, float]], strategy: str, nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the nodes have what the bundles ask for at all, busy or not.

    >>> node = {"Alive": True, "Resources": {"GPU": 2.0}}
    >>> fits([{"GPU": 1}, {"GPU": 1}], "STRICT_PACK", [node]), fits([{"GPU": 1}] * 3, "PACK", [node])
    (True, False)
    """
    alive = [node.get("Resources") or {} for node in nodes if node.get("Alive")]
    wanted: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            wanted[name] = wanted.get(name, 0.0) + amount
    if strategy == "STRICT_PACK":
        return any(all(node.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in alive)
    return all(sum(node.get(name, 0.0) for node in alive) >= amount for name, amount in wanted.items())


def _not_in(ids: Iterable[str]) -> str:
    return f"!in({', '.join(sorted(ids))})"


def _nodes() -> list[dict[str, Any]]:
    import ray

    return list(ray.nodes()) if ray.is_initialized() else []
