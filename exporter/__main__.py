"""Where the programs start: ``verl-sentinel``, and ``python -m exporter``, which is the same as ``verl-sentinel serve``
unless a command of ``verl-sentinel`` is named.

A training image has the package without what the exporter needs. There the program says what is missing.
"""

from __future__ import annotations

import sys

REQUIRED = (
    "backports",
    "httptools",
    "litestar",
    "numpy",
    "prometheus_client",
    "promql_parser",
    "rich",
    "typer",
    "uvicorn",
    "yaml",
)
"""What the extra ``exporter`` brings, by the names that are imported."""


def verl_sentinel() -> None:
    """Entry point of the program ``verl-sentinel``."""
    try:
        from exporter.cli import main

        main()
    except ModuleNotFoundError as error:
        _name_the_extra(error)


def exporter() -> None:
    """``python -m exporter``."""
    try:
        from exporter.cli import main

        if sys.argv[1:2] != ["replay"]:
            from exporter.cli.program import COMMANDS

            if not (sys.argv[1:] and (sys.argv[1] in COMMANDS or sys.argv[1] in ("--help", "-h", "--version"))):
                sys.argv.insert(1, "serve")
        main()
    except ModuleNotFoundError as error:
        _name_the_extra(error)


def _name_the_extra(error: ModuleNotFoundError) -> None:
    missing = (error.name or "").partition(".")[0]
    if missing not in REQUIRED:
        raise error
    sys.exit(
        f"verl-sentinel: {missing} is not installed, so this is an installation for the trainer's side only. "
        "The exporter and its commands need: pip install 'verl-sentinel[exporter]'"
    )


if __name__ == "__main__":
    exporter()
