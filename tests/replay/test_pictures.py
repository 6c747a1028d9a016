"""``--plot``: a picture of each run, whatever is in it, and a sentence where there can be none."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path

import past_files as files
import pytest
from in_this_process import answered
from replay_process import Replaying

from exporter.detectors.base import Forecast, Severity, Verdict
from exporter.replay.charts import MOST_PLACES, Chart
from exporter.replay.past_run import Said

pytest.importorskip("matplotlib")

from exporter.replay.panels import MAIN, line_of, rows_of, scale_of, signals_of
from exporter.replay.picture import draw


def size_of(png: Path) -> tuple[int, int]:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", content[16:24])


def verdict(
    step: int, severity: Severity, onset: int, signal: str = "loss", forecast: Forecast | None = None
) -> Verdict:
    return Verdict("a_detector", signal, severity, step, onset, 3.0, 1.0, 0.5, "it rose", forecast=forecast)


def charted(rows: list[tuple[int, int, dict[str, float]]], *verdicts: Verdict) -> Chart:
    """``rows``: start, step and signals."""
    chart = Chart(Path("a run.jsonl"), "")
    for attempt, step, signals in rows:
        said = tuple(v for v in verdicts if v.step == step)
        chart.take(Said(attempt, step, float(step), True, said, said), signals)
    return chart


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_the_suffix_says_what_is_written(suffix: str, tmp_path: Path) -> None:
    run = files.written(tmp_path / "run.jsonl", files.jsonl(files.growing_gradient()))
    target = tmp_path / f"out{suffix}"
    answer = answered(run, "--plot", target)
    assert answer.code == 0
    assert f"Drawn: {target}" in answer.err
    begin = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
    assert target.read_bytes().startswith(begin)
    assert {path.name for path in tmp_path.iterdir()} == {"run.jsonl", target.name}


def test_verdicts_are_the_same_with_and_without_a_picture(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run.jsonl", files.jsonl(files.growing_gradient()))
    assert answered(run, "--plot", tmp_path / "out.png").out == answered(run).out


def test_a_picture_is_as_wide_for_a_hundred_steps_as_for_ten_thousand(tmp_path: Path) -> None:
    sizes = []
    for last in (100, 10_000):
        chart = charted(
            [(1, step, {"loss": 1.0 / step, "reward": files.wave(step, 1.0)}) for step in range(1, last + 1)]
        )
        assert len(chart.steps) <= MOST_PLACES
        draw(chart, tmp_path / "out.png", "png")
        sizes.append(size_of(tmp_path / "out.png"))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] >= 1200


def test_nothing_that_is_extreme_is_lost_where_many_steps_share_a_place() -> None:
    rows = [(1, step, {"loss": 9.0 if step == 7777 else 1.0}) for step in range(1, 20_001)]
    line = line_of(charted(rows), "loss")
    assert (line.high.max(), line.low.min()) == (9.0, 1.0)
    assert len(line.steps) <= MOST_PLACES
    around = line.steps[line.high.argmax()]
    assert 7777 - 20 <= around <= 7777


ODD = {
    "one step": [(1, 5, {"loss": 1.0})],
    "a constant": [(1, step, {"loss": 0.0}) for step in range(50)],
    "only NaN": [(1, step, {"loss": math.nan, "reward": 1.0}) for step in range(50)],
    "nothing but NaN": [(1, step, {"loss": math.nan}) for step in range(50)],
    "huge and tiny": [(1, step, {"loss": (-1.0) ** step * 10.0 ** (step - 30), "kl": 1e-300}) for step in range(60)],
    "beyond all bounds": [(1, step, {"loss": 1.7e308 * (-1) ** step, "kl": 5e-324}) for step in range(60)],
    "many starts": [(start, step, {"loss": 1.0}) for start in range(1, 300) for step in (1, 2)],
    "a start that was left": [
        (1 + step // 50, step % 50 + 10 * (step // 50), {"loss": 1.0 / (step + 1)}) for step in range(90)
    ],
    "huge steps": [(1, 2**53 - 9 + step, {"loss": 1.0}) for step in range(8)],
    "strange names": [(1, step, {"$x_{": 1.0, "\x1b[2J\n": 2.0, "语": 3.0}) for step in range(9)],
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD)
def test_any_run_can_be_drawn(rows: list[tuple[int, int, dict[str, float]]], tmp_path: Path) -> None:
    chart = charted(rows)
    for form in ("png", "svg"):
        draw(chart, tmp_path / "out", form)
        assert (tmp_path / "out").stat().st_size > 1000


FORECASTS = [
    Forecast(5.0, steps=30.0, seconds=900.0, interval=(20.0, 50.0)),
    Forecast(5.0, steps=30.0, interval=(20.0, math.inf)),
    Forecast(math.inf, steps=math.inf),
    Forecast(math.nan),
    Forecast(1e300, steps=1e300, interval=(0.0, 1e300)),
]


@pytest.mark.parametrize("forecast", FORECASTS)
@pytest.mark.parametrize("signal", ["loss", "not logged", ""])
def test_any_finding_can_be_drawn(forecast: Forecast, signal: str, tmp_path: Path) -> None:
    found = [
        verdict(90, Severity.INFO, 90, signal),
        verdict(92, Severity.WARNING, -4, signal, forecast),
        verdict(95, Severity.CRITICAL, 80, signal, forecast),
        verdict(100, Severity.CRITICAL, 10**9, signal, forecast),
    ]
    draw(charted([(1, step, {"loss": float(step)}) for step in range(101)], *found), tmp_path / "out", "png")
    assert size_of(tmp_path / "out")[0] >= 1200


def test_signals_with_findings_come_first_and_the_worst_before_the_others() -> None:
    signals = {name: 1.0 for name in (*MAIN, "values_time", "adv_time", "ref_time")}
    found = [
        verdict(10, Severity.WARNING, 9, "adv_time"),
        verdict(20, Severity.CRITICAL, 18, "ref_time"),
        verdict(5, Severity.INFO, 5, "values_time"),
    ]
    chart = charted([(1, step, signals) for step in range(30)], *found)
    assert signals_of(chart)[:3] == ["ref_time", "adv_time", "reward"]
    assert [signal for (_, signal), _ in rows_of(chart)] == ["ref_time", "adv_time", "values_time"]


def test_one_episode_is_told_from_its_onset_over_what_was_first_said_to_what_was_said_last() -> None:
    found = [verdict(step, Severity.WARNING if step < 23 else Severity.CRITICAL, 18) for step in range(20, 26)]
    (episode,) = charted([(1, step, {"loss": 1.0}) for step in range(40)], *found).episodes
    assert (episode.onset, episode.said, episode.worst_said, episode.last) == (18, 20, 23, 25)
    assert episode.severity is Severity.CRITICAL


def test_what_a_later_start_went_over_again_is_told_from_what_counts() -> None:
    rows = [(1, step, {"loss": 1.0}) for step in range(1, 61)] + [(2, step, {"loss": 2.0}) for step in range(41, 91)]
    line = line_of(charted(rows), "loss")
    assert set(line.steps[line.old]) == set(range(41, 61))
    assert set(line.mean[line.old]) == {1.0}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0 + 0.1 * (i % 3) for i in range(99)], "linear"),
        ([1.0] * 90 + [1e6], "log"),
        ([0.1, -0.1] * 50 + [1e6], "symlog"),
    ],
)
def test_a_scale_shows_the_usual_beside_the_extreme(values: list[float], kind: str) -> None:
    line = line_of(charted([(1, step, {"loss": value}) for step, value in enumerate(values)]), "loss")
    scale = scale_of(line, [])
    assert scale.kind == kind
    assert scale.bottom < min(values) < max(values) < scale.top


def test_what_was_expected_is_shown_of_a_signal_that_has_such_a_detector(tmp_path: Path) -> None:
    from exporter.detectors.registry import build_detectors
    from exporter.incidents import Rules
    from exporter.replay.past_run import PastRun
    from exporter.replay.rows import Row

    run, chart = PastRun(build_detectors, Rules()), Chart(Path("a"), "")
    for step, metrics in files.healthy(1, 60):
        expected = run.expected()
        said = run.take(Row(step, metrics))
        chart.take(said, run.signals(), expected)
    line = line_of(chart, "grad_norm")
    assert line.lower is not None
    assert line.upper is not None
    assert line.lower[50] < line.mean[50] < line.upper[50]


def test_each_run_has_a_picture_with_its_name(tmp_path: Path) -> None:
    sheet = files.wandb_chart({"good/one": files.healthy(), "bad": files.growing_gradient()})
    two = files.written(tmp_path / "two.csv.gz", sheet)
    one = files.written(tmp_path / "one.jsonl", files.jsonl(files.healthy()))
    (tmp_path / "pictures").mkdir()
    answer = answered(two, one, one, "--plot", tmp_path / "pictures" / "out.png")
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"out-two-good_one.png", "out-two-bad.png", "out-one.png", "out-one-2.png"}
    assert all(f"Drawn: {tmp_path / 'pictures' / name}" in answer.err for name in names)


def test_what_cannot_be_written_is_refused_before_a_step_is_read(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run.jsonl", files.jsonl(files.growing_gradient()))
    for target, why in (
        (tmp_path / "out.jpg", "written as .png, .svg or .pdf"),
        (tmp_path / "out", "has no suffix"),
        (tmp_path / "none" / "out.png", "there is no folder"),
        (run / "out.png", "there is no folder"),
        (Path("/proc/out.png"), "cannot be written"),
    ):
        answer = answered(run, "--plot", target)
        assert (answer.code, answer.out) == (2, "")
        assert why in answer.err
    (tmp_path / "folder.png").mkdir()
    assert "is a folder" in answered(run, "--plot", tmp_path / "folder.png").err


def test_a_picture_that_is_there_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    target = files.written(tmp_path / "out.png", b"what was there")
    assert answered(tmp_path / "none.jsonl", "--plot", target).code == 2
    assert target.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [target]


def test_where_matplotlib_is_missing_the_extra_is_named(tmp_path: Path) -> None:
    run = files.written(tmp_path / "run.jsonl", files.jsonl(files.healthy()))
    hidden = (
        "import sys, importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'matplotlib' else found(name, *a)\n"
        "from exporter.__main__ import verl_sentinel\n"
        "verl_sentinel()\n"
    )
    command = [sys.executable, "-c", hidden, "replay", str(run), "--plot", str(tmp_path / "out.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pip install 'verl-sentinel[plot]'" in done.stderr
    assert done.stdout == ""


def test_a_picture_needs_no_display_and_no_home(
    tmp_path: Path, replay: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("MPLBACKEND", "tkagg")
    monkeypatch.setenv("HOME", "/nonexistent")
    run = files.written(tmp_path / "run.jsonl", files.jsonl(files.growing_gradient()))
    answer = replay(run, "--plot", tmp_path / "out.png")
    assert answer.code == 0
    assert size_of(tmp_path / "out.png")
