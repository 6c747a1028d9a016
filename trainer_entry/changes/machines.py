"""Leaving out a GPU of this machine: which GPUs the next attempt may see, where the trainer runs here alone.

Called by the supervisor before a start. A trainer that joins a Ray cluster leaves machines out by labels instead
(:mod:`trainer_entry.plugin.hooks.placement`), and Slurm by ``--exclude``. The number of GPUs a run uses never changes:
its checkpoints are sharded for that number, and verl cannot resume with another.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.protocol import Changes, Excluded, Scalar
from trainer_entry.changes.rules import ChangeError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_DEFAULT_GPUS = 8
"""verl's own ``trainer.n_gpus_per_node``."""
_ADDRESS = re.compile(r"\+{0,2}ray_kwargs\.ray_init\.address=(.*)", re.DOTALL)
_GPUS = re.compile(r"\+{0,2}trainer\.n_gpus_per_node=['\"]?([0-9]{1,4})['\"]?")
_PROCESSES = re.compile(r"--nproc[_-]per[_-]node=([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this machine, as the driver numbers it (by its place on the bus)."""

    index: int
    uuid: str


def joins_a_cluster(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the trainer is told to join a Ray cluster, rather than to start one of its own."""
    address = environ.get("RAY_ADDRESS", "")
    for word in argv:
        if match := _ADDRESS.fullmatch(word):
            address = match[1].strip("'\"")
    return address not in ("", "null", "local")


def names_of_this_machine() -> set[str]:
    """What this machine may be called: host names, and addresses."""
    host = socket.gethostname()
    names = {host, host.split(".", 1)[0], socket.getfqdn(), "localhost", "127.0.0.1"}
    with contextlib.suppress(OSError):
        names |= {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    return names


def gpus_of_this_machine() -> list[Gpu]:
    """All GPUs that the driver lists. Raises ChangeError where it cannot be asked."""
    try:
        import pynvml
    except ImportError as error:
        raise ChangeError("pynvml is missing; install it with: pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
        try:
            found = []
            for index in range(pynvml.nvmlDeviceGetCount()):
                try:
                    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
                except pynvml.NVMLError:  # a GPU that fell off the bus: it has its number, and may be what is left out
                    uuid = ""
                found.append(Gpu(index, uuid.decode() if isinstance(uuid, bytes) else str(uuid)))
            return found
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise ChangeError(f"The GPUs of this machine cannot be listed: {error}.") from error


def needed_gpus(argv: Sequence[str], config: Mapping[str, Scalar]) -> int:
    """How many GPUs of this machine the trainer uses, by its words or its recorded configuration."""
    for word in reversed(argv):
        if match := _GPUS.fullmatch(word) or _PROCESSES.fullmatch(word):
            return int(match[1])
    for place, word in enumerate(argv[:-1]):
        if word in ("--nproc_per_node", "--nproc-per-node") and argv[place + 1].isdecimal():
            return int(argv[place + 1])
    known = config.get("trainer.n_gpus_per_node")
    if isinstance(known, int) and not isinstance(known, bool) and known > 0:
        return known
    return 1 if any("sft" in word for word in argv[1:4]) else _DEFAULT_GPUS


def devices_without(
    exclude: Sequence[Excluded], *, gpus: Sequence[Gpu], needed: int, visible: str | None
) -> dict[str, str]:
    """Variables for an attempt that does not see the excluded GPUs; ``visible`` is the CUDA_VISIBLE_DEVICES of now.

    Raises ChangeError when too few would be left.

    >>> two = [Gpu(0, "GPU-a"), Gpu(1, "GPU-b")]
    >>> devices_without([Excluded(node="me", gpu="GPU-a")], gpus=two, needed=1, visible=None)
    {'CUDA_VISIBLE_DEVICES': '1', 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}
    """
    pool = [each.strip() for each in visible.split(",") if each.strip()] if visible else [str(g.index) for g in gpus]
    uuids = {str(gpu.index): gpu.uuid for gpu in gpus}
    out = {each.gpu for each in exclude}
    left = [name for name in pool if name not in out and uuids.get(name, name) not in out]
    # A UUID in the list of what is visible may be excluded by its index.
    indexes = {gpu.uuid: str(gpu.index) for gpu in gpus if gpu.uuid}
    left = [name for name in left if indexes.get(name, "") not in out]
    if len(left) < needed:
        names = ", ".join(sorted(out))
        raise ChangeError(
            f"Without GPU {names} {len(left)} of {len(pool)} GPUs are left, and the run uses {needed}. A checkpoint "
            "cannot be resumed on another number of GPUs; start the run on another machine."
        )
    changed = {VISIBLE: ",".join(left)}
    if not visible:
        changed[ORDER] = "PCI_BUS_ID"  # the order in which the driver numbers them
    return changed


def local_variables(
    changes: Changes, *, argv: Sequence[str], config: Mapping[str, Scalar], environ: Mapping[str, str]
) -> dict[str, str]:
    """What an attempt on this machine needs in its environment to leave out what is excluded. Raises ChangeError."""
    if not changes.exclude or joins_a_cluster(argv, environ):
        return {}
    here = names_of_this_machine()
    elsewhere = [each.node for each in changes.exclude if each.node not in here]
    if elsewhere:
        raise ChangeError(
            f"{elsewhere[0]} is not this machine ({socket.gethostname()}), and the trainer runs on this one alone."
        )
    if whole := [each.node for each in changes.exclude if not each.gpu]:
        raise ChangeError(
            f"{whole[0]} is this machine, the only one the trainer runs on; start the run on another machine."
        )
    return devices_without(
        changes.exclude,
        gpus=gpus_of_this_machine(),
        needed=needed_gpus(argv, config),
        visible=environ.get(VISIBLE),
    )
