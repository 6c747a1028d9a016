"""Canonical signals: one table from verl's metric keys to the names that the rest of the exporter speaks.

Called by the service when a step has arrived (and by replay), before any detector sees it. The table knows how each
verl version and each trainer spells a signal; nothing behind it reads a verl key. A spelling is tried in order, and the
first one that the trainer logged wins. What a run does not log is absent, never zero.
"""

from exporter.signals.plans import Plan, canonical, plan_of
from exporter.signals.table import GIB, PPO, SFT, SIGNALS, Signal, Spelling

__all__ = ["GIB", "PPO", "SFT", "SIGNALS", "Plan", "Signal", "Spelling", "canonical", "plan_of"]
