"""What Ray's dashboard answers about the actors of a job that is over, and what a stop makes of it.

For machines without Ray, and for answers that a healthy cluster does not give.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_entry.executors import ray_jobs
from trainer_entry.executors.configuration import RaySettings
from trainer_entry.executors.ending import end_job
from trainer_entry.executors.interface import CannotAsk, JobState
from trainer_entry.executors.ray_jobs import RayJobs
from trainer_entry.executors.record import JobRecord


def ray(monkeypatch: pytest.MonkeyPatch, status: int, body: Any) -> RayJobs:
    """The executor at a cluster where the job has ended by itself, and that answers so about its actors."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    class Client:
        def __init__(self, address: str, **more: object) -> None:
            pass

        def get_job_info(self, job_id: str) -> Any:
            return SimpleNamespace(status="SUCCEEDED", driver_exit_code=0, job_id="01000000", message="finished")

        def _do_request(self, method: str, endpoint: str) -> Any:
            assert endpoint.startswith("/api/v0/actors?filter_keys=job_id")
            return SimpleNamespace(status_code=status, content=content)

    monkeypatch.setattr(ray_jobs, "_client_class", lambda: Client)
    return RayJobs(RaySettings(poll_seconds=0.01))


def listed(*states: str) -> dict[str, object]:
    return {"result": True, "msg": "", "data": {"result": {"result": [{"state": state} for state in states]}}}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, {"result": False, "msg": "Failed to query the data source"}, "status 500: .*Failed to query"),
        (503, b"", "status 503"),
        (429, {"result": False, "msg": "Max number of in-progress requests"}, "status 429"),
        (200, b"<html>a proxy's own page</html>", "not understood: <html>"),
        (200, {"result": False, "data": None}, "not understood"),
        (200, {"data": {"result": {"result": [{"actor_id": "1"}]}}}, "not understood"),
    ],
)
def test_a_stop_is_not_confirmed_while_ray_does_not_say_that_the_actors_are_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, body: Any, words: str
) -> None:
    executor = ray(monkeypatch, status, body)
    with pytest.raises(CannotAsk, match=words):
        executor.state("job")
    record = JobRecord(executor="ray", settings="", name="job", stage="submitted", id="job")
    with pytest.raises(CannotAsk, match="Whether actors of the job are left cannot be told"):
        end_job(executor, record, tmp_path, 0)


def test_a_job_is_over_when_all_its_actors_are_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray(monkeypatch, 200, listed("DEAD", "DEAD")).state("job") == JobState("succeeded", 0, "finished")
    left = ray(monkeypatch, 200, listed("DEAD", "ALIVE", "RESTARTING")).state("job")
    assert left == JobState("running", None, "2 of its actors are still there")


def test_a_ray_that_lists_no_actors_is_believed_about_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray(monkeypatch, 404, b"404: Not Found").state("job") == JobState("succeeded", 0, "finished")
