"""``verl-sentinel follow`` as a process, an exporter as another, and a file that a third party writes."""

from __future__ import annotations

import gzip
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_process import FileLogger, FollowerProcess, cli, detail, exported, until
from exporter_process import ExporterProcess, running
from test_lines_of_verl import DATA

from exporter.service.history import Archive

RUN = "followed"


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with running(tmp_path_factory.mktemp("exporter")) as exporter:
        yield exporter


@pytest.fixture
def follow(exporter: ExporterProcess, tmp_path: Path) -> Iterator[Callable[..., FollowerProcess]]:
    """Makes a follower of ``tmp_path/run.jsonl`` as a run named as the test's folder, not started."""
    made: list[FollowerProcess] = []

    def make(*options: str, file: Path | None = None, url: str = "", **environment: str) -> FollowerProcess:
        folder = tmp_path / f"follower-{len(made)}"
        folder.mkdir()
        named = ("--run-id", run_of(tmp_path), *options)
        made.append(FollowerProcess(folder, file or tmp_path / "run.jsonl", url or exporter.url, named, environment))
        return made[-1]

    yield make
    for follower in made:
        follower.clean_up()


def run_of(folder: Path) -> str:
    return folder.name


def steps(exporter: ExporterProcess, run: str) -> list[tuple[int, int]]:
    """(attempt, step) of everything that the exporter has, in order."""
    if detail(exporter, run) is None:
        return []
    return [(line["attempt"], line["step"]) for line in exported(exporter, run, all_attempts="true")]


def total(exporter: ExporterProcess, run: str) -> int:
    """Steps that the exporter counts."""
    known = detail(exporter, run)
    return 0 if known is None else int(known["run"]["steps_total"])


def test_a_run_that_nobody_instrumented_is_in_metrics_with_steps_and_signals(
    exporter: ExporterProcess, follow: Callable[..., FollowerProcess], tmp_path: Path
) -> None:
    run, follower = run_of(tmp_path), follow("--project", "p", "--experiment", "e", "--cohort", "c").start()
    follower.says("is not there: waiting for it")
    logger = FileLogger(tmp_path / "run.jsonl")
    for step in range(1, 4):
        logger.log(step, **{"actor/grad_norm": 0.75, "critic/kl": None})
    until(lambda: len(steps(exporter, run)) == 3, lambda: follower.log)
    metrics = exporter.metrics()
    assert metrics[f'verl_training_steps_total{{run="{run}"}}'] == 3
    assert metrics[f'verl_grad_norm{{run="{run}"}}'] == 0.75
    (info,) = [name for name in metrics if name.startswith("verl_run_info{") and f'run="{run}"' in name]
    assert all(label in info for label in ('project="p"', 'experiment="e"', 'attempt="1"', 'cohort="c"'))
    assert (tmp_path / "run.jsonl").read_text() == exporter.get(f"/api/v1/runs/{run}/steps").body.decode()
    until(lambda: "step" in detail(exporter, run)["run"]["open_phases"])
    assert follower.stop() == 0
    assert "Stopped. 3 step lines were pushed." in follower.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_does_not_end_the_run(
    exporter: ExporterProcess, follow: Callable[..., FollowerProcess], tmp_path: Path, number: int
) -> None:
    FileLogger(tmp_path / "run.jsonl").log(1)
    follower = follow().start()
    until(lambda: steps(exporter, run_of(tmp_path)))
    assert follower.stop(number) == 0
    assert detail(exporter, run_of(tmp_path))["run"]["running"]


def test_killed_at_any_moment_while_verl_logs_and_restarts_nothing_is_lost_or_counted_twice(
    exporter: ExporterProcess, follow: Callable[..., FollowerProcess], tmp_path: Path
) -> None:
    run, rng = run_of(tmp_path), random.Random(3)
    follower = follow()
    wanted: list[tuple[int, int]] = []
    done = threading.Event()

    def train() -> None:
        """Steps in bursts and lines in halves; the second attempt truncates the file in place."""
        for attempt, first, last in ((1, 1, 150), (2, 121, 300)):
            if attempt == 2:
                # What nobody read before a truncation nobody can: this is about what was read.
                until(lambda: total(exporter, run) == 150, lambda: follower.log)
            logger = FileLogger(tmp_path / "run.jsonl")
            for step in range(first, last + 1):
                line = logger.line(step)
                cut = rng.randrange(len(line))
                logger.write(line[:cut])
                time.sleep(0.01 if rng.random() < 0.2 else 0.0)
                logger.write(line[cut:])
                wanted.append((attempt, step))
        done.set()

    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    kills = 0
    while kills < 8 or not done.is_set():
        follower.start()
        time.sleep(rng.uniform(0.3, 1.2))
        follower.kill()
        kills += 1
        assert kills < 200
    trainer.join()
    follower.start()
    until(lambda: total(exporter, run) >= len(wanted), lambda: follower.log)
    kept = Archive(exporter.folder / "data").steps(run)
    assert [(part.attempt, part.step) for part in kept] == wanted, "every line is in the journal once, in order"
    assert steps(exporter, run) == wanted
    assert exporter.metrics()[f'verl_training_steps_total{{run="{run}"}}'] == len(wanted)
    state = detail(exporter, run)["run"]
    assert (state["attempt"], state["step"], state["steps_this_attempt"]) == (2, 300, 180)


