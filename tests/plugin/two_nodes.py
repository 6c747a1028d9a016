"""Run by test_excluded_nodes: a Ray of three nodes on this machine, and verl's own placement with a node excluded.

Prints one JSON object: where everything was placed, by ``a``, ``b`` and ``head``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def node_of() -> str:
    return str(ray.get_runtime_context().get_node_id())


def main() -> None:
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=4)
        cluster.add_node(num_cpus=4)
        ray.init(address=cluster.address, log_to_driver=False)
        ids = [node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU")]
        # The one that Ray itself would have chosen is the one to leave out.
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

        free = placement_group([{"CPU": 1}] * 2, strategy="STRICT_PACK")
        ray.get(free.ready(), timeout=120)
        bad = placement_group_table(free)["bundles_to_node_id"][0]
        remove_placement_group(free)
        names = {node: "a" if node == bad else "b" for node in ids}

        excluded = [{"node": bad}] if sys.argv[1] == "one" else [{"node": node} for node in ids]
        os.environ["VERL_SENTINEL_URL"] = "http://127.0.0.1:9"
        os.environ["VERL_SENTINEL_CHANGES"] = json.dumps({"exclude": excluded})
        from verl.single_controller.ray.base import RayResourcePool

        pools = [RayResourcePool([2], use_gpu=False, max_colocate_count=1, name_prefix=f"p{n}") for n in range(2)]
        groups = [group for pool in pools for group in pool.get_placement_groups()]
        placed = [
            names[node] for group in groups for node in placement_group_table(group)["bundles_to_node_id"].values()
        ]
        actor = ray.remote(num_cpus=0)(type("Anywhere", (), {"where": lambda self: node_of()}))
        soft = NodeAffinitySchedulingStrategy(node_id=bad, soft=True)
        hard = NodeAffinitySchedulingStrategy(node_id=bad, soft=False)
        kinds = {
            "plain": [actor.remote() for _ in range(4)],
            "soft": [actor.options(scheduling_strategy=soft).remote()],
            "hard": [actor.options(scheduling_strategy=hard).remote()],
        }
        where = {
            kind: [names.get(node, "head") for node in ray.get([each.where.remote() for each in actors], timeout=120)]
            for kind, actors in kinds.items()
        }
        print(json.dumps({"groups": placed, **where}))
    finally:
        ray.shutdown()
        cluster.shutdown()


main()
