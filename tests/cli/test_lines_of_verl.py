"""Steps in what verl writes: every form that its two loggers give a line, and every way in which one may be broken."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.follow.lives import Cursor, after
from exporter.follow.parsing import Garbage, LastStep, Logged, kind_of, parse_console, parse_jsonl

DATA = Path(os.environ.get("VERL_SENTINEL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "verl-runs"


def console(line: str) -> list[Logged]:
    found = list(parse_console(line.encode()))
    assert all(isinstance(one, Logged) for one in found), found
    return [one for one in found if isinstance(one, Logged)]


def test_a_plain_line_of_the_console() -> None:
    assert console("step:7 - actor/loss:-0.125 - training/global_step:7 - val-core/openai/gsm8k/reward/mean@1:0.5") == [
        Logged(7, {"actor/loss": -0.125, "training/global_step": 7.0, "val-core/openai/gsm8k/reward/mean@1": 0.5})
    ]


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("0.5", 0.5),
        ("1e-06", 1e-6),
        ("7", 7.0),
        ("-inf", -math.inf),
        ("np.float64(0.1)", 0.1),
        ("np.float32(-2.5e-05)", -2.5e-5),
        ("np.int64(12)", 12.0),
        ("np.float64(inf)", math.inf),
        ("numpy.float64(0.1)", 0.1),
        ("True", 1.0),
        ("np.True_", 1.0),
        ("np.False_", 0.0),
    ],
)
def test_every_way_in_which_python_prints_a_number(printed: str, value: float) -> None:
    assert console(f"step:1 - a/b:{printed} - c:1.0") == [Logged(1, {"a/b": value, "c": 1.0})]


@pytest.mark.parametrize("printed", ["nan", "np.float64(nan)", "np.float32(nan)"])
def test_nan_stays_nan(printed: str) -> None:
    (found,) = console(f"step:1 - actor/loss:{printed}")
    assert math.isnan(found.metrics["actor/loss"])


@pytest.mark.parametrize(
    "before",
    [
        "(TaskRunner pid=123) ",
        "\x1b[36m(TaskRunner pid=123)\x1b[0m ",
        "\x1b[36m(TaskRunner pid=123, ip=10.0.0.7)\x1b[0m ",
        "\x1b[36m(TaskRunnerV1 pid=123)\x1b[0m \rTraining Progress:   2%|▏         | 2/100 [00:18<12:43,  7.79s/it]",
        "[2026-11-30 02:33:09] [Rank 0] ",
        "2026-11-30T02:33:09.123Z stdout F ",
    ],
)
def test_what_stands_before_a_step_does_not_matter(before: str) -> None:
    (found,) = console(f"{before}step:3 - a:1.5")
    assert (found.step, found.metrics) == (3, {"a": 1.5})


def test_the_process_that_logged_is_told_apart_by_rays_prefix() -> None:
    one, other = (console(f"\x1b[36m({who})\x1b[0m step:1 - a:1")[0] for who in ("T pid=1", "T pid=2, ip=10.0.0.7"))
    assert (one.writer, other.writer) == ("T pid=1", "T pid=2, ip=10.0.0.7")


def test_two_steps_in_one_line_are_two() -> None:
    assert console("step:1 - a:1.0 - b:2.0(T pid=9) step:2 - a:3.0") == [
        Logged(1, {"a": 1.0}, left_out=1),
        Logged(2, {"a": 3.0}, writer="T pid=9"),
    ]


def test_of_a_line_with_another_process_in_it_the_rest_is_kept() -> None:
    (found,) = console("step:1 - a:1.0 - b/c:0.(WorkerDict pid=4) INFO: hello - d:4.0 - e:5.0 - cut/of")
    assert (found.metrics, found.left_out) == ({"a": 1.0, "d": 4.0, "e": 5.0}, 2)


@pytest.mark.parametrize(
    "line",
    [
        "training/global_step:5 - training/epoch:1",
        "timing_s/step:5 - x:1",
        "global_step:5 - x:1",
        "Training Progress:  10%|█ | 10/100 [00:34<03:22,  2.25s/it]",
        "('Initial validation metrics: {val: 0.5}')",
        "substep:5 - x:1",
        "",
    ],
)
def test_what_only_looks_like_a_step_is_none(line: str) -> None:
    assert list(parse_console(line.encode())) == []


def test_a_step_without_one_metric_is_garbage() -> None:
    assert list(parse_console(b"step:5 - then something else")) == [Garbage("step 5 without a metric")]


def test_verl_tells_how_many_steps_there_will_be() -> None:
    assert list(parse_console(b"(TaskRunner pid=5) INFO:2026:Total training steps: 870")) == [LastStep(870)]


def test_null_in_the_file_log_is_nan_and_what_is_no_number_is_left_out() -> None:
    line = b'{"step":2,"data":{"a":null,"b":1,"c":true,"d":"x","e":[1],"f":{"g":1},"h":1e999,"":3}}'
    (found,) = parse_jsonl(line)
    assert isinstance(found, Logged)
    assert math.isnan(found.metrics.pop("a"))
    assert found.metrics == {"b": 1.0, "c": 1.0, "h": math.inf}
    assert found.left_out == 4


def test_nan_as_python_spells_it_is_read_too() -> None:
    (found,) = parse_jsonl(b'{"step": 2, "data": {"a": NaN, "b": -Infinity}}')
    assert isinstance(found, Logged)
    assert math.isnan(found.metrics["a"])
    assert found.metrics["b"] == -math.inf


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 2, "data": {"a": 1',
        b'{"step": "2", "data": {}}',
        b'{"step": -1, "data": {}}',
        b'{"step": 1.5, "data": {}}',
        b'{"step": 9007199254740992, "data": {}}',
        b'{"data": {}}',
        b"[" * 100_000,
        b'{"step": 1, "data": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b"\xff\xfe",
        b"plain words",
    ],
)
def test_a_broken_line_of_the_file_log_is_garbage_with_a_reason(line: bytes) -> None:
    (found,) = parse_jsonl(line)
    assert isinstance(found, Garbage | Logged)
    if isinstance(found, Logged):
        assert found.metrics == {}
    else:
        assert found.reason


def test_a_long_name_is_cut_to_what_an_exporter_takes() -> None:
    (found,) = parse_jsonl(b'{"step":1,"data":{"' + b"x" * 1000 + b'":1}}')
    assert isinstance(found, Logged)
    assert [len(name) for name in found.metrics] == [256]


@given(st.binary(max_size=300))
def test_no_line_whatever_makes_a_parser_fail(line: bytes) -> None:
    list(parse_jsonl(line))
    list(parse_console(b"step:1 - " + line))
    kind_of(line)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z@0-9]{1,8}){0,2}", fullmatch=True), st.floats(), min_size=1))
def test_what_the_console_logger_writes_is_read_back(metrics: dict[str, float]) -> None:
    line = " - ".join(["step:12", *(f"{key}:{value!r}" for key, value in metrics.items())])
    (found,) = console(line)
    assert found.step == 12
    assert found.left_out == 0
    assert str(found.metrics) == str(metrics)


def test_the_kind_of_a_file_is_told_by_its_lines() -> None:
    assert kind_of(b'{"step": 1, "data": {"a": 1}}') is parse_jsonl
    assert kind_of(b"(T pid=1) step:1 - a:1") is parse_console
    assert kind_of(b"Started a local Ray instance.") is None
    assert kind_of(b'{"trainer": {"nnodes": 1}}') is None


def test_a_console_log_that_each_start_appends_to_holds_several_attempts() -> None:
    cursor = Cursor()
    seen = []
    for writer, step in [("T pid=1", 1), ("T pid=1", 2), ("T pid=2", 3), ("", 4), ("", 2), ("", 3)]:
        cursor = after(cursor, Logged(step, {}, writer), f"{writer}{step}".encode(), appended=True)
        seen.append((cursor.attempt, cursor.index))
    assert seen == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


def test_a_step_back_by_the_same_process_is_no_new_attempt() -> None:
    one = after(Cursor(), Logged(5, {}, "T pid=1"), b"a", appended=True)
    assert after(one, Logged(4, {}, "T pid=1"), b"b", appended=True).attempt == 1


@pytest.mark.skipif(not DATA.is_dir(), reason=f"real verl logs are not part of the repository and not at {DATA}")
def test_every_line_of_real_logs_is_read_whole() -> None:
    total = 0
    for path in sorted(DATA.glob("*.jsonl.gz"))[:4]:
        with gzip.open(path) as file:
            for line in file:
                (found,) = parse_jsonl(line)
                assert isinstance(found, Logged)
                assert found.left_out == 0
                total += 1
    assert total > 5000
