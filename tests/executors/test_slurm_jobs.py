"""Attempts as jobs of a real Slurm: munged, slurmctld and two slurmds that these tests start for themselves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from private_slurm import PrivateSlurm
from shadows import SECONDS, SLEEPER, Shadows, until
from supervised_run import alive

from trainer_entry.executors import ExecutorError, confirm_gone

pytestmark = pytest.mark.programs


@pytest.fixture
def run(shadows: Shadows, slurm: PrivateSlurm) -> Shadows:
    shadows.environ |= slurm.environ
    return shadows


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-settings.json"
    path.write_text(json.dumps({"sbatch": ["--time=10"], "poll_seconds": 0.3}))
    return path


def changes(*nodes: str) -> str:
    return json.dumps({"exclude": [{"node": node} for node in nodes]})


def test_the_words_arrive_as_they_are_and_the_exit_code_comes_back(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    words = ["two  words", "it's", "$HOME `id` \\", "ä\nb", "*"]
    program = "import sys, os, json; print(json.dumps([sys.argv[1:], os.getcwd()]), flush=True); sys.exit(7)"
    shadow = run.start("slurm", settings, "python3", "-c", program, *words)
    assert shadow.wait(SECONDS) == 7
    assert json.dumps([words, str(run.folder)]) in run.output()
    assert "job 1 failed with exit code 7" in run.output().replace(run.record()["id"], "1")
    assert (run.record()["stage"], run.record()["exit_code"]) == ("over", 7)


def test_a_job_that_a_signal_ended_has_the_code_a_shell_shows(run: Shadows, settings: Path) -> None:
    assert run.start("slurm", settings, "sh", "-c", "kill -9 $$").wait(SECONDS) == 137


def test_the_variables_of_the_run_travel_and_the_token_does_not(run: Shadows, settings: Path) -> None:
    run.environ["VERL_SENTINEL_TOKEN"] = "not-to-be-seen"
    assert run.start("slurm", settings, "env").wait(SECONDS) == 0
    printed = run.output()
    assert "VERL_SENTINEL_RUN_ID=test-run" in printed
    assert "VERL_SENTINEL_ATTEMPT=1" in printed
    assert "VERL_SENTINEL_ATTEMPT_MARKER" not in printed
    token = run.attempt() / "push-token"
    assert f"VERL_SENTINEL_TOKEN_FILE={token}" in printed
    assert token.read_text() == "not-to-be-seen\n"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    told = [path for path in (run.attempt() / "job").iterdir() if "not-to-be-seen" in path.read_text()]
    assert ("not-to-be-seen" in printed, told) == (False, [])


def test_sigterm_ends_the_job_and_the_shadow_comes_back_when_it_is_gone(run: Shadows, settings: Path) -> None:
    shadow = run.start("slurm", settings, "sh", "-c", "trap '' TERM; " + SLEEPER)
    pid = run.pid()
    shadow.send_signal(signal.SIGTERM)
    assert shadow.wait(SECONDS) == 143
    assert not alive(pid)
    assert "was ended: CANCELLED" in run.output()


def hanging_sbatch(run: Shadows, body: str) -> Path:
    """An sbatch in front of the real one, to stand still where a test wants it."""
    folder = run.folder / "bin"
    folder.mkdir()
    real = subprocess.run(["which", "sbatch"], capture_output=True, text=True, env=run.environ, check=True).stdout
    (folder / "sbatch").write_text(f"#!/bin/sh\nsbatch={shlex.quote(real.strip())}\n{body}\n")
    (folder / "sbatch").chmod(0o755)
    run.environ["PATH"] = f"{folder}{os.pathsep}{run.environ['PATH']}"
    return folder


def test_a_job_whose_number_the_shadow_never_learned_is_found_by_its_name(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    hanging_sbatch(run, '"$sbatch" "$@" > /dev/null; touch submitted; exec sleep 600')
    shadow = run.start("slurm", settings, "sh", "-c", SLEEPER)
    pid = run.pid()
    shadow.kill()
    shadow.wait()
    assert (run.record()["stage"], run.record()["id"]) == ("submitting", "")
    assert "was left behind, and was ended" in confirm_gone(run.attempt(), run.environ)
    assert not alive(pid)
    assert slurm.alive() == []


def test_a_submission_that_arrives_after_it_was_called_off_starts_nothing(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    """sbatch is held back until the shadow is dead and its job was declared gone."""
    hanging_sbatch(run, 'touch asked; while ! [ -e go ]; do sleep 0.05; done; "$sbatch" "$@" > late')
    shadow = run.start("slurm", settings, "sh", "-c", "touch trained")
    until((run.folder / "asked").exists, "sbatch to be called")
    shadow.kill()
    shadow.wait()
    assert confirm_gone(run.attempt(), run.environ) == ""
    (run.folder / "go").touch()
    late = run.folder / "late"
    until(lambda: late.exists() and late.read_text().strip(), "the late submission")
    job = late.read_text().strip()
    until(lambda: slurm.shown(job, "JobState") == "FAILED", "the late job to end")
    assert slurm.shown(job, "ExitCode") == "76:0"
    assert not (run.folder / "trained").exists()


def test_a_lost_answer_to_sbatch_is_no_second_job(run: Shadows, slurm: PrivateSlurm, settings: Path) -> None:
    hanging_sbatch(
        run, '"$sbatch" "$@" > /dev/null; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1'
    )
    before = set(slurm.jobs())
    assert run.start("slurm", settings, "sh", "-c", "exit 4").wait(SECONDS) == 4
    assert set(slurm.jobs()) - before == {run.record()["id"]}


def test_the_nodes_that_the_changes_exclude_are_left_out(run: Shadows, slurm: PrivateSlurm, settings: Path) -> None:
    show = 'echo "on $SLURMD_NODENAME"'
    assert run.start("slurm", settings, "sh", "-c", show, VERL_SENTINEL_CHANGES=changes("left")).wait(SECONDS) == 0
    assert "on right" in run.output()
    assert slurm.shown(run.record()["id"], "ExcNodeList") == "left"
    settings.write_text(json.dumps({"sbatch": ["-x", "right"], "poll_seconds": 0.3}))
    shadow = run.start("slurm", settings, "sh", "-c", show, attempt=2, VERL_SENTINEL_CHANGES=changes("left"))
    assert shadow.wait(SECONDS) == 69  # those that the user left out are still left out too
    assert "Slurm refused; its sbatch says: Batch job submission failed: Requested node" in run.output(2)


def test_a_node_that_slurm_does_not_know_is_a_sentence_and_no_job(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    before = slurm.jobs()
    shadow = run.start("slurm", settings, "true", VERL_SENTINEL_CHANGES=changes("left,right"))
    assert shadow.wait(SECONDS) == 69
    assert "Slurm knows no node 'left,right', so it cannot be left out; nothing is started." in run.output()
    assert slurm.jobs() == before


def test_a_job_that_slurm_starts_again_by_itself_does_not_train_twice(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    """As after a node failed, or somebody's scontrol requeue."""
    settings.write_text(json.dumps({"requeue": True, "poll_seconds": 0.3}))
    shadow = run.start("slurm", settings, "sh", "-c", "echo once >> trained; " + SLEEPER)
    pid = run.pid()
    job = run.record()["id"]
    slurm.ask("scontrol", "requeue", job)
    assert shadow.wait(SECONDS) == 75
    assert "put back into the queue" in run.output()
    assert not alive(pid)
    assert slurm.alive() == []


