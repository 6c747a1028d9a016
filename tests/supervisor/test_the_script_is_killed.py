"""A rollback script that somebody kills, the kernel short of memory say, is run once more: half a rollback is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised_run import REPOSITORY, Scene, alive, until

from trainer_entry.supervisor.script import ScriptEnded

SHIPPED = REPOSITORY / "rules" / "rollback" / "checkpoint.sh"


ITSELF = "kill -KILL $$"
WHAT_IT_RUNS = "bash -c 'kill -KILL $$' || exit $?"


def script_that_dies(folder: Path, times: int, before: str = "", dies: str = ITSELF) -> Path:
    """A folder with a ``checkpoint.sh`` that is killed in its first runs, after ``before``."""
    scripts = folder / "scripts"
    scripts.mkdir()
    runs = folder / "runs"
    (scripts / "checkpoint.sh").write_text(
        f'echo run >> "{runs}"\n'
        f'if (( $(wc -l < "{runs}") <= {times} )); then\n{before}\n{dies}\nfi\n'
        f'exec bash "{SHIPPED}" "$@"\n'
    )
    return scripts


def hanging(scene: Scene) -> list[str]:
    return scene.trainer(hang_at=16, only_first=1)


@pytest.mark.parametrize("dies", [ITSELF, WHAT_IT_RUNS])
def test_it_is_run_once_more_and_the_rollback_is_whole(watched: Scene, dies: str) -> None:
    # Its first run has stopped the trainer when it is killed.
    stop = '"$VERL_SENTINEL_PYTHON" -m trainer_entry.cli stop --for-rollback "$1" "$2" "$3" "$4"'
    scripts = script_that_dies(watched.folder, 1, stop, dies)
    watched.run(hanging(watched), "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang", not_after_step=12)
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert (last.state, last.target_step) == ("succeeded", 10), last.detail
    assert watched.started(2)["from"] == 10
    assert watched.attempts() == 2
    assert (watched.folder / "runs").read_text().count("run") == 2


def test_what_a_killed_program_had_begun_is_ended_before_the_next_run(watched: Scene) -> None:
    """Such as the pip of a build: it would write into the environment that the next run builds."""
    left = watched.folder / "left"
    begun = f'sleep 600 </dev/null >/dev/null 2>&1 &\necho $! > "{left}"'
    scripts = script_that_dies(watched.folder, 1, begun, WHAT_IT_RUNS)
    watched.run(hanging(watched), "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang", not_after_step=12)
    assert watched.exporter is not None
    assert watched.exporter.final("c1").state == "succeeded"
    until(lambda: not alive(int(left.read_text())), "what was left to be gone")


def test_a_script_that_is_killed_again_has_failed(watched: Scene) -> None:
    scripts = script_that_dies(watched.folder, 5)
    watched.run(hanging(watched), "--rollback-scripts", str(scripts))
    watched.output_has(1, "hanging")
    watched.command("c1", reason="hang")
    assert watched.exporter is not None
    last = watched.exporter.final("c1")
    assert last.state == "failed"
    assert "-9" in last.detail
    assert (watched.folder / "runs").read_text().count("run") == 2


@pytest.mark.parametrize(
    ("code", "signal"), [(-9, 9), (137, 9), (143, 15), (0, 0), (4, 0), (75, 0), (128, 0), (255, 0)]
)
def test_a_code_of_the_script_tells_a_signal_from_an_end_of_its_own(code: int, signal: int) -> None:
    assert ScriptEnded("c1", code, ()).signal == signal
    assert ScriptEnded("c1", code, (), cut_short=True).signal == 0
