"""What a followed run is called where nobody says so. Called by ``verl-sentinel follow``."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from exporter.protocol import Run


def run_named(path: Path, *, run_id: str = "", project: str = "", experiment: str = "", cohort: str = "") -> Run:
    """The identity of the run that logs into ``path``, which is absolute.

    verl's ``file`` logger writes ``<root>/<project>/<experiment>.jsonl``, so the path names both. The digest keeps two
    runs apart that are called the same and lie in different places.

    >>> run = run_named(Path("/logs/gsm8k/grpo 7B.jsonl"))
    >>> run.run_id, run.project, run.experiment
    ('gsm8k-grpo-7B-d9c1e4fd', 'gsm8k', 'grpo 7B')
    """
    stem = path.name.removesuffix(".gz")
    stem = stem.rpartition(".")[0] or stem
    project = project or printable(path.parent.name)
    experiment = experiment or printable(stem)
    if not run_id:
        digest = hashlib.sha256(str(path).removesuffix(".gz").encode("utf-8", "surrogateescape")).hexdigest()[:8]
        words = re.sub(r"[^A-Za-z0-9._]+", "-", f"{project}-{experiment}").strip("-._")[:100]
        run_id = f"{words or 'run'}-{digest}"
    return Run(run_id=run_id, project=project, experiment=experiment, cohort=cohort)


def printable(name: str) -> str:
    """Without what an exporter would refuse in a name."""
    return "".join(c if c.isprintable() else "-" for c in name)[:200]
