"""How deeply a checkpoint is verified, from milliseconds to minutes. Each depth includes the ones before it."""

from __future__ import annotations

from typing import Literal, get_args

Depth = Literal["sizes", "content", "load", "forward"]
"""``sizes`` compares names and sizes (milliseconds); ``content`` hashes every byte, which a rollback target needs;
``load`` reads every ``.pt`` with ``torch.load(weights_only=True)``; ``forward`` makes one forward step on the CPU.
"""

DEPTHS: tuple[Depth, ...] = get_args(Depth)
NAMES: dict[str, Depth] = {**{depth: depth for depth in DEPTHS}, "manifest": "content"}
"""As the command line spells them: ``manifest`` is all that a manifest can tell."""


def reaches(depth: Depth, other: Depth) -> bool:
    """Whether ``depth`` is at least as deep.

    >>> reaches("load", "content"), reaches("sizes", "content")
    (True, False)
    """
    return DEPTHS.index(depth) >= DEPTHS.index(other)
