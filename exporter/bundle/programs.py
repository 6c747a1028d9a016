"""promtool and amtool over a directory, their complaints as findings. Called by :mod:`exporter.bundle.check`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from exporter.bundle.findings import Report
from exporter.bundle.layout import Parts

PATIENCE_SECONDS: Final = 300.0
"""For one call of a program."""

PROGRAMS: Final = {
    "promtool": "apt install prometheus, or the archive of a release of Prometheus",
    "amtool": "apt install prometheus-alertmanager, or the archive of a release of Alertmanager",
}
"""With where to get each."""

_PLACE: Final = re.compile(r"(?:line |:\s?)(\d+)(?::\d+)?:")


def run_programs(root: Path, parts: Parts, without: Collection[str], report: Report) -> None:
    """Check rules, configuration, tests and routes with the programs that will read them.

    Args:
        root: the directory.
        parts: what is in it.
        without: programs that the caller does not want.
        report: takes the findings, and a sentence for each program that is missing.
    """
    wanted: list[tuple[str, tuple[str, ...], str]] = []
    wanted += [("promtool", ("check", "rules"), file.path) for file in parts.rule_files]
    wanted += [("promtool", ("check", "config"), config.path) for config in parts.configs]
    wanted += [("promtool", ("test", "rules"), path) for path in parts.tests]
    if parts.alertmanager is not None:
        wanted.append(("amtool", ("check-config",), parts.alertmanager))
    found = {program: shutil.which(program) for program in PROGRAMS if program not in without}
    for program in sorted({program for program, _, _ in wanted}):
        if program in without:
            report.notes.append(f"{program} was left out.")
        elif found[program] is None:
            source = PROGRAMS[program]
            report.missing.append(f"{program} is not installed: {source}; or leave it out with --without {program}.")
    calls = [(path, arguments, program, where) for program, arguments, path in wanted if (where := found.get(program))]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for _ in pool.map(lambda call: _run(root, (call[3], *call[1], call[0]), call[2], call[0], report), calls):
            pass
    for _, _, program, _ in calls:
        report.saw(f"files with {program}")


def _run(root: Path, command: tuple[str, ...], program: str, path: str, report: Report) -> None:
    # A path that begins with a dash would be an option.
    argv = [*command[:-1], f"./{path}"]
    try:
        done = subprocess.run(
            argv,
            cwd=root,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        report.add(path, 0, program, f"{program} did not come to an end within {PATIENCE_SECONDS:.0f} s.")
        return
    except OSError as error:
        report.missing.append(f"{program} cannot be started: {error.strerror}.")
        return
    if done.returncode != 0:
        said = _said(done.stdout + "\n" + done.stderr)
        place = _PLACE.search(said)
        report.add(path, int(place.group(1)) if place else 0, program, f"{program} {command[1]}: {said}")


def _said(output: str) -> str:
    """What a program said, in one line and without what is no complaint."""
    lines = [re.sub(r"^\s*Checking '?\S+?'?(\s+|$)", "", line).strip() for line in output.splitlines()]
    kept = [line for line in lines if line and not re.match(r"(Unit Testing:|SUCCESS|FAILED:?$|Found:)", line)]
    said = " ".join(" ".join(kept).split())
    return (said[:1500] + " …") if len(said) > 1500 else said or "failed, and said nothing."
