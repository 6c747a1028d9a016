"""Attempts as jobs of a real Ray cluster with token authentication: a head that these tests start for themselves."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cut_proxy import Proxy
from private_ray import PrivateRay
from private_slurm import free_ports
from shadows import SECONDS, Shadows, until
from supervised_run import alive

from trainer_entry.executors import ExecutorError, confirm_gone

pytestmark = pytest.mark.programs


@pytest.fixture
def settings(tmp_path: Path, ray_head: PrivateRay) -> Path:
    return ray_head.settings(tmp_path)


def test_words_variables_and_exit_code_go_there_and_back_and_the_token_stays_secret(
    shadows: Shadows, ray_head: PrivateRay, tmp_path: Path
) -> None:
    settings = ray_head.settings(tmp_path, runtime_env={"env_vars": {"OF_THE_USER": "yes"}})
    shadows.environ["VERL_SENTINEL_TOKEN"] = "not-to-be-seen"
    words = ["two  words", "it's", "$HOME `id` \\", "ä"]
    program = "import json,os,sys; print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])); sys.exit(7)"
    shadow = shadows.start("ray", settings, sys.executable, "-c", program, *words)
    assert shadow.wait(SECONDS) == 7
    [line] = [line for line in shadows.output().splitlines() if line.startswith("[[")]
    argv, folder, environ = json.loads(line)
    assert (argv, folder) == (words, str(shadows.folder))
    assert environ["VERL_SENTINEL_RUN_ID"] == "test-run"
    assert environ["VERL_SENTINEL_ATTEMPT"] == "1"
    assert environ["OF_THE_USER"] == "yes"
    assert Path(environ["VERL_SENTINEL_TOKEN_FILE"]).read_text() == "not-to-be-seen\n"
    name = shadows.record()["name"]
    assert name == f"test-run-1-{shadows.markers[1][:8]}"
    shown = json.dumps(ray_head.jobs()[name])
    assert "not-to-be-seen" not in shown
    assert ray_head.jobs()[name]["metadata"] == {"verl_sentinel_run": "test-run", "verl_sentinel_attempt": "1"}


def test_a_job_whose_submission_was_not_noted_down_is_taken_up_and_not_submitted_again(
    shadows: Shadows, ray_head: PrivateRay, settings: Path
) -> None:
    """Submitted again under the same name, it would be refused; the log goes on where it was left."""
    script = "echo first; while ! [ -e go ]; do sleep 0.1; done; echo second; exit 5"
    first = shadows.start("ray", settings, "sh", "-c", script)
    until(lambda: "first\n" in shadows.output(), "the job's first line")
    first.kill()
    first.wait()
    record = shadows.record()
    # As if it had been killed before it knew that the job was submitted.
    (shadows.attempt() / "job.json").write_text(json.dumps({**record, "stage": "submitting", "id": ""}))
    again = shadows.start("ray", settings, "sh", "-c", script)
    (shadows.folder / "go").touch()
    assert again.wait(SECONDS) == 5
    assert shadows.output().splitlines().count("second") == 1
    assert [name for name in ray_head.jobs() if name.startswith("test-run-1-" + shadows.markers[1][:8])] == [
        record["name"]
    ]


def test_sigterm_ends_the_job_with_its_actors_and_the_shadow_comes_back_when_they_are_gone(
    shadows: Shadows, settings: Path
) -> None:
    program = """
        import os, pathlib, time, ray
        ray.init()
        @ray.remote(num_cpus=0.1)
        class Worker:
            def pid(self):
                return os.getpid()
        worker = Worker.remote()
        pathlib.Path("pid").write_text(str(ray.get(worker.pid.remote())))
        time.sleep(600)
        """
    shadow = shadows.start("ray", settings, sys.executable, "-c", textwrap.dedent(program))
    pid = shadows.pid()
    shadow.send_signal(signal.SIGTERM)
    assert shadow.wait(SECONDS) == 143
    until(lambda: not alive(pid), "the worker's process to be gone")
    assert "was ended: Job was intentionally stopped." in shadows.output()


def test_a_submission_that_arrives_after_it_was_called_off_is_refused(
    shadows: Shadows, ray_head: PrivateRay, settings: Path
) -> None:
    """The record says that it was about to be submitted, and the request is still on its way."""
    directory = shadows.attempt()
    name = f"test-run-1-{settings.parent.name[-8:]}"
    record = {"executor": "ray", "settings": str(settings), "name": name}
    (directory / "job.json").write_text(json.dumps(record))
    confirm_gone(directory, shadows.environ)
    late = urllib.request.Request(
        f"{ray_head.address}/api/jobs/",
        data=json.dumps({"entrypoint": f"touch {shadows.folder}/trained", "submission_id": name}).encode(),
        headers={"Authorization": f"Bearer {ray_head.token_file.read_text()}", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError, match="500"):
        urllib.request.urlopen(late, timeout=30)
    assert ray_head.alive() == []
    assert not (shadows.folder / "trained").exists()


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("wrong", "refuses the token in"),
        (None, "asks for a token; name the file that holds it as token_file."),
        ("", "holds no token: one line of plain characters."),
    ],
)
def test_a_token_that_does_not_fit_is_a_sentence_and_nothing_is_started(
    shadows: Shadows, ray_head: PrivateRay, tmp_path: Path, token: str | None, sentence: str
) -> None:
    before = set(ray_head.jobs())
    settings = ray_head.settings(tmp_path, token_file=None)
    if token is not None:
        (tmp_path / "other").write_text(token)
        settings = ray_head.settings(tmp_path, token_file="other")
    assert shadows.start("ray", settings, "true").wait(SECONDS) == 69
    assert sentence in shadows.output()
    assert "Nothing is started." in shadows.output()
    assert set(ray_head.jobs()) == before


def test_a_cluster_that_is_gone_is_a_sentence_and_nothing_is_started(
    shadows: Shadows, ray_head: PrivateRay, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    settings = ray_head.settings(tmp_path, address=f"http://127.0.0.1:{port}")
    assert shadows.start("ray", settings, "true").wait(SECONDS) == 69
    assert f"No Ray cluster answers at http://127.0.0.1:{port}" in shadows.output()
    with pytest.raises(ExecutorError, match=r"It is not certain that job test-run-1-\S+ of attempt 1 is over\. No Ray"):
        confirm_gone(shadows.attempt(), shadows.environ, seconds=1)


def test_a_cluster_that_goes_away_and_comes_back_is_asked_again(
    shadows: Shadows, ray_head: PrivateRay, tmp_path: Path
) -> None:
    """Through a proxy whose other side is cut: the job goes on, and its exit code arrives in the end."""
    proxy = Proxy(ray_head.address)
    try:
        settings = ray_head.settings(tmp_path, address=proxy.address)
        script = "echo first; while ! [ -e go ]; do sleep 0.1; done; echo second; exit 5"
        shadow = shadows.start("ray", settings, "sh", "-c", script)
        until(lambda: "first\n" in shadows.output(), "the job's first line")
        proxy.cut = True
        until(lambda: "The job may go on; asking again." in shadows.output(), "the shadow to notice")
        (shadows.folder / "go").touch()
        proxy.cut = False
        assert shadow.wait(SECONDS) == 5
        assert shadows.output().splitlines().count("second") == 1
    finally:
        proxy.close()
