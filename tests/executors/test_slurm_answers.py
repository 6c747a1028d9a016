"""What Slurm's programs print, as recorded from Slurm 22.05.8 (slurm-wlm of Debian 12) and as its manual has it.

For machines without Slurm, and for answers that a healthy cluster does not give.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_entry.executors import slurm_commands as commands
from trainer_entry.executors.configuration import SlurmSettings
from trainer_entry.executors.interface import CannotAsk, Job, JobState, Refused
from trainer_entry.executors.slurm import Slurm

SHOWN = (
    "JobId=1 JobName=a-1-x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 "
    "ExitCode={code} RunTime=00:00:02 Command=/tmp/JobState=RUNNING ExitCode=9:9 WorkDir=/tmp\n"
)


@pytest.mark.parametrize(
    ("state", "reason", "code", "expected"),
    [
        ("RUNNING", "None", "0:0", JobState("running", None, "RUNNING")),
        ("PENDING", "Resources", "0:0", JobState("pending", None, "PENDING (Resources)")),
        ("COMPLETING", "None", "0:0", JobState("running", None, "COMPLETING")),
        ("COMPLETED", "None", "0:0", JobState("succeeded", 0, "COMPLETED")),
        ("FAILED", "NonZeroExitCode", "7:0", JobState("failed", 7, "FAILED (NonZeroExitCode)")),
        ("FAILED", "RaisedSignal:9(Killed)", "0:9", JobState("failed", 137, "FAILED (RaisedSignal:9(Killed))")),
        ("CANCELLED", "None", "7:0", JobState("stopped", None, "CANCELLED")),
        ("NODE_FAIL", "None", "0:0", JobState("failed", None, "NODE_FAIL")),
        ("OUT_OF_MEMORY", "OutOfMemory", "0:125", JobState("failed", 253, "OUT_OF_MEMORY (OutOfMemory)")),
        ("SOMETHING_NEW", "None", "0:0", JobState("running", None, "SOMETHING_NEW")),
    ],
)
def test_states_and_exit_codes(state: str, reason: str, code: str, expected: JobState) -> None:
    shown = commands.parse_job(SHOWN.format(state=state, reason=reason, code=code))
    assert (shown.state, shown.restarts) == (expected, 1)


def programs(folder: Path, **bodies: str) -> dict[str, str]:
    """Programs that answer as Slurm's did."""
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


FORGOTTEN = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
NO_ACCOUNTING = 'echo "Slurm accounting storage is disabled" >&2; exit 1'


def test_a_job_that_the_controller_has_forgotten_is_asked_of_accounting(tmp_path: Path) -> None:
    environ = programs(tmp_path, scontrol=FORGOTTEN, sacct='echo "CANCELLED by 0|0:15"')
    assert commands.show("5", environ).state == JobState("stopped", None, "CANCELLED")
    environ = programs(tmp_path, sacct='echo "FAILED|3:0"')
    assert commands.show("5", environ).state == JobState("failed", 3, "FAILED")


def test_a_job_that_both_have_forgotten_is_unknown(tmp_path: Path) -> None:
    environ = programs(tmp_path, scontrol=FORGOTTEN, sacct=NO_ACCOUNTING)
    assert commands.show("5", environ).state.state == "unknown"


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "scontrol: error: If munged is up, restart with --num-threads=10",
        "scontrol: fatal: Could not establish a configuration source",
    ],
)
def test_a_controller_that_does_not_answer_says_nothing_of_the_job(tmp_path: Path, words: str) -> None:
    environ = programs(tmp_path, scontrol=f"echo {words!r} >&2; exit 1")
    with pytest.raises(CannotAsk, match="Slurm cannot be asked from this machine; its scontrol says"):
        commands.show("5", environ)


def test_a_refusal_is_told_in_slurms_words_and_leaves_no_job(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    environ = programs(
        tmp_path / "bin",
        squeue="true",
        sacct=NO_ACCOUNTING,
        sbatch='echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2; exit 1',
    )
    executor = Slurm(SlurmSettings(), tmp_path, environ)
    job = Job(name="r-1-ab", argv=("true",), cwd="/", directory=tmp_path)
    with pytest.raises(Refused, match="its sbatch says: Batch job submission failed: Invalid partition name specified"):
        executor.submit(job)


def test_a_machine_without_slurm_is_told_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(CannotAsk, match="squeue is not on this machine; run the supervisor on a login node"):
        Slurm(SlurmSettings(), tmp_path, {"PATH": str(tmp_path)}).find("r-1-ab")
