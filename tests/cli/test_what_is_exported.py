"""The steps of a run as files: parts put together, what was taken back left out, and numbers as verl spells them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from exporter.service.admission import Refused
from exporter.service.export import CHUNK_BYTES, MOST_COLUMNS, OPEN_STEPS, Export


@dataclass(frozen=True)
class Part:
    step: int
    attempt: int = 1
    sender: str = "a"
    metrics: Mapping[str, float] = ()  # type: ignore[assignment]


def part(step: int, attempt: int = 1, sender: str = "", **metrics: float) -> Part:
    given = {key.replace("__", "/"): value for key, value in metrics.items()} or {"loss": step + attempt / 10}
    return Part(step, attempt, sender or f"trainer-{attempt}", given)


def lines(*parts: Part, **options: Any) -> list[dict[str, Any]]:
    body = b"".join(Export(lambda: iter(parts), **options).chunks("jsonl"))
    return [json.loads(line) for line in body.splitlines()]


def steps(*parts: Part, **options: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(line["step"], line["data"]) for line in lines(*parts, **options)]


def test_jsonl_is_byte_for_byte_what_verl_writes() -> None:
    orjson = pytest.importorskip("orjson", reason="what verl writes with, and it comes with verl")
    metrics = {
        "actor/loss": 0.1,
        "perf/throughput": 812.5,
        "critic/kl": math.nan,
        "x/inf": math.inf,
        "timing_s/step": 2.0,
    }
    verl = orjson.dumps({"step": 7, "data": metrics}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
    assert b"".join(Export(lambda: iter([Part(7, 1, "a", metrics)])).chunks("jsonl")) == verl


def test_parts_of_a_step_become_one_line() -> None:
    assert steps(part(1, train__loss=0.5), part(2, train__loss=0.4), part(2, val__loss=0.9)) == [
        (1, {"train/loss": 0.5}),
        (2, {"train/loss": 0.4, "val/loss": 0.9}),
    ]


def test_of_a_part_that_came_late_the_step_is_still_one_line_in_its_place() -> None:
    assert steps(part(1, a=1.0), part(2, a=2.0), part(3, a=3.0), part(1, b=1.5)) == [
        (1, {"a": 1.0, "b": 1.5}),
        (2, {"a": 2.0}),
        (3, {"a": 3.0}),
    ]


ROLLED_BACK = [*(part(step) for step in range(1, 6)), *(part(step, 2) for step in range(4, 7))]


def test_steps_that_a_later_attempt_trained_again_are_left_out() -> None:
    assert [(step, data["loss"]) for step, data in steps(*ROLLED_BACK)] == [
        (1, 1.1), (2, 2.1), (3, 3.1), (4, 4.2), (5, 5.2), (6, 6.2),
    ]  # fmt: skip


def test_what_the_newest_attempt_has_not_reached_again_is_taken_back_too() -> None:
    parts = [*(part(step) for step in range(1, 100)), part(40, 2), part(30, 3), part(31, 3)]
    found = steps(*parts)
    assert [step for step, _ in found] == list(range(1, 32))
    assert found[-1][1] == {"loss": 31.3}


def test_a_restart_by_hand_within_an_attempt_counts_as_one() -> None:
    parts = [part(1), part(2), part(3), part(2, sender="by-hand", loss=9.0), part(3, sender="by-hand", loss=9.5)]
    assert steps(*parts) == [(1, {"loss": 1.1}), (2, {"loss": 9.0}), (3, {"loss": 9.5})]


def test_a_validation_on_the_step_it_was_resumed_from_joins_that_steps_line() -> None:
    parts = [part(1), part(2), part(3), part(2, 2, **{"val_core": 0.5}), part(3, 2)]
    assert steps(*parts) == [(1, {"loss": 1.1}), (2, {"loss": 2.1, "val_core": 0.5}), (3, {"loss": 3.2})]


def test_a_straggler_of_an_old_attempt_does_not_come_back() -> None:
    parts = [part(1), part(2), part(2, 2), part(3, 2), part(3, 1, loss=77.0)]
    assert steps(*parts) == [(1, {"loss": 1.1}), (2, {"loss": 2.2}), (3, {"loss": 3.2})]


def test_all_attempts_have_everything_and_say_of_which_attempt() -> None:
    found = [(line["step"], line["attempt"]) for line in lines(*ROLLED_BACK, all_attempts=True)]
    assert found == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (4, 2), (5, 2), (6, 2)]


def test_one_attempt_has_all_that_it_logged() -> None:
    assert [step for step, _ in steps(*ROLLED_BACK, attempt=1)] == [1, 2, 3, 4, 5]
    assert [step for step, _ in steps(*ROLLED_BACK, attempt=2)] == [4, 5, 6]
    assert steps(*ROLLED_BACK, attempt=3) == []


def test_csv_has_the_union_of_columns_in_order_and_tells_absent_from_nan() -> None:
    parts = [part(1, b=0.1, **{'a,"x': 1.0}), part(2, b=math.nan, c=-math.inf), part(3, c=1e-9)]
    body = b"".join(Export(lambda: iter(parts)).chunks("csv")).decode()
    assert list(csv.reader(io.StringIO(body))) == [
        ["step", 'a,"x', "b", "c"],
        ["1", "1.0", "0.1", ""],
        ["2", "", "NaN", "-Infinity"],
        ["3", "", "", "1e-09"],
    ]


def test_csv_leaves_out_columns_of_steps_that_were_taken_back() -> None:
    parts = [part(1), part(2, old=1.0), part(2, 2, new=1.0)]
    body = b"".join(Export(lambda: iter(parts)).chunks("csv")).decode()
    assert body.splitlines()[0] == "step,loss,new"


def test_csv_with_all_attempts_has_a_column_for_it() -> None:
    body = b"".join(Export(lambda: iter(ROLLED_BACK), all_attempts=True).chunks("csv")).decode()
    assert body.splitlines()[:2] == ["step,attempt,loss", "1,1,1.1"]


def test_a_csv_with_more_columns_than_any_program_reads_is_refused() -> None:
    parts = [Part(1, 1, "a", {f"m{index}": 1.0 for index in range(MOST_COLUMNS + 1)})]
    with pytest.raises(Refused, match="format=jsonl"):
        next(Export(lambda: iter(parts)).chunks("csv"))


def test_what_arrives_between_two_readings_is_left_for_the_next_export() -> None:
    growing = [part(1), part(2)]

    def reading() -> Iterator[Part]:
        yield from list(growing)
        growing.append(part(1, 2))

    assert [json.loads(line)["step"] for line in b"".join(Export(reading).chunks("jsonl")).splitlines()] == [1, 2]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_no_more_of_a_run_is_held_than_the_steps_that_wait_for_parts_and_one_chunk(form: Any) -> None:
    read = written = 0

    def reading() -> Iterator[Part]:
        nonlocal read
        for read in range(1, 20_001):
            yield Part(read, 1, "a", {f"metric/{index}": read + index / 7 for index in range(10)})

    for chunk in Export(reading).chunks(form):
        written += chunk.count(b"\n")
        assert len(chunk) < CHUNK_BYTES + 10_000
        assert read - written <= OPEN_STEPS + 1
    assert written == 20_000 + (form == "csv")


def test_a_name_that_a_spreadsheet_would_calculate_is_text_in_a_csv_and_numbers_stay_numbers() -> None:
    names = ["=1+1", "+a", "-a", "@a", "\ta", "a=b"]
    body = b"".join(Export(lambda: iter([Part(1, metrics=dict.fromkeys(names, -1.5))])).chunks("csv")).decode()
    heading, row = csv.reader(io.StringIO(body))
    assert heading == ["step", *(name if name == "a=b" else f"'{name}" for name in sorted(names))]
    assert row == ["1", *["-1.5"] * 6]
