"""How many ranks a trainer's command line will have: verl resumes only from as many. Called by whoever chooses.

Only what the words say is believed, and that a run has one node where no word and no configuration file of its own
says otherwise. Where the words do not tell, nothing is refused for it: a wrong refusal would hold a run for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from exporter.protocol import Scalar

_SETTING = re.compile(r"(?:\+\+|\+)?(trainer\.(?:nnodes|n_gpus_per_node))=(.*)\Z", re.DOTALL)
_OWN_FILES = re.compile(r"(--config-(name|path|dir)|-cn|-cp|-cd)(=|\Z)")
_LAUNCHER = re.compile(r"--(nproc|nnodes)[_-]?(?:per[_-]node)?(?:=(.*))?\Z")
_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"


def asked_world_size(words: Sequence[str], changes: Mapping[str, Scalar] | None = None) -> int | None:
    """Ranks that a trainer's command line, with changed settings, comes to; None where it does not say.

    >>> asked_world_size(["python", "-m", "verl.trainer.main_ppo", "trainer.n_gpus_per_node=4", "trainer.nnodes=2"])
    8
    >>> asked_world_size(["torchrun", "--nproc_per_node", "2", "-m", "verl.trainer.sft_trainer"])
    2
    >>> asked_world_size(["python", "-m", "verl.trainer.main_ppo", "--config-name=mine"])
    """
    start = list(words[:8])
    if any("sft" in word for word in words[1:12]):
        return _launched(words)
    if not any("main_ppo" in word for word in start):
        return None
    found: dict[str, int] = {}
    unclear = set()
    for word in words:
        if match := _SETTING.match(word):
            value = match[2].strip("'\"")
            unclear.discard(match[1])
            if value.isdecimal() and 0 < len(value) < 7 and int(value):
                found[match[1]] = int(value)
            else:  # an interpolation, say, that only the trainer's machine resolves
                unclear.add(match[1])
    for key, changed in (changes or {}).items():
        if key in (_NODES, _GPUS) and isinstance(changed, int) and not isinstance(changed, bool) and changed > 0:
            found[key] = changed
            unclear.discard(key)
    if unclear:
        return None
    if not any(_OWN_FILES.match(word) for word in words):
        found.setdefault(_NODES, 1)
    return found[_NODES] * found[_GPUS] if _NODES in found and _GPUS in found else None


def _launched(words: Sequence[str]) -> int | None:
    """Of torchrun's own options; without torchrun our entry point trains on one process."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if match := _LAUNCHER.match(word):
            value = match[2] if match[2] is not None else (words[index + 1] if index + 1 < len(words) else "")
            found[match[1]] = value
        elif word == "-m" and index + 1 < len(words) and "sft" in words[index + 1]:
            break
    launched = any("torchrun" in word or "torch.distributed" in word for word in words[:6])
    if not launched:
        return 1 if any("main_sft" in word for word in words) else None
    per_node, nodes = found.get("nproc", "1"), found.get("nnodes", "1")
    return int(per_node) * int(nodes) if per_node.isdecimal() and nodes.isdecimal() and int(per_node) else None
