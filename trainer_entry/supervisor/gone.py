"""Whether the GPU memory that an attempt held is free after its end. Called by ``stopping``; a start waits for it.

A process that is gone from ``/proc`` may still hold memory of a GPU: its driver frees it in its own time, and a process
that is stuck in the driver never gives it back. NVML is asked before the stop which processes hold how much, and after
it until theirs is back; where they had ended by themselves, until none of them is named. Only GPUs that the attempt
used are looked at, and other people's processes there are theirs.

NVML is asked in a process of its own (``python -m trainer_entry.supervisor.gone PID…``), for a driver that hangs must
not hang the supervisor. Where there is no NVML, nothing is checked.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

LIMIT_SECONDS = 60.0
"""How long after a stop the memory may take to come back."""
ASK_SECONDS = 30.0
SLACK_BYTES = 256 * 1024 * 1024
"""What a driver may keep or give back besides, without that being somebody's memory."""
_POLL_SECONDS = 0.5


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: bytes in use, and by which of the processes asked for and which others; None where it does not say."""

    index: int
    name: str = ""
    told: bool = True
    """Whether it says which processes use it."""
    used: int | None = None
    ours: dict[int, int | None] = {}
    others: dict[int, int | None] = {}


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of this machine at one moment; ``unavailable`` says why there are none to look at."""

    gpus: list[GpuUse] = []
    unavailable: str = ""


class Held:
    """What the attempt held before its stop. Made by :func:`holding`."""

    def __init__(self, pids: Collection[int], look: Look) -> None:
        self.pids = set(pids)
        self.gpus = [gpu for gpu in look.gpus if gpu.ours]
        self.unavailable = look.unavailable

    @property
    def empty(self) -> bool:
        """True where there is nothing to wait for."""
        return not self.gpus


def holding(pids: Iterable[int], *, say: Callable[[str], None]) -> Held:
    """Look at the GPUs before a stop, or after a crash; ``pids`` are the attempt's processes."""
    wanted = set(pids)
    if not wanted or not _has_nvml():
        return Held(wanted, Look(unavailable="" if wanted else "there are no processes"))
    look = _ask(wanted)
    held = Held(wanted, look)
    if look.unavailable:
        say(f"whether the GPUs' memory is free after the stop cannot be checked: {look.unavailable}")
    elif held.empty and (strangers := _strangers(look)):
        say(
            f"whether the GPUs' memory is free after the stop cannot be checked: the driver names process {strangers} "
            "and others that are not to be seen from here, as in a container without the machine's process ids"
        )
    return held


def wait_until_free(held: Held, *, seconds: float | None = None, say: Callable[[str], None]) -> list[str]:
    """Wait until the memory is back; returns a sentence for each GPU that still holds some at the limit."""
    if held.empty:
        return []
    seconds = LIMIT_SECONDS if seconds is None else seconds
    deadline = time.monotonic() + seconds
    told = False
    while True:
        look = _ask(held.pids)
        left = [f"NVML cannot be asked whether the memory is free: {look.unavailable}."] if look.unavailable else []
        now = {gpu.index: gpu for gpu in look.gpus}
        for before in held.gpus if not left else ():
            sentence = _left_on(before, now.get(before.index))
            if sentence:
                left.append(sentence)
        if not left or time.monotonic() >= deadline:
            return left
        if not told:
            told = True
            say(f"waiting for the GPUs' memory to be free (at most {seconds:g} s)")
        time.sleep(_POLL_SECONDS)


