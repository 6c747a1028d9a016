"""verl versions beside the current one: an environment of its own for each, layered over the current interpreter's.

``verl-sentinel-train environments list|build|register|check`` is the way in; the supervisor starts the trainer in one
after a rollback of the version. Nothing is ever changed in place: what the run was started with stays as it is.
"""

from trainer_entry.environments.places import (
    Environment,
    VersionError,
    default_directory,
    environments,
    find,
    variables,
)

__all__ = ["Environment", "VersionError", "default_directory", "environments", "find", "variables"]
