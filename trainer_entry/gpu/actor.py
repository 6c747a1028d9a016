"""One Ray actor a node that samples the GPUs there and pushes the readings. Started by the plugin as training starts.

An actor costs a process of about 100 MB, so none is started where there is nothing to read: not on the trainer's own
node without the NVML library, and not on a node to which Ray gives no GPU (the head of many clusters). Where Ray was
told of a GPU that is not there, the actor says so once and ends itself. A trainer without Ray (SFT under torchrun) gets
a thread in its own process instead, for its own node.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from exporter.protocol import Run
from trainer_entry.gpu.sampler import GpuSampler, say
from trainer_entry.push import PushClient
from trainer_entry.settings import GPU_SECONDS, Settings

DEFAULT_SECONDS = 5.0
RESTARTS = 3
"""How often Ray starts a sampler again that died, by the memory monitor's hand for instance."""


def start_samplers(settings: Settings, run: Run) -> list[Any]:
    """Start the samplers of all nodes of the running Ray cluster; called once, in the process that runs the trainer.

    Returns the actors' handles at once, without waiting for the actors. Keep them as long as readings are wanted: the
    actors end with the last handle, with the calling process, or with the job. Without Ray there are no handles, and
    the thread ends with the process. Never raises: what goes wrong is said on stderr.
    """
    try:
        seconds = interval(os.environ)
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            return _start_actors(settings, run, seconds)
        if not has_nvml():
            _say_missing("the trainer runs without Ray, on this machine only")
            return []
        # Opening NVML can take seconds where the driver sleeps, so not in the thread that trains.
        threading.Thread(target=NodeSampler, args=(settings, run, seconds), daemon=True).start()
        return []
    except Exception as error:  # noqa: BLE001 - a run without GPU readings is a run; nothing here may end it
        say(f"no GPU readings in this run: {type(error).__name__}: {error}")
        return []


def interval(environ: Mapping[str, str]) -> float:
    """Seconds between two samples, from ``VERL_SENTINEL_GPU_SECONDS``; what makes no sense there is said and left."""
    text = environ.get(GPU_SECONDS, "").strip()
    if not text:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0.1 <= seconds <= 3600:
        return seconds
    say(f"{GPU_SECONDS} is {text!r}; expected seconds from 0.1 to 3600; taking {DEFAULT_SECONDS:g}")
    return DEFAULT_SECONDS


def nodes_to_sample(nodes: list[dict[str, Any]], own_node_id: str, *, own_node_has_nvml: bool) -> list[str]:
    """IDs of the nodes that get a sampler, from what ``ray.nodes()`` answers.

    The caller's own node is judged by its library, whatever Ray was told of its GPUs; the others by what Ray knows.
    """
    return [
        node["NodeID"]
        for node in nodes
        if node.get("Alive")
        and (own_node_has_nvml if node["NodeID"] == own_node_id else node.get("Resources", {}).get("GPU", 0) > 0)
    ]


def has_nvml() -> bool:
    """True where the dynamic linker finds the library that pynvml loads; whether a driver answers is seen later."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _start_actors(settings: Settings, run: Run, seconds: float) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    own = ray.get_runtime_context().get_node_id()
    chosen = nodes_to_sample(ray.nodes(), own, own_node_has_nvml=has_nvml())
    if not chosen:
        _say_missing("Ray knows of no other node with a GPU")
        return []
    actor = ray.remote(NodeSampler)
    handles = []
    for node_id in chosen:
        handle = actor.options(
            num_cpus=0,
            num_gpus=0,
            max_restarts=RESTARTS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(settings, run, seconds)
        handle.leave_if_idle.remote()
        handles.append(handle)
    return handles


def _say_missing(besides: str) -> None:
    say(f"no GPU readings in this run: NVML (libnvidia-ml.so.1) is not on this machine, and {besides}")


class NodeSampler:
    """What runs in the actor: a thread that samples this node every ``seconds``, and the push client that sends.

    Where NVML is not available at the start, it says so and does nothing.
    """

    def __init__(self, settings: Settings, run: Run, seconds: float) -> None:
        self._sampler = GpuSampler(socket.gethostname())
        self._seconds = seconds
        self._client: PushClient | None = None
        sample = self._sampler.sample()  # NVML that is not there says so here
        if not sample.available and not _restarted():
            return
        self._client = PushClient(settings, run, "gpu", heartbeat_seconds=None)
        self._client.gpus(sample.readings)
        self._client.start()
        threading.Thread(target=self._loop, args=(self._client,), name="verl-sentinel-gpu", daemon=True).start()

    def leave_if_idle(self) -> None:
        """End this actor, and its process, where there was no NVML at the start."""
        if self._client is None:
            import ray

            ray.actor.exit_actor()

    def _loop(self, client: PushClient) -> None:
        said = False
        while True:
            time.sleep(self._seconds)
            try:
                client.gpus(self._sampler.sample().readings)
            except Exception as error:  # noqa: BLE001 - a defect of ours: readings stop for this turn, not for the run
                if not said:
                    said = True
                    say(f"a GPU sample failed: {type(error).__name__}: {error}")


def _restarted() -> bool:
    """True in an actor that Ray started again after it died: then NVML was there, and is worth waiting for."""
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized() and ray.get_runtime_context().was_current_actor_reconstructed)
