"""The chaos suite: real processes, real faults, and what must hold whoever dies. See ``docs/chaos.md``."""
