"""The catalogue of what can be wrong with a checkpoint: one name each, for tables, records and people.

A problem has a ``code``, which is stable and short, and a sentence that says what was found and where. Whatever has one
is never chosen as a rollback target. Made by the layout, the manifest and the verification; shown by the command line,
and described in ``docs/checkpoints.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Code = Literal[
    "abandoned",
    "being_hashed",
    "being_written",
    "changed",
    "content",
    "foreign_name",
    "half_copy",
    "link",
    "longer",
    "manifest_edited",
    "manifest_format",
    "manifest_malformed",
    "manifest_other_step",
    "missing_data",
    "missing_file",
    "missing_shard",
    "no_manifest",
    "not_finite",
    "not_loadable",
    "not_runnable",
    "not_tried",
    "retention",
    "too_new",
    "tracker_gone",
    "tracker_malformed",
    "tracker_stale",
    "truncated",
    "unfinished",
    "unreadable",
    "world_size",
]

CODES: tuple[Code, ...] = get_args(Code)

MEANINGS: dict[Code, str] = {
    "abandoned": "a rollback went behind it",
    "being_hashed": "saved a moment ago; its manifest is being written",
    "being_written": "a save into it is going on",
    "changed": "a file changed while it was read",
    "content": "a file's content is not what was saved",
    "foreign_name": "the directory is not named global_step_N",
    "half_copy": "a copy or restore into it did not finish",
    "link": "a symbolic link where there should be a file or directory",
    "longer": "a file has grown since it was saved",
    "manifest_edited": "the manifest was changed after it was written",
    "manifest_format": "the manifest is of a format that this version does not read",
    "manifest_malformed": "the manifest cannot be read as one",
    "manifest_other_step": "the manifest is of another step",
    "missing_data": "the position in the data is missing; a resume would repeat data",
    "missing_file": "a file that was saved is gone",
    "missing_shard": "not all shards are there",
    "no_manifest": "no manifest: the save was not finished, or not watched",
    "not_finite": "weights or logits are NaN or infinite",
    "not_loadable": "a file cannot be loaded",
    "not_runnable": "the model cannot make a forward step",
    "not_tried": "it could not be verified that deeply here",
    "retention": "verl's own retention removed its shards and left the rest",
    "too_new": "saved after the newest step that is allowed",
    "tracker_gone": "verl's tracker names a step that is gone",
    "tracker_malformed": "verl's tracker names no step",
    "tracker_stale": "verl's tracker names another step than the newest good one",
    "truncated": "a file is cut short, as a full disk leaves it",
    "unfinished": "saved, but its files were never hashed",
    "unreadable": "a file or directory cannot be read",
    "world_size": "saved by another number of ranks than the run has now",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``sentence`` names file or numbers; ``path`` is relative, empty for the whole."""

    code: Code
    sentence: str
    path: str = ""


class CheckpointError(Exception):
    """A checkpoint cannot be used or described; the message is a sentence for a person, ``problem`` its code."""

    def __init__(self, sentence: str, problem: Code = "unreadable", path: str = "") -> None:
        super().__init__(sentence)
        self.problem: Code = problem
        self.path = path

    def as_problem(self) -> Problem:
        """The same, for a list of problems."""
        return Problem(self.problem, str(self), self.path)


def told(problems: tuple[Problem, ...]) -> str:
    """All problems in at most a few sentences; empty where there are none.

    >>> told((Problem("link", "A."), Problem("link", "B."), Problem("link", "C."), Problem("link", "D.")))
    'A. B. C. And 1 more.'
    """
    shown = " ".join(problem.sentence for problem in problems[:3])
    return shown + (f" And {len(problems) - 3} more." if len(problems) > 3 else "")
