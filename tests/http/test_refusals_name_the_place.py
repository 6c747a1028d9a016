"""A refusal of a push names what it refuses, however many there are beside it, and says what would be taken."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from exporter.app.offence import MOST_BYTES
from exporter.app.push import decode
from exporter.protocol import JSON, MSGPACK
from exporter.service.admission import Limits, Refused, check

MANY = {f"actor/metric_{number}": 0.5 for number in range(1999)}


def body(**fields: Any) -> dict[str, Any]:
    return {"protocol": 1, "run": {"run_id": "r"}, "sender": {"id": "s"}, "seq": 1, **fields}


def of_metrics(metrics: dict[Any, Any]) -> dict[str, Any]:
    return body(steps=[{"step": 1, "metrics": {}}, {"step": 2, "metrics": metrics}])


def refusal(sent: Any, kind: str) -> Refused:
    if not isinstance(sent, bytes):
        sent = json.dumps(sent).encode() if kind == JSON else msgspec.msgpack.encode(sent)
    with pytest.raises(Refused) as refused:
        check(decode(sent, kind), Limits())
    assert refused.value.status == 400
    assert refused.value.message.endswith(".")
    return refused.value


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("foo", 'the text "foo"'),
        ("nan", 'the text "nan"'),
        ("x" * 500, f'the text "{"x" * 60}…"'),
        ("\x1b[31m", 'the text "\\u001b[31m"'),
        (True, "true"),
        (False, "false"),
        ([1.0], "a list"),
        ({"mean": 1.0}, "an object"),
    ],
)
def test_one_metric_of_two_thousand_is_named_with_what_it_is(kind: str, value: Any, shown: str) -> None:
    refused = refusal(of_metrics({**MANY, "actor/odd": value}), kind)
    assert refused.where == '$.steps[1].metrics["actor/odd"]'
    assert refused.message == (
        f'The metric "actor/odd" is {shown}. A metric is a number, "NaN", "Infinity" or "-Infinity", or null, '
        "which is NaN."
    )


def test_a_metric_beyond_float64_is_named() -> None:
    refused = refusal(json.dumps(of_metrics({"a": 1.5, "b": 2.5})).replace("2.5", "1e400").encode(), JSON)
    assert refused.where == '$.steps[1].metrics["b"]'
    assert refused.message.startswith('The metric "b" is a number out of range')


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bare_nan_is_told_with_its_metric(value: float) -> None:
    refused = refusal(of_metrics({**MANY, 'actor/"odd"': value}), JSON)
    assert "JSON has no NaN: a metric is a number, or the string" in refused.message
    assert refused.message.endswith(' It is not so of "actor/\\"odd\\"".')


def test_bytes_and_keys_that_are_no_text_are_named() -> None:
    refused = refusal(of_metrics({"a": 1.0, "b": b"\xff"}), MSGPACK)
    assert (refused.where, "is bytes" in refused.message) == ('$.steps[1].metrics["b"]', True)
    refused = refusal(of_metrics({"a": 1.0, 7: 1.0}), MSGPACK)
    assert refused.where == "$.steps[1].metrics"
    assert "Expected `str`, got `int` as a key" in refused.message


def test_a_setting_of_a_run_is_named() -> None:
    refused = refusal(body(events=[{"type": "run_started", "time": 1, "config": {"a": 1, "b": [2]}}]), JSON)
    assert refused.where == '$.events[0].config["b"]'
    assert refused.message == 'The setting "b" is a list. A setting is a text, a number, true, false or null.'


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
def test_where_the_key_cannot_be_found_the_place_is_told_as_far_as_it_is_known(kind: str) -> None:
    many = {f"{'m' * 250}{number}": 1.0 for number in range(MOST_BYTES // 256)}
    refused = refusal(of_metrics({**many, "odd": "foo"}), kind)
    assert (refused.where, "'foo'" in refused.message) == ("$.steps[1].metrics[...]", True)
    # The one that came first is gone when the body is looked at again.
    twice = (
        b'{"protocol":1,"run":{"run_id":"r"},"sender":{"id":"s"},"seq":1,"steps":[{"step":1,"metrics":{"a":[],"a":1}}]}'
    )
    assert refusal(twice, JSON).where == "$.steps[0].metrics[...]"


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("sent", "where"),
    [
        (of_metrics({**MANY, "m" * 300: 1.0}), f'$.steps[1].metrics["{"m" * 60}…"]'),
        (body(phase={"step": 1, "open": [{"name": "m" * 300, "seconds": 1}]}), "$.phase.open[0].name"),
        (body(phase={"step": 1, "closed": [{"name": "m" * 300, "seconds": 1}]}), "$.phase.closed[0].name"),
        (body(run={"run_id": "m" * 300}), "$.run.run_id"),
        (body(gpus=[{"node": "n", "index": 0}, {"node": "m" * 300, "index": 0}]), "$.gpus[1].node"),
        (
            body(events=[{"type": "hooks_reported", "time": 1, "installed": ["a", "m" * 300]}]),
            "$.events[0].installed[1]",
        ),
    ],
)
def test_a_name_that_is_too_long_is_told_by_its_beginning(kind: str, sent: Any, where: str) -> None:
    refused = refusal(sent, kind)
    assert (refused.reason, refused.where) == ("name_too_long", where)
    assert refused.message == (f'The name "{"m" * 60}…" has 300 characters, and the most is 256 (limits.name_length).')


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (
            body(steps=[{"step": 1, "metrics": {}}] * 1001),
            "The push has 1001 entries in steps, and the most is 1000 (limits.steps_per_batch): send fewer a push.",
        ),
        (
            body(gpus=[{"node": "n", "index": 1}] * 1001),
            "The push has 1001 entries in gpus, and the most is 1000 (which is no setting): send fewer a push.",
        ),
    ],
)
def test_too_many_parts_name_the_limit(sent: Any, sentence: str) -> None:
    refused = refusal(sent, JSON)
    assert (refused.reason, refused.message) == ("too_many_parts", sentence)


@pytest.mark.parametrize(
    ("sent", "where", "choices"),
    [
        (body(events=[{"type": "party", "time": 1}]), "$.events[0].type", "run_started, hooks_reported"),
        (body(events=[{"time": 1}]), "$.events[0]", "run_started, hooks_reported"),
        (body(sender={"id": "s", "role": "king"}), "$.sender.role", "trainer, worker, gpu, supervisor."),
        (
            body(events=[{"type": "command_progress", "time": 1, "command_id": "c", "state": "odd"}]),
            "$.events[0].state",
            "accepted, stopping",
        ),
    ],
)
def test_what_takes_one_of_a_few_words_says_which(sent: Any, where: str, choices: str) -> None:
    refused = refusal(sent, JSON)
    assert refused.where == where
    assert f"Known here: {choices}" in refused.message
