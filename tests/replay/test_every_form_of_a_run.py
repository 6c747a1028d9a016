"""One run, in every form that is read, leads to the same verdicts; and the form is seen in what the file holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import past_files as files
import pytest
from replay_process import Replaying

from exporter.replay.recognised import format_of

FORMS: dict[str, tuple[str, Callable[[files.Steps], bytes]]] = {
    "file log": ("jsonl", files.jsonl),
    "console log": ("console", files.console),
    "W&B chart": ("csv", lambda steps: files.wandb_chart({"a - run": steps})),
    "W&B history": ("csv", files.wandb_history),
    "event file": ("tensorboard", files.event_file),
    "event file with tensors": ("tensorboard", lambda steps: files.event_file(steps, "tensor")),
    "trainer state": ("trainer-state", files.trainer_state),
}


def said(verdicts: list[dict[str, object]]) -> list[tuple[object, ...]]:
    names = ("step", "detector", "signal", "severity", "onset", "score", "threshold", "summary")
    return [tuple(verdict[name] for name in names) for verdict in verdicts]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_known_by_the_content(form: str, packed: bool, tmp_path: Path) -> None:
    name, write = FORMS[form]
    path = files.written(tmp_path / ("a.gz" if packed else "a.txt"), write(files.healthy()))
    assert format_of(path) == name


@pytest.mark.parametrize("form", FORMS)
def test_the_same_run_in_any_form_leads_to_the_same_verdicts(form: str, tmp_path: Path, replay: Replaying) -> None:
    steps = files.growing_gradient()
    plain = replay(files.written(tmp_path / "plain", files.jsonl(steps)))
    other = replay(files.written(tmp_path / "other", FORMS[form][1](steps)))
    assert plain.code == other.code == 0
    assert plain.pages
    assert said(other.verdicts) == said(plain.verdicts)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_paged_of_a_healthy_run(form: str, tmp_path: Path, replay: Replaying) -> None:
    answer = replay(files.written(tmp_path / "run", FORMS[form][1](files.healthy())), "--fail-on", "critical")
    assert (answer.code, answer.pages) == (0, [])
    assert "60 steps (1 to 60)" in answer.err


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_is_named_is_taken(form: str, tmp_path: Path, replay: Replaying) -> None:
    name, write = FORMS[form]
    path = files.written(tmp_path / "run", write(files.growing_gradient()))
    assert replay(path, "--format", name).pages


def test_a_packed_file_is_read_whatever_its_name(tmp_path: Path, replay: Replaying) -> None:
    packed = files.written(tmp_path / "run.gz", files.jsonl(files.growing_gradient()))
    assert replay(packed.rename(tmp_path / "run.jsonl")).pages


def test_the_columns_of_several_runs_are_several_runs(tmp_path: Path, replay: Replaying) -> None:
    sheet = files.wandb_chart({"good": files.healthy(), "bad": files.growing_gradient()})
    answer = replay(files.written(tmp_path / "two.csv", sheet))
    assert {verdict["run"] for verdict in answer.pages} == {"bad"}
    assert "120 steps of 2 runs" in answer.err
    table = replay(tmp_path / "two.csv", output="table").out
    assert table.splitlines()[0].split()[:2] == ["RUN", "STEP"]


def test_an_empty_cell_is_a_metric_that_the_step_does_not_have(tmp_path: Path, replay: Replaying) -> None:
    text = "Step,r - train/loss,r - val/loss\n" + "".join(
        f"{step},{2.0 + files.wave(step, 0.1)},{'' if step % 10 else 'Infinity'}\n" for step in range(1, 31)
    )
    answer = replay(files.written(tmp_path / "a.csv", text.encode()))
    assert {(v["signal"], v["step"] % 10) for v in answer.verdicts} <= {("val_loss", 0)}


def test_an_evaluation_joins_the_step_that_it_was_done_on(tmp_path: Path, replay: Replaying) -> None:
    steps = files.healthy()
    steps.insert(31, (31, {"val/loss": 2.0, "eval_runtime": 3.0}))
    answer = replay(files.written(tmp_path / "trainer_state.json", files.trainer_state(steps)))
    assert "60 steps (1 to 60) read as trainer-state" in answer.err
    assert "eval_runtime" in answer.err


def test_a_folder_of_event_files_is_one_run_that_was_started_again(tmp_path: Path, replay: Replaying) -> None:
    folder = tmp_path / "tensorboard"
    files.written(folder / "events.out.tfevents.1700000000.host.1.0", files.event_file(files.healthy(1, 40)))
    late = [(step, metrics) for step, metrics in files.growing_gradient() if step > 30]
    files.written(folder / "events.out.tfevents.1700000900.host.2.0", files.event_file(late))
    answer = replay(folder)
    assert "70 steps (1 to 60), 1 restart" in answer.err
    assert {verdict["attempt"] for verdict in answer.pages} == {2}


def test_what_tensorboard_itself_writes_is_read(tmp_path: Path, replay: Replaying) -> None:
    torch = pytest.importorskip("torch")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path / "run"))
    for step, metrics in files.growing_gradient():
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)
        writer.add_histogram("weights", torch.tensor([0.1, 0.2, float(step)]), step)
    writer.close()
    plain = replay(files.written(tmp_path / "plain", files.jsonl(files.growing_gradient())))
    answer = replay(tmp_path / "run")
    assert said(answer.verdicts) == said(plain.verdicts)
    assert "Left out" not in answer.err


def test_a_null_is_nan_and_a_missing_key_is_missing(tmp_path: Path, replay: Replaying) -> None:
    steps = files.healthy(1, 30)
    gone = [(step, {k: v for k, v in metrics.items() if k != "train/loss"}) for step, metrics in steps]
    lost = [(step, metrics | {"train/loss": math.nan if step > 25 else 2.0}) for step, metrics in steps]
    assert replay(files.written(tmp_path / "gone", files.jsonl(gone))).pages == []
    pages = replay(files.written(tmp_path / "lost", files.jsonl(lost))).pages
    assert {(page["detector"], page["signal"]) for page in pages} == {("non_finite", "loss")}
    assert pages[0]["onset"] in (25, 26)
