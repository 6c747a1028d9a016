"""What later attempts have that the command line of a run does not say: settings, a verl version, excluded machines.

A rung of the ladder, or a person, gives :class:`exporter.protocol.Changes`; the supervisor keeps those in force in
``run.json`` and starts every attempt with them; the plugin reads them in the trainer. Everything that comes from
outside goes through :func:`checked` first.
"""

from trainer_entry.changes.rules import (
    ChangeError,
    changes_of,
    checked,
    describe,
    is_empty,
    merged,
    parse_excluded,
    parse_setting,
    words_of,
)

__all__ = [
    "ChangeError",
    "changes_of",
    "checked",
    "describe",
    "is_empty",
    "merged",
    "parse_excluded",
    "parse_setting",
    "words_of",
]
