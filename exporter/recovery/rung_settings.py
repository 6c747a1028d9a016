"""What a policy says of the single rungs: where a configuration comes from, which keys may change, which version, whom
to leave out, who approves. Read by :mod:`exporter.recovery.policy`, used by :mod:`exporter.recovery.ladder`.

Every check raises ``ValueError`` with a sentence that begins with the setting it is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

from exporter.protocol import Rung, Scalar

RUNGS: Final[tuple[Rung, ...]] = ("checkpoint", "config", "version", "infra")
"""The ladder as it stands where a policy does not say otherwise."""

ALLOWED: Final = (
    *("*optim.lr", "*optim.lr_warmup_steps*", "*optim.weight_decay", "*optim.clip_grad", "*.grad_clip"),
    *("*.clip_ratio*", "*.kl_loss_coef", "*.entropy_coeff", "*.cliprange_value", "algorithm.kl_ctrl.*"),
    *("*.rollout.temperature", "*.rollout.top_p", "*.rollout.gpu_memory_utilization", "*.free_cache_engine"),
    *("*ppo_max_token_len_per_gpu", "*_micro_batch_size_per_gpu", "*.param_offload", "*.optimizer_offload"),
)
"""Keys that the config rung may change unless the policy says otherwise: what a person would turn first."""

_NEVER: Final = re.compile(
    r"path|dir(?:s|ectory)?(?:$|[._])|(?:^|[._])seed|world_size|nnodes|n_gpus|resume|project_name|experiment_name"
    r"|^verl_sentinel\.|(?:^|[._])file(?:s|$|[._])|(?:^|[._])trainer\.logger|tensor_model_parallel|fsdp_size|sequence_parallel",
    re.IGNORECASE,
)
"""Keys that no policy may let change: where things lie, what makes a run repeatable, and the shape of its world, with
which a checkpoint would no longer load; nor what the plugin says beside the trainer's configuration, which is none of
it."""

_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*?\[\]-]+")
_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9A-Za-z]+){0,4}(?:[+.-][0-9A-Za-z.]+)?")
_RATE: Final = re.compile(r"(?:^|\.)(?:optim|optimizer)\.(?:lr|learning_rate)$")
LONGEST: Final = 500
"""Characters of a key, a pattern, a name."""
MOST_KEYS: Final = 100


def is_rate(key: str) -> bool:
    """Whether the key is a learning rate: verl ignores a changed one on resume, so its change has to be proved.

    >>> is_rate("actor_rollout_ref.actor.optim.lr"), is_rate("optim.lr"), is_rate("optim.lr_warmup_steps")
    (True, True, False)
    """
    return _RATE.search(key) is not None


def forbidden(key: str) -> bool:
    """Whether no policy may change the key.

    >>> forbidden("trainer.default_local_dir"), forbidden("data.seed"), forbidden("actor_rollout_ref.actor.optim.lr")
    (True, True, False)
    >>> forbidden("verl_sentinel.run_memory_limit_bytes")
    True
    """
    return _NEVER.search(key) is not None or _KEY.fullmatch(key) is None or len(key) > LONGEST


class Adjustment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one setting is changed: by a factor, or to a value."""

    multiply: float | None = None
    set: Scalar | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.multiply is None) == (self.set is msgspec.UNSET):
            raise ValueError("multiply or set has to be given, and only one of them")
        if self.multiply is not None and not (0 < self.multiply < float("inf") and self.multiply != 1):
            raise ValueError(f"multiply is {self.multiply}: it is a factor, more than 0 and not 1")


class GitSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with a configuration on a branch of a git repository on the exporter's machine."""

    repository: str
    """Absolute path of a clone, bare or not."""
    branch: str = "prod-stable"
    file: str = "config.yaml"
    """Inside the repository: YAML or JSON, nested or with dotted keys, or a list of Hydra words ``key=value``."""

    def __post_init__(self) -> None:
        if not self.repository.startswith("/") or len(self.repository) > LONGEST:
            raise ValueError(f"repository is {self.repository!r}: it is the absolute path of a git repository")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", self.branch) or ".." in self.branch:
            raise ValueError(f"branch is {self.branch!r}: it is the name of a branch, such as prod-stable")
        parts = self.file.split("/")
        if not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_./ -]*", self.file) or ".." in parts or "" in parts:
            raise ValueError(f"file is {self.file!r}: it is a path inside the repository")