def _left_on(before: GpuUse, now: GpuUse | None) -> str:
    label = f"GPU {before.index}" + (f" ({before.name})" if before.name else "")
    if now is None:
        return f"{label} does not answer any more."
    if not now.told:
        return f"{label} does not say any more which processes use it."
    if now.ours:
        by = ", ".join(f"process {pid}" + (f" ({_size(used)})" if used else "") for pid, used in now.ours.items())
        known = sum(used for used in now.ours.values() if used)
        return f"{label} still holds {_size(known) if known else 'memory'} of the attempt: by {by}."
    held = list(before.ours.values())
    others = [*before.others.values(), *now.others.values()]
    if before.used is None or now.used is None or None in held or None in others:
        return ""  # it does not say how much is whose; none of ours is named any more
    ours = sum(used or 0 for used in held)
    grown = sum(used or 0 for used in now.others.values()) - sum(used or 0 for used in before.others.values())
    surplus = now.used - (before.used - ours + grown)
    if surplus <= max(SLACK_BYTES, ours // 20):
        return ""
    pids = ", ".join(str(pid) for pid in before.ours)
    return f"{label} still holds {_size(surplus)} that process {pids} had, and that belongs to no process now."


def _strangers(look: Look) -> int | None:
    """A process that holds memory of a GPU, but is not in our /proc."""
    for gpu in look.gpus:
        for pid in gpu.others:
            try:
                with open(f"/proc/{pid}/stat", "rb"):
                    continue
            except OSError:
                return pid
    return None


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _has_nvml() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _ask(pids: Collection[int]) -> Look:
    words = [sys.executable, "-m", "trainer_entry.supervisor.gone", *(str(pid) for pid in sorted(pids))]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_SECONDS, check=False)
        return msgspec.json.decode(done.stdout, type=Look)
    except subprocess.TimeoutExpired:
        return Look(unavailable=f"NVML gave no answer within {ASK_SECONDS:g} s")
    except msgspec.DecodeError:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        return Look(unavailable=f"the process that asks NVML failed: {said or done.returncode}")
    except OSError as error:
        return Look(unavailable=f"the process that asks NVML cannot be started: {error.strerror}")


def look_at(pids: Collection[int]) -> Look:
    """Ask NVML, in this process. Never raises."""
    from trainer_entry.gpu.nvml import MEMORY_V2, Nvml, NvmlUnavailable, load_binding

    try:
        binding = load_binding()
        session = Nvml(binding)
    except NvmlUnavailable as error:
        return Look(unavailable=str(error))
    try:
        return Look(gpus=[_use(binding, index, pids, MEMORY_V2) for index in range(session.count())])
    except Exception as error:  # noqa: BLE001 - the driver's many words, and a binding of another version
        return Look(unavailable=str(error) or type(error).__name__)
    finally:
        session.close()


def _use(binding: Any, index: int, pids: Collection[int], version: int) -> GpuUse:
    def first(*calls: Callable[[], Any]) -> Any:
        for call in calls:
            try:
                return call()
            except Exception:  # noqa: BLE001 - not in this driver, not in this binding, or of another version
                continue
        return None

    def processes(kind: str) -> list[Any] | None:
        # The name without a version raises where the driver is older than the binding.
        named = [getattr(binding, f"nvmlDeviceGet{kind}RunningProcesses{v}", None) for v in ("_v3", "_v2", "")]
        found: list[Any] | None = first(*((lambda call=call: call(handle)) for call in named if call is not None))
        return found

    handle = binding.nvmlDeviceGetHandleByIndex(index)
    name = first(lambda: binding.nvmlDeviceGetName(handle)) or ""
    memory = first(
        lambda: binding.nvmlDeviceGetMemoryInfo(handle, version=version),
        lambda: binding.nvmlDeviceGetMemoryInfo(handle),
    )
    found: dict[int, int | None] = {}
    computing = processes("Compute")
    for process in [*(computing or []), *(processes("Graphics") or [])]:
        used = process.usedGpuMemory
        found[int(process.pid)] = None if used is None else int(used)
    return GpuUse(
        index=index,
        name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
        told=computing is not None,
        used=None if memory is None else int(memory.used),
        ours={pid: used for pid, used in found.items() if pid in pids},
        others={pid: used for pid, used in found.items() if pid not in pids},
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(look_at({int(word) for word in sys.argv[1:] if word.isdecimal()})))
