"""Sentences that the program wrote down in English, in the language of who reads them. Used by the pages about
decisions and by the page of an error.

Outcomes, lines of the audit log and reasons are stored as they were said. Here are those of a fixed wording, with what
varies in them; a sentence of another wording stays as it is, and the page marks it as English.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from exporter.console.languages import N_
from exporter.console.recovery_shown import STAGES

SENTENCES: Final = (
    # What people decided
    N_("%(who)s approved it."),
    N_("%(who)s refused it."),
    N_("%(who)s acknowledged it."),
    N_("%(who)s acknowledged incident %(id)s."),
    N_("%(who)s removed the run with all that was pushed for it."),
    # How an abort left the run
    N_("The supervisor had not been told of it yet, so nothing was done to the run."),
    N_("The supervisor has not answered (%(n)s s have passed), so what it does with the command is not known."),
    N_("Attempt %(n)s was started from step %(step)s and left running, not verified."),
    N_("Attempt %(n)s was started and left running, not verified."),
    N_("The trainer is stopped, and a person has to start it."),
    N_("The supervisor has not answered yet."),
    N_("The trainer was left as it is: attempt %(n)s goes on."),
    N_("The supervisor has answered the abort."),
    # How far it is, and how it ended
    N_("The command was handed to the supervisor."),
    N_("The supervisor has taken the command."),
    N_("The supervisor stops the trainer."),
    N_("The trainer is stopped."),
    N_("The supervisor starts the new attempt from step %(step)s."),
    N_("The supervisor starts the new attempt."),
    N_("The supervisor says that the new attempt runs."),
    N_("The supervisor has carried out the command."),
    N_("The supervisor could not carry out the command."),
    N_("The new attempt was started from step %(step)s."),
    N_("Attempt %(n)s was started from step %(step)s."),
    N_("Attempt %(n)s was started."),
    N_("Step %(step)s is the first healthy step past the checkpoint."),
    N_("Step %(step)s is not healthy; healthy steps are counted anew."),
    N_("Attempt %(n)s has pushed %(count)s healthy steps in a row past step %(step)s."),
    N_("%(count)s steps of attempt %(n)s were not healthy, the last is step %(step)s."),
    N_("Withdrawn: attempt %(n)s was started meanwhile."),
    N_("Withdrawn: its incidents are resolved."),
    # Alerts
    N_("The alert is resolved."),
    N_("The alert is resolved; nothing is done on that."),
    # Why a checkpoint was taken or not
    N_("verified, and saved before the onset less the margin"),
    N_("not verified: its manifest was not written"),
    N_("step %(step)s is not a training step"),
    N_("newer than step %(step)s, the last that the findings leave unsuspected"),
    N_("saved by attempt %(n)s, after the failure of attempt %(count)s"),
    N_("saved by attempt %(n)s, whose course attempt %(count)s left at step %(step)s"),
    # Why there is no page
    N_("There is no recovery %(id)s."),
    N_("Run %(id)s has had no recovery."),
    N_("Incident %(id)s is not known here: the run was forgotten, or the incident is long over."),
    N_("%(id)s is no decision on a recovery."),
)
ABORTED: Final = N_("%(who)s aborted it (stage: %(stage)s).")
MEANWHILE: Final = N_("Attempt %(n)s was started meanwhile.")

MOST_CHARACTERS: Final = 2000
"""A longer text is none of these."""

_PARAMETERS: Final = {
    "who": r".{1,200}",
    "id": r".{1,600}",
    "n": r"[\d.e+]{1,20}",
    "count": r"\d{1,20}",
    "step": r"\d{1,20}",
}
_ABORTED: Final = re.compile(
    r"(?P<who>.{1,200}?) aborted it (?:while it was|after it had) (?P<stage>[a-z ]{1,30})\. (?P<how>.+)"
)
_MEANWHILE: Final = re.compile(r"(?P<before>.+) Attempt (?P<n>\d{1,20}) was started meanwhile\.")


def _pattern(sentence: str) -> re.Pattern[str]:
    parts = re.split(r"%\((\w+)\)s", sentence)
    # Every second part is the name of a parameter.
    return re.compile(
        "".join(re.escape(it) if i % 2 == 0 else f"(?P<{it}>{_PARAMETERS[it]})" for i, it in enumerate(parts))
    )


_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {sentence: _pattern(sentence) for sentence in SENTENCES}


def retold(text: str, gettext: Callable[[str], str]) -> str:
    """The sentence in the language of ``gettext``; empty where it is not of a wording that is known there.

    >>> retold("ada approved it.", {"%(who)s approved it.": "%(who)s 批准了它。"}.get)
    'ada 批准了它。'
    >>> retold("approved <it>", lambda text: text)
    ''
    """
    if len(text) > MOST_CHARACTERS:
        return ""
    aborted = _ABORTED.fullmatch(text)
    if aborted is not None:
        stage = STAGES.get(aborted["stage"].replace(" ", "_"), "")
        how, meanwhile = aborted["how"], _MEANWHILE.fullmatch(aborted["how"])
        if meanwhile is not None:
            how = meanwhile["before"]
        said = [_one(how, gettext), _in(gettext, ABORTED, who=aborted["who"], stage=gettext(stage)) if stage else ""]
        said.append(_in(gettext, MEANWHILE, n=meanwhile["n"]) if meanwhile is not None else " ")
        return f"{said[1]} {said[0]} {said[2]}".strip() if all(said) else ""
    return _one(text, gettext)


def _one(text: str, gettext: Callable[[str], str]) -> str:
    for sentence, pattern in _PATTERNS.items():
        found = pattern.fullmatch(text)
        if found is not None:
            return _in(gettext, sentence, **found.groupdict())
    return ""


def _in(gettext: Callable[[str], str], sentence: str, **parameters: str) -> str:
    said = gettext(sentence)
    return said % parameters if said != sentence else ""
