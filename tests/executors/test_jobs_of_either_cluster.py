"""What a job of Ray and a job of Slurm do alike when the process that follows them is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from private_ray import PrivateRay
from private_slurm import PrivateSlurm
from shadows import SECONDS, SLEEPER, Shadows, until
from supervised_run import alive

from trainer_entry.executors import confirm_gone, job_state

pytestmark = pytest.mark.programs


class Cluster:
    """One of the two, as the shadow is told of it."""

    def __init__(self, name: str, settings: Path, jobs: PrivateRay | PrivateSlurm) -> None:
        self.name = name
        self.settings = settings
        self._jobs = jobs

    def named(self, name: str) -> int:
        """How many jobs have that name."""
        if isinstance(self._jobs, PrivateRay):
            return list(self._jobs.jobs()).count(name)
        return [self._jobs.shown(job, "JobName") for job in self._jobs.jobs()].count(name)


@pytest.fixture(params=["slurm", "ray"])
def cluster(request: pytest.FixtureRequest, shadows: Shadows, tmp_path: Path) -> Cluster:
    if request.param == "ray":
        head: PrivateRay = request.getfixturevalue("ray_head")
        return Cluster("ray", head.settings(tmp_path), head)
    slurm: PrivateSlurm = request.getfixturevalue("slurm")
    shadows.environ |= slurm.environ
    settings = tmp_path / "slurm-settings.json"
    settings.write_text(json.dumps({"sbatch": ["--time=10"], "poll_seconds": 0.3}))
    return Cluster("slurm", settings, slurm)


def test_a_killed_shadow_leaves_the_job_and_another_takes_it_up(shadows: Shadows, cluster: Cluster) -> None:
    """It is not submitted again, and its log goes on from what was noted down last."""
    script = "echo first; while ! [ -e go ]; do sleep 0.1; done; echo second; exit 5"
    first = shadows.start(cluster.name, cluster.settings, "sh", "-c", script)
    until(lambda: "first" in shadows.output().splitlines(), "the job's first line")
    first.kill()
    first.wait()
    again = shadows.start(cluster.name, cluster.settings, "sh", "-c", script)
    (shadows.folder / "go").touch()
    assert again.wait(SECONDS) == 5
    assert shadows.output().splitlines().count("second") == 1
    assert cluster.named(shadows.record()["name"]) == 1


def test_a_job_whose_shadow_died_is_ended_before_the_next_start(shadows: Shadows, cluster: Cluster) -> None:
    shadow = shadows.start(cluster.name, cluster.settings, "sh", "-c", SLEEPER)
    pid = shadows.pid()
    shadow.kill()
    shadow.wait()
    found = job_state(shadows.attempt(), shadows.environ)
    assert found is not None
    assert found.state == "running"
    assert "was left behind, and was ended" in confirm_gone(shadows.attempt(), shadows.environ)
    assert not alive(pid)
    assert confirm_gone(shadows.attempt(), shadows.environ) == ""
