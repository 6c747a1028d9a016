"""Load a checkpoint's files with torch, and make a forward step: ``python -m trainer_entry.checkpoints.loading``.

A process of its own, started by :mod:`.deeper` with its own process id: a :class:`~.deeper.Request` on standard input,
a :class:`~.deeper.Report` as the last line of standard output. ``torch.load(weights_only=True)`` runs nothing that a
file says; beyond what it allows by itself, only numpy's arrays are let through, in which verl keeps a random state.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
from typing import Any

import msgspec

from trainer_entry.checkpoints.deeper import Found, Report, Request
from trainer_entry.checkpoints.priority import end_with_parent, first_to_go, low_priority

_CHUNK = 1 << 24
"""Elements that are looked at in one go for values that are not finite."""


class Refused(Exception):
    """Something is wrong with the checkpoint, or it cannot be tried here."""

    def __init__(self, code: str, sentence: str, path: str = "") -> None:
        super().__init__(sentence)
        self.found = Found(code=code, sentence=sentence, path=path)


def main(words: list[str]) -> int:
    """The process; its parent's id in ``words``."""
    end_with_parent(int(words[0]))
    first_to_go()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    if not request.urgent:
        low_priority()
    # What libraries print belongs to nobody here, and the answer must stay the last line.
    answer = os.dup(1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_DATA, (request.data_limit_bytes, request.data_limit_bytes))
    report = examine(request)
    os.write(answer, b"\n" + msgspec.json.encode(report) + b"\n")
    return 0


def examine(request: Request) -> Report:
    """Load every file, then make the forward step if asked and all loaded."""
    try:
        torch = _torch()
    except Refused as refused:
        return Report(problems=[refused.found], torch_version="")
    problems = []
    for name in request.files:
        try:
            _examine_file(torch, request.directory, name)
        except Refused as refused:
            problems.append(refused.found)
    if not any("model_world_size_" in name for name in request.files):
        problems.append(
            Found(
                code="not_tried",
                sentence="It is a distributed checkpoint without FSDP shards; those are verified by their hashes only.",
            )
        )
    if request.forward and not problems:
        from trainer_entry.checkpoints.forward import forward_step

        for component, ranks in sorted(request.world_sizes.items()):
            try:
                forward_step(torch, request.directory, "" if component == "." else component, ranks)
            except Refused as refused:
                problems.append(refused.found)
    return Report(problems=problems, torch_version=str(torch.__version__))


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Refused(
            "not_tried", f"torch cannot be imported by {sys.executable} ({error}); use the trainer's own interpreter."
        ) from error
    if not hasattr(torch.serialization, "safe_globals"):
        raise Refused("not_tried", f"torch {torch.__version__} cannot load safely what verl saves; 2.6 or later can.")
    with contextlib.suppress(ImportError):  # a DTensor, of which FSDP2's shards are made, loads only with this
        importlib.import_module("torch.distributed.tensor")
    return torch


def allowed_types() -> list[Any]:
    """The types beyond torch's own: numpy's array, which holds the state of numpy's random numbers in extra_state.

    By both names that numpy gave its module, since a file keeps the name of the version that wrote it.
    """
    import numpy

    rebuild = numpy.ndarray((0,)).__reduce__()[0]
    return [
        (rebuild, "numpy._core.multiarray._reconstruct"),
        (rebuild, "numpy.core.multiarray._reconstruct"),
        numpy.ndarray,
        numpy.dtype,
        type(numpy.dtype("uint32")),
    ]


def load(torch: Any, directory: str, name: str) -> Any:
    """One file, mapped rather than read. Raises Refused."""
    path = os.path.join(directory, name)
    try:
        with torch.serialization.safe_globals(allowed_types()):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError as error:
        raise Refused("not_tried", f"There is not enough memory to load {name}.", name) from error
    except Exception as error:
        raise Refused("not_loadable", f"The file {name} cannot be loaded: {_brief(error)}", name) from error


def _brief(error: Exception) -> str:
    """The part of torch's long message that says what is wrong."""
    text = str(error)
    for start, end in (("Unsupported global: GLOBAL ", " was not an allowed"), ("Unsupported class ", " ")):
        if start in text:
            kind = text.split(start, 1)[1].split(end, 1)[0]
            return f"it holds the type {kind}, which could run code and is not loaded."
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return f"{first[:300].rstrip('.')}."


def _examine_file(torch: Any, directory: str, name: str) -> None:
    content = load(torch, directory, name)
    base = os.path.basename(name)
    if not base.startswith(("model_world_size_", "optim_world_size_", "extra_state_world_size_")):
        return
    if not isinstance(content, dict) or (base.startswith("model_") and not content):
        raise Refused("not_loadable", f"The file {name} holds {type(content).__name__}, not a state.", name)
    if base.startswith(("model_", "optim_")):
        for key, tensor in tensors_of(torch, content):
            if not all_finite(torch, tensor):
                raise Refused("not_finite", f"In {name}, {key} holds values that are NaN or infinite.", name)


def tensors_of(torch: Any, content: Any, key: str = "", depth: int = 0) -> Any:
    """Every tensor in nested dictionaries and lists, of a DTensor the part of this rank, with where it was found."""
    if isinstance(content, torch.Tensor):
        yield key, getattr(content, "_local_tensor", content)
    elif isinstance(content, dict) and depth < 10:
        for inner, value in content.items():
            yield from tensors_of(torch, value, f"{key}.{inner}" if key else str(inner), depth + 1)
    elif isinstance(content, (list, tuple)) and depth < 10:
        for index, value in enumerate(content):
            yield from tensors_of(torch, value, f"{key}[{index}]", depth + 1)


def all_finite(torch: Any, tensor: Any) -> bool:
    """Whether all values are finite; integers are."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return True
    flat = tensor.detach().reshape(-1)
    return all(bool(torch.isfinite(flat[at : at + _CHUNK]).all()) for at in range(0, flat.numel(), _CHUNK))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
