"""Which policy holds for which run: the rules of one :class:`RecoveryPolicy`, applied. Used by the engine, its judge,
and what explains a policy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.rung_settings import GitSource


class Named(Protocol):
    """A run's facts, or a recovery's record: what a rule goes by."""

    @property
    def run_id(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def cohort(self) -> str: ...


class Policies:
    """Each rule's policy is made once."""

    def __init__(self, whole: RecoveryPolicy) -> None:
        self.whole = whole
        self._made: dict[int | None, RecoveryPolicy] = {
            index: whole.of_rule(index) for index in (None, *range(len(whole.rules)))
        }
        # Asked for every run at every scrape, and the answer is the same while its names are.
        self._index = lru_cache(maxsize=4096)(whole.rule_for)

    def of(self, run: Named) -> RecoveryPolicy:
        """The policy of a run, without rules."""
        return self._made[self._index(run.run_id, run.project, run.cohort)]

    def rule_of(self, run: Named) -> str:
        """The name of the rule that applies to it; empty for the policy as a whole."""
        return self.whole.rule_name(self._index(run.run_id, run.project, run.cohort))

    def git_sources(self) -> frozenset[tuple[str, str, str]]:
        """Repository, branch and file of every configuration that a rung may take from git."""
        found = {policy.config.git for policy in self._made.values() if "git" in policy.config.sources}
        return frozenset(place_of(source) for source in found if source is not None)


def place_of(source: GitSource) -> tuple[str, str, str]:
    """Repository, branch and file."""
    return (source.repository, source.branch, source.file)
