"""The trainer's command line: where its checkpoints go, how it resumes, and the same line with a resume target.

verl takes Hydra overrides (``key=value`` words). Only words are looked at, never a shell string.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][A-Za-z0-9_.]*)=(?P<value>.*)", re.DOTALL)
_RESUME_KEYS = ("trainer.resume_mode", "trainer.resume_from_path")
_BARE = re.compile(r"[A-Za-z0-9_./@%-]+")

# trainer.project_name and trainer.experiment_name of verl's own configurations, which are the same from 0.8.0 to 0.9.1.
_PPO_NAMES = ("verl_examples", "gsm8k")
_SFT_NAMES = ("gsm8k-sft", "test")


class OverrideError(ValueError):
    """The command line cannot be understood or changed; the message is a sentence that says what to give."""


@dataclass(frozen=True, slots=True)
class TrainerCommand:
    """The words of the trainer's command line, and the folder it runs in."""

    argv: tuple[str, ...]
    cwd: str

    def override(self, key: str) -> str | None:
        """The value that the last ``key=value`` word gives, without quotes; None where there is none, or ``null``."""
        value: str | None = None
        for word in self.argv[1:]:
            match = _OVERRIDE.fullmatch(word)
            if match and match["key"] == key and match["sign"] != "~":
                value = match["value"]
        if value is None or value == "null":
            return None
        return _unquoted(value)

    @property
    def names(self) -> tuple[str, str]:
        """verl's project and experiment name."""
        project, experiment = _SFT_NAMES if self._is_sft else _PPO_NAMES
        return self.override("trainer.project_name") or project, self.override("trainer.experiment_name") or experiment

    def checkpoint_dir(self, environ: Mapping[str, str]) -> str:
        """The absolute ``trainer.default_local_dir``. Raises OverrideError where only a configuration file knows it."""
        value = self.override("trainer.default_local_dir")
        if value is None:
            if any(re.match(r"(--config-(name|path|dir)|-cn|-cp|-cd)(=|$)", word) for word in self.argv):
                raise OverrideError(
                    "The checkpoint directory is set in a configuration file, which is not read here; "
                    "give it with --checkpoint-dir, or as trainer.default_local_dir=… after the '--'."
                )
            value = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"
        project, experiment = self.names
        value = value.replace("${trainer.project_name}", project).replace("${trainer.experiment_name}", experiment)
        value = re.sub(r"\$\{oc\.env:([A-Za-z_][A-Za-z0-9_]*)\}", lambda match: environ.get(match[1], match[0]), value)
        if "${" in value:
            raise OverrideError(
                f"The checkpoint directory {value!r} refers to other settings; give it as a path with --checkpoint-dir."
            )
        return os.path.abspath(os.path.join(self.cwd, value))

    @property
    def resume_mode(self) -> str:
        """verl's ``trainer.resume_mode``; ``auto`` where it is not given."""
        return self.override("trainer.resume_mode") or "auto"

    @property
    def resume_path(self) -> str | None:
        """The absolute path that the user wants to resume from, if any. verl's PPO looks at it in mode ``resume_path``
        only; in mode ``auto`` it follows its tracker, whatever path is given.
        """
        if self.resume_mode != "resume_path" and not self._is_sft:
            return None
        value = self.override("trainer.resume_from_path")
        return os.path.abspath(os.path.join(self.cwd, value)) if value else None

    @property
    def _is_sft(self) -> bool:
        return any("sft" in word for word in self.argv[1:4])

    def resuming_from(self, directory: str) -> tuple[str, ...]:
        """The words with a resume from ``directory``, in place of whatever resume overrides were there."""
        kept = [word for word in self.argv if not _is_resume(word)]
        return (*kept, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={_quoted(directory)}")


def parse(argv: Sequence[str], cwd: str) -> TrainerCommand:
    """Check the words after the ``--``. Raises OverrideError."""
    if not argv:
        raise OverrideError(
            "There is no trainer to run; give its command after '--', such as -- python -m trainer_entry.main_ppo …"
        )
    for word in argv:
        if "\0" in word:
            raise OverrideError("The trainer's command holds a NUL character.")
    return TrainerCommand(tuple(argv), cwd)


def _is_resume(word: str) -> bool:
    match = _OVERRIDE.fullmatch(word)
    key = match["key"] if match else word.removeprefix("~")
    return key in _RESUME_KEYS


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].replace("\\" + value[0], value[0])
    return value


def _quoted(path: str) -> str:
    """As a Hydra value: bare where its grammar allows, else in single quotes.

    >>> _quoted("/a/global_step_5"), _quoted("/a b/global_step_5")
    ('/a/global_step_5', "'/a b/global_step_5'")
    """
    if _BARE.fullmatch(path):
        return path
    if "${" in path or "\\" in path or "\n" in path:
        raise OverrideError(
            f"verl cannot be given the path {path!r}: Hydra would read the '${{', backslash or newline."
        )
    return "'" + path.replace("'", "\\'") + "'"