def test_an_exporter_that_is_away_for_a_while_is_waited_for(
    follow: Callable[..., FollowerProcess], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with running(tmp_path / "other") as other:
        port = other.url.rpartition(":")[2]
        logger = FileLogger(tmp_path / "run.jsonl")
        follower = follow(url=other.url).start()
        logger.log(1)
        until(lambda: steps(other, run_of(tmp_path)) == [(1, 1)])
        other.kill()
        logger.log(2)
        follower.says("takes nothing at the moment, so this program waits")
        logger.log(3)
        other.arguments = (*other.arguments, "--listen", f"127.0.0.1:{port}")
        other.start()
        until(lambda: steps(other, run_of(tmp_path)) == [(1, 1), (1, 2), (1, 3)], lambda: follower.log)
        follower.says("answers again")
        assert follower.stop() == 0


def test_two_followers_of_one_run_do_not_contradict_each_other(
    exporter: ExporterProcess, follow: Callable[..., FollowerProcess], tmp_path: Path
) -> None:
    FileLogger(tmp_path / "run.jsonl").log(1)
    first = follow().start()
    until(lambda: steps(exporter, run_of(tmp_path)))
    second = FollowerProcess(first.folder, first.file, first.url, first.options, starts=7).start()
    assert second.wait() == 1
    assert f"Run {run_of(tmp_path)} is followed by another process already." in second.log


def test_a_console_log_is_followed_through_rays_colours_and_progress_bars(
    exporter: ExporterProcess, follow: Callable[..., FollowerProcess], tmp_path: Path
) -> None:
    run, file = run_of(tmp_path), tmp_path / "train.log"
    with file.open("ab", buffering=0) as log:
        log.write(b"+ python3 -m verl.trainer.main_ppo\nStarted a local Ray instance.\n")
        follower = follow(file=file).start()
        for step in (1, 2):
            log.write(
                b"\x1b[36m(TaskRunner pid=7)\x1b[0m \rTraining Progress:  10%%|#"
                b"\x1b[36m(TaskRunner pid=7)\x1b[0m step:%d - actor/loss:np.float64(0.5) - actor/grad_norm:nan\n" % step
            )
        until(lambda: steps(exporter, run) == [(1, 1), (1, 2)], lambda: follower.log)
        log.write(b"\x1b[36m(TaskRunner pid=8)\x1b[0m step:2 - actor/loss:0.5 - actor/grad_norm:1.0\n")
        until(lambda: steps(exporter, run) == [(1, 1), (1, 2), (2, 2)], lambda: follower.log)
    assert [line["data"]["actor/grad_norm"] for line in exported(exporter, run, attempt="1")] == [None, None]
    assert follower.stop() == 0


def test_once_takes_a_packed_file_and_a_second_time_nothing_anew(exporter: ExporterProcess, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    packed = tmp_path / "run.jsonl.gz"
    with gzip.open(packed, "wb") as file:
        file.writelines(FileLogger.line(step) for step in range(1, 501))
    words = ("follow", str(packed), "--once", "--run-id", run, "--state-dir", str(tmp_path / "state"))
    code, said = cli(exporter, *words)
    assert (code, "500 step lines were pushed." in said) == (0, True)
    assert not detail(exporter, run)["run"]["running"]
    code, said = cli(exporter, *words)
    assert (code, "0 step lines were pushed." in said) == (0, True)
    assert len(steps(exporter, run)) == 500


def test_what_cannot_be_followed_is_said_in_a_sentence(exporter: ExporterProcess, tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    (tmp_path / "broken.gz").write_bytes(b"not packed\n")
    (tmp_path / "file").write_bytes(b"")
    for words, sentence in [
        ((str(tmp_path),), "is not a regular file, so it cannot be followed."),
        ((str(tmp_path / "broken.gz"),), "is packed, so it does not grow: give --once with it."),
        ((str(tmp_path / "broken.gz"), "--once"), "is not a whole gzip file"),
        ((str(tmp_path / "absent"), "--once"), "is not there: nothing was pushed."),
        ((str(tmp_path / "file"), "--state-dir", "/proc/nowhere"), "The state folder /proc/nowhere cannot be written"),
        ((str(tmp_path / "file"), "--url", "nowhere"), "an address that starts with http:// or https:// is expected"),
    ]:
        code, said = cli(exporter, "follow", *state, *words)
        assert code in (1, 2), words
        assert sentence in said


def test_a_token_that_may_not_push_is_told_at_once_and_one_that_may_is_taken_from_a_file(
    follow: Callable[..., FollowerProcess], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "config.yml").write_text("tokens:\n  push: [{value: pushing}]\n  operate: [{value: ope}]\n")
    (tmp_path / "token").write_text("pushing\n")
    FileLogger(tmp_path / "run.jsonl").log(1)
    with running(tmp_path / "other", "--config", str(tmp_path / "config.yml")) as other:
        follower = follow(url=other.url, VERL_SENTINEL_TOKEN="ope").start()
        assert follower.wait() == 1
        assert "does not let this program push: This token is of scope operate" in follower.log
        assert "ope\n" not in follower.log
        allowed = follow(
            "--once", url=other.url, VERL_SENTINEL_TOKEN="", VERL_SENTINEL_TOKEN_FILE=str(tmp_path / "token")
        )
        assert allowed.start().wait() == 0


@pytest.mark.skipif(not DATA.is_dir(), reason=f"real verl logs are not part of the repository and not at {DATA}")
def test_a_real_log_comes_out_as_it_went_in(exporter: ExporterProcess, tmp_path: Path) -> None:
    packed = sorted(DATA.glob("*.jsonl.gz"))[0]
    words = ("follow", str(packed), "--once", "--run-id", run_of(tmp_path), "--state-dir", str(tmp_path / "state"))
    assert cli(exporter, *words)[0] == 0
    with gzip.open(packed) as file:
        wanted = [json.loads(line) for line in file]
    assert exported(exporter, run_of(tmp_path)) == wanted
    incidents = detail(exporter, run_of(tmp_path))["incidents"]
    assert [it for it in incidents if it["severity"] == "critical"] == [], "nobody knows of a crash in this run"
