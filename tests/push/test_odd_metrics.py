"""What the trainer's client makes of what verl may log: floats go, the rest is left out, counted and told once."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from push_receiver import Receiver

from trainer_entry.push import PushClient
from trainer_entry.push.batches import numbers

Connect = Callable[..., PushClient]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (Fraction(1, 2), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(2.0), 2.0),
        (np.array([2.0]), 2.0),
        (np.array([[2]]), 2.0),
        (-math.inf, -math.inf),
    ],
)
def test_a_number_of_any_kind_becomes_a_float(value: Any, number: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = numbers({"m": value})["m"]
    assert type(found) is float
    assert found == number


def test_nan_stays_nan() -> None:
    assert math.isnan(float(numbers({"m": np.float32("nan")})["m"] or 0.0))


@pytest.mark.parametrize(
    "value",
    ["0.5", "NaN", b"1", bytearray(b"1"), None, [1.0], (1.0,), {"a": 1.0}, {1.0}, np.zeros(2), np.array("x"), 10**400],
)
def test_what_is_no_number_is_left_out(value: Any) -> None:
    assert numbers({"m": value, "n": 1.0}) == {"n": 1.0}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_of_one_element_is_a_number_and_of_more_is_none(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    tensors = {
        "half": torch.full(shape, 0.5, dtype=torch.bfloat16),
        "learning": torch.full(shape, 2.0, requires_grad=True),
        "whole": torch.full(shape, 3),
        "vector": torch.zeros(2),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = numbers(tensors)
    assert found == {"half": 0.5, "learning": 2.0, "whole": 3.0}


def test_what_was_left_out_is_counted_and_told_once_with_its_name(connect: Connect) -> None:
    told: list[str] = []
    with Receiver() as receiver:
        client = connect(receiver.url, report=told.append)
        client.step(1, {"loss": 1.0, "note": "warm-up", "shape": [1, 2]})
        client.step(2, {"loss": 1.0, "note": "warm"})
        assert client.flush(10)
        assert [step.metrics for step in receiver.steps()] == [{"loss": 1.0}, {"loss": 1.0}]
    assert client.status().left_out == 3
    assert told == ["metrics that are no numbers are left out; the first is note (str)"]


def test_the_client_imports_neither_numpy_nor_torch() -> None:
    code = "import sys; import trainer_entry.push; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
