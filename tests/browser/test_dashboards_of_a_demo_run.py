"""Every query of the dashboards, on a Prometheus that scraped a healthy run of the stock trainer, gives data."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from demo_run import REPOSITORY, DemoRun

from grafana.against import may_be_empty

pytestmark = [pytest.mark.trainer, pytest.mark.programs, pytest.mark.timeout(1500)]

WITHOUT = ",".join(sorted(may_be_empty().keys() - {"enough_steps", "next_step"}))
"""What a run of GRPO on CPUs, minutes old and healthy, does not have (reasons: ``grafana/empty_without.yml``)."""
STEPS = 32
"""By then the run has been validated and saved more than once, and its detectors expect something of each signal."""


def test_no_panel_of_a_healthy_run_is_empty_but_those_on_the_list(healthy_run: DemoRun) -> None:
    run = healthy_run
    run.until(lambda: run.reached(STEPS) or None, f"step {STEPS} was logged")
    asked = subprocess.run(
        [
            *(sys.executable, "-m", "grafana", "--against", run.addresses["prometheus"]),
            *("--run", run.run_id, "--without", WITHOUT, "--json"),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert asked.stdout, asked.stderr
    answer = json.loads(asked.stdout)
    unsound = [one for one in answer["queries"] if one["error"] or not (one["series"] or one["excuse"])]
    assert unsound == []
    assert (asked.returncode, answer["sound"]) == (0, True)
    assert not [one for one in run.alerts() if one["labels"].get("severity") == "critical"]
