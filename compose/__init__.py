"""The whole stack: as containers (``compose.yml``), as programs of this machine (:mod:`compose.local`), under systemd.

Python is only what fills addresses into the configurations of ``rules/``.
"""