ConfigSource = Literal["manifest", "git", "adjust"]


class ConfigRung(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second rung: another configuration."""

    source: ConfigSource | tuple[ConfigSource, ...] = "manifest"
    """``manifest``: the last configuration that ran healthy, which is the one in the checkpoints it saved; ``git``: a
    file on a branch; ``adjust``: the present one with some values changed. Of several, the first that changes
    something."""
    git: GitSource | None = None
    adjust: dict[str, Adjustment] = {}
    """By key of the configuration."""
    allow: tuple[str, ...] = ALLOWED
    """Patterns (``*`` matches any characters) of the keys that may change; what else differs is left as it is."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("source is empty: name manifest, git or adjust, or leave config out of the ladder")
        if "git" in self.sources and self.git is None:
            raise ValueError("source names git: say repository, branch and file in the section git")
        if "adjust" in self.sources and not self.adjust:
            raise ValueError("source names adjust: say which keys are changed in the section adjust")
        if len(self.adjust) > MOST_KEYS or len(self.allow) > MOST_KEYS:
            raise ValueError(f"allow and adjust may have at most {MOST_KEYS} entries each")
        for pattern in self.allow:
            if not _PATTERN.fullmatch(pattern) or len(pattern) > LONGEST:
                raise ValueError(f"allow has {pattern!r}: it is a key, in which * stands for any characters")
            if not set(pattern) & set("*?[") and forbidden(pattern):
                raise ValueError(f"allow has {pattern}: {_WHY_NEVER}")
        for key in self.adjust:
            if forbidden(key):
                raise ValueError(f"adjust.{key} cannot be set: {_WHY_NEVER}")
            if not self.allows(key):
                raise ValueError(f"adjust.{key} cannot be set: allow does not have it, add it there")

    @property
    def sources(self) -> tuple[ConfigSource, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source

    def allows(self, key: str) -> bool:
        return not forbidden(key) and matches_any(key, self.allow)


_WHY_NEVER: Final = (
    "paths, seeds, names and the shape of the world (nodes, GPUs, parallelism) are never changed by a recovery"
)


class VersionRung(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The third rung: another version of verl, in an environment of its own."""

    source: Literal["last_healthy", "pinned"] = "last_healthy"
    """``last_healthy``: the version of the newest attempt that ran healthy on another one than the failed."""
    version: str = ""
    """With ``pinned``."""

    def __post_init__(self) -> None:
        if (self.source == "pinned") != bool(self.version):
            raise ValueError("version is given with source: pinned, and only then")
        if self.version and not _VERSION.fullmatch(self.version):
            raise ValueError(f"version is {self.version!r}: it is a version such as 0.9.0")


class InfraRung(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fourth rung: without the node or GPU at fault."""

    executors: tuple[Literal["ray", "slurm", "local"], ...] = ("ray", "slurm")
    """Who must hold the processes. ``local`` has one machine: it is for a site whose ``infra.sh`` knows another."""
    most: int = 1
    """Nodes that may be left out together; where more are at fault, that is for a person."""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most is {self.most}: at least 1 node has to be left out, or infra from the ladder")


class Approvers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who has to approve a rung in mode ``approve``."""

    names: tuple[str, ...] = ()
    """Who may; empty for everybody with a token for the scope ``operate``."""
    approvals: int = 1
    """How many different people have to."""

    def __post_init__(self) -> None:
        if self.approvals < 1:
            raise ValueError(f"approvals is {self.approvals}: at least 1 person has to approve")
        if any(not name.strip() or len(name) > 200 or not name.isprintable() for name in self.names):
            raise ValueError("names has one that is empty, too long or not printable")
        if self.names and len(set(self.names)) < self.approvals:
            raise ValueError(f"approvals is {self.approvals}, and names has only {len(set(self.names))}")


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns, in which ``*`` stands for any characters; case counts.

    >>> matches_any("actor_rollout_ref.actor.optim.lr", ["*optim.lr"]), matches_any("prod-1", ["dev-*"])
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)