def test_a_job_that_is_started_again_while_nobody_follows_it_does_not_train_twice(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    settings.write_text(json.dumps({"requeue": True, "poll_seconds": 0.3}))
    shadow = run.start("slurm", settings, "sh", "-c", "echo once >> trained; " + SLEEPER)
    pid = run.pid()
    shadow.kill()
    shadow.wait()
    job = run.record()["id"]
    slurm.ask("scontrol", "requeue", job)
    until(lambda: slurm.shown(job, "JobState") == "PENDING", "the job to be put back")
    slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now+5")
    until(lambda: slurm.shown(job, "JobState") == "FAILED", "the job to end")
    assert slurm.shown(job, "ExitCode") == "76:0"
    assert (run.folder / "trained").read_text() == "once\n"
    assert not alive(pid)
    assert "nothing is started" in (run.attempt() / "job" / "slurm.log").read_text()


def test_with_requeue_the_next_attempt_is_the_same_job_with_its_own_words(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    settings.write_text(json.dumps({"requeue": True, "poll_seconds": 0.3}))
    assert run.start("slurm", settings, "sh", "-c", "echo one; exit 3").wait(SECONDS) == 3
    second = run.start(
        "slurm", settings, "sh", "-c", 'echo "two on $SLURMD_NODENAME"', attempt=2,
        VERL_SENTINEL_CHANGES=changes("left"),
    )  # fmt: skip
    assert second.wait(SECONDS) == 0
    assert "two on right" in run.output(2)
    assert "one" not in run.output(2).splitlines()
    job = run.record()["id"]
    assert (run.record(2)["id"], slurm.shown(job, "Restarts")) == (job, "1")
    assert slurm.shown(job, "JobName") == run.record(2)["name"]
    third = run.start("slurm", settings, "sh", "-c", SLEEPER, attempt=3)
    pid = run.pid()
    third.terminate()
    assert third.wait(SECONDS) == 143
    assert not alive(pid)
    assert slurm.shown(job, "ExcNodeList") == "(null)"


def test_a_cluster_that_cannot_be_asked_is_a_sentence_and_nothing_is_started(
    run: Shadows, slurm: PrivateSlurm, settings: Path
) -> None:
    shadow = run.start("slurm", settings, "sh", "-c", SLEEPER)
    pid = run.pid()
    shadow.kill()
    shadow.wait()
    broken = run.folder / "broken.conf"
    text = slurm.configuration.read_text()
    broken.write_text(text.replace("ctldPort=", "ctldPort=1 #").replace("MessageTimeout=10", "MessageTimeout=2"))
    away = {**run.environ, "SLURM_CONF": str(broken)}
    with pytest.raises(ExecutorError, match=r"It is not certain that job \d+ of attempt 1 is over. Slurm cannot be"):
        confirm_gone(run.attempt(), away, seconds=1)
    assert alive(pid)
    other = run.start("slurm", settings, "true", attempt=2, SLURM_CONF=str(broken))
    assert other.wait(SECONDS) == 69
    assert "Slurm cannot be asked from this machine" in run.output(2)
    assert "Nothing is started." in run.output(2)
    assert confirm_gone(run.attempt(), run.environ) != ""
    assert not alive(pid)
