"""The real process over HTTP: pushes, what is refused and how, restarts, kills, a disk that is full."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_process import PUSH, ExporterProcess, push, running, wait_for
from exporter_scene import batch

from exporter.protocol import (
    ErrorAnswer,
    OpenPhase,
    PhaseReport,
    PushAnswer,
    RolloutCounts,
    Step,
    encode,
)

JSON_BATCH: dict[str, Any] = {
    "protocol": 1,
    "run": {"run_id": "json"},
    "sender": {"id": "curl"},
    "seq": 1,
    "steps": [{"step": 1, "metrics": {"actor/grad_norm": "NaN", "actor/loss": "-Infinity", "actor/lr": 0.5}}],
}


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExporterProcess]:
    with running(tmp_path_factory.mktemp("exporter")) as exporter:
        yield exporter


def test_a_push_in_msgpack_is_answered_in_msgpack_and_is_in_the_metrics(exporter: ExporterProcess) -> None:
    step = Step(step=3, metrics={"actor/grad_norm": 0.5, "timing_s/step": 0.7, "actor/kl_loss": 0.01})
    assert push(exporter, run="m", seq=4, steps=[step]).accepted_seq == 4
    metrics = exporter.metrics()
    assert metrics['verl_training_step{run="m"}'] == 3
    assert metrics['verl_grad_norm{run="m"}'] == 0.5
    assert metrics['verl_kl_divergence{run="m"}'] == 0.01
    assert metrics['verl_training_step_duration_seconds_bucket{run="m",le="1.0"}'] == 1


def test_nan_in_json_is_spelled_as_a_word_in_and_out(exporter: ExporterProcess) -> None:
    answer = exporter.post(PUSH, JSON_BATCH)
    assert (answer.status, answer.json) == (200, {"accepted_seq": 1})
    metrics = exporter.metrics()
    assert metrics['verl_grad_norm{run="json"}'] != metrics['verl_grad_norm{run="json"}']
    assert metrics['verl_loss{run="json"}'] == float("-inf")
    shown = exporter.get("/api/v1/runs/json").json["run"]["signals"]
    assert (shown["grad_norm"], shown["loss"], shown["lr"]) == ("NaN", "-Infinity", 0.5)


def test_a_duplicate_is_accepted_and_changes_nothing(exporter: ExporterProcess) -> None:
    push(exporter, run="d", seq=1, steps=[Step(step=1, metrics={"actor/grad_norm": 1.0})])
    again = push(exporter, run="d", seq=1, steps=[Step(step=2, metrics={"actor/grad_norm": 1.0})])
    assert again == PushAnswer(accepted_seq=1, duplicate=True)
    assert exporter.metrics()['verl_training_steps_total{run="d"}'] == 1


def _changed(path: str, value: Any) -> dict[str, Any]:
    """The JSON batch with one thing wrong."""
    wrong: dict[str, Any] = json.loads(json.dumps(JSON_BATCH))
    wrong["run"]["run_id"] = "bad"
    target: Any = wrong
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for parent in parents:
        target = target[parent]
    target[last] = value
    return wrong


METRICS = "steps/0/metrics"
LOSS = '$.steps[0].metrics["actor/loss"]'


@pytest.mark.parametrize(
    ("wrong", "status", "where", "reason"),
    [
        (_changed("protocol", 2), 400, "$.protocol", "speaks protocol version 1, the push has version 2"),
        (_changed("run/run_id", 7), 400, "$.run.run_id", "Expected `str`, got `int`"),
        (_changed("run/run_id", ""), 400, "$.run.run_id", "A name is empty"),
        (_changed("run/run_id", "a\nb"), 400, "$.run.run_id", "cannot be printed"),
        (_changed("run/run_id", "x" * 300), 400, "$.run.run_id", "300 characters, and the most is 256"),
        (_changed("run/attempt", 0), 400, "$.run.attempt", "out of range"),
        (_changed("sender/role", "king"), 400, "$.sender.role", "Invalid enum value"),
        (_changed("seq", 0), 400, "$.seq", "out of range"),
        (_changed("seq", 2**60), 400, "$.seq", "out of range"),
        (_changed("steps/0/step", -1), 400, "$.steps[0].step", "out of range"),
        (_changed(METRICS, {"actor/loss": "nan"}), 400, LOSS, 'is the text "nan". A metric is a number, "NaN"'),
        (_changed(METRICS, {f"m{i}": 1.0 for i in range(2001)}), 400, "$.steps[0].metrics", "2001 metrics"),
        (_changed("steps", [{"step": 1, "metrics": {}}] * 1001), 400, "$.steps", "1001 entries"),
        (
            _changed("events", [{"type": "attempt_exited", "time": 1, "exit_code": 10**30}]),
            400,
            "$.events[0].exit_code",
            "out of range",
        ),
        (
            _changed("events", [{"type": "run_started", "time": 1, "config": {"seed": 2**64}}]),
            400,
            '$.events[0].config["seed"]',
            "does not fit into 64 bits",
        ),
        (_changed("events", [{"type": "party"}]), 400, "$.events[0].type", "Invalid value"),
        (_changed("rollout", {"failed": -3}), 400, "$.rollout.failed", "out of range"),
        (_changed("gpus", [{"node": "n", "index": -1}]), 400, "$.gpus[0].index", "out of range"),
        (
            _changed("phase", {"step": 1, "open": [{"name": "gen", "seconds": -1}]}),
            400,
            "$.phase.open[0].seconds",
            "not a number of seconds",
        ),
    ],
)  # fmt: skip
def test_a_wrong_batch_is_refused_with_where_and_why_and_changes_nothing(
    exporter: ExporterProcess, wrong: dict[str, Any], status: int, where: str, reason: str
) -> None:
    answer = exporter.post(PUSH, wrong)
    assert answer.status == status
    assert answer.json["where"] == where
    assert reason in answer.reason
    assert answer.reason.endswith(".")
    assert 'run="bad"' not in exporter.get("/metrics").body.decode()


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"\xc1", {}, 400, "not what is expected"),
        (b"", {}, 400, "not what is expected"),
        (b"{", {"Content_Type": "application/json"}, 400, "not what is expected"),
        (b'{"protocol": 1, "loss": NaN}', {"Content_Type": "application/json"}, 400, "JSON has no NaN"),
        (b'{"x":' * 50_000, {"Content_Type": "application/json"}, 400, "nested too deeply"),
        (b"\x81\xa1x" + b"\x91" * 50_000, {}, 400, "nested too deeply"),
        (b'{"protocol": 1e999}', {"Content_Type": "application/json"}, 400, "Number out of range"),
        (b'{"run": {"run_id": "\xff"}}', {"Content_Type": "application/json"}, 400, "Invalid UTF-8"),
        (b'{"protocol": 2, "run": "r"}', {"Content_Type": "application/json"}, 400, "the push has version 2"),
        (b"[1, 2]", {"Content_Type": "application/json"}, 400, "Expected `object`, got `array`"),
        (b"x", {"Content_Type": "text/plain"}, 415, "content type is text/plain: application/msgpack or application"),
        (b"x", {"Content_Encoding": "br"}, 415, "encoded as 'br': gzip and zstd are accepted"),
        (b"x" * (9 * 1024 * 1024), {}, 413, "9437184 bytes, at most 8388608 are accepted (limits.body_bytes)"),
    ],
)
def test_a_body_that_is_no_batch_is_refused_in_a_sentence(
    exporter: ExporterProcess, body: bytes, headers: dict[str, str], status: int, reason: str
) -> None:
    answer = exporter.post(PUSH, body, **headers)
    assert answer.status == status
    assert reason in answer.reason


def test_a_run_id_may_have_slashes_and_spaces(exporter: ExporterProcess) -> None:
    push(exporter, run="team/exp 1", steps=[Step(step=1, metrics={"actor/lr": 1.0})])
    shown = exporter.get("/api/v1/runs/team%2Fexp%201").json
    assert shown["run"]["run_id"] == "team/exp 1"


def test_refusals_are_counted_by_reason(exporter: ExporterProcess) -> None:
    name = 'verl_sentinel_rejected_total{reason="protocol"}'
    before = exporter.metrics().get(name, 0.0)
    exporter.post(PUSH, _changed("protocol", 9))
    assert exporter.metrics()[name] == before + 1


def test_a_refusal_is_msgpack_for_who_asks_for_it(exporter: ExporterProcess) -> None:
    answer = exporter.post(PUSH, b"\xc1", Accept="application/msgpack")
    assert msgspec.msgpack.decode(answer.body, type=ErrorAnswer).error == "malformed"


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/nowhere", 404, "There is nothing at /nowhere."),
        ("GET", "/api/v1/runs/nobody", 404, "No run 'nobody' has ever pushed"),
        ("GET", PUSH, 405, "does not take GET"),
        ("GET", "/api/v1/recoveries/none", 404, "There is no recovery none."),
        ("GET", "/api/v1/audit?limit=many", 400, "limit: Expected `int`, got `str`"),
    ],
)
def test_a_wrong_path_or_method_is_answered_in_a_sentence(
    exporter: ExporterProcess, method: str, path: str, status: int, reason: str
) -> None:
    answer = exporter.request(method, path, None, {})
    assert answer.status == status
    assert reason in answer.reason


def test_a_name_that_was_made_to_point_here_gets_nothing_without_a_token(exporter: ExporterProcess) -> None:
    answer = exporter.get("/api/v1/runs", Host="evil.example")
    assert answer.status == 403
    assert "'evil.example'" in answer.reason


def test_the_schema_is_served(exporter: ExporterProcess) -> None:
    schema = exporter.get("/schema/openapi.json").json
    assert {PUSH, "/api/v1/alerts", "/metrics", "/readyz"} <= schema["paths"].keys()


def _webhook(**changes: Any) -> dict[str, Any]:
    alert = {
        "status": "firing",
        "labels": {"alertname": "VerlRunBroken", "run": "w", "detector": "non_finite", "action": "rollback"},
        "annotations": {"summary": "x"},
        "startsAt": "2026-11-30T01:02:03.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "0123456789abcdef",
    }
    whole: dict[str, Any] = {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "rollback",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "alerts": [alert],
    }
    return {**whole, **changes}


def test_the_webhook_says_what_became_of_each_alert(exporter: ExporterProcess) -> None:
    answer = exporter.post("/api/v1/alerts", _webhook())
    assert answer.status == 200
    (alert,) = answer.json["alerts"]
    assert (alert["fingerprint"], alert["outcome"]) == ("0123456789abcdef", "refused")
    assert "not known" in alert["reason"]
    assert any(line["run_id"] == "w" for line in exporter.get("/api/v1/audit").json["audit"])


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"version": "3"}, "$.version"),
        ({"alerts": [{"status": "firing"}]}, "$.alerts[0]"),
        ({"alerts": "none"}, "$.alerts"),
    ],
)
def test_a_wrong_webhook_is_refused_with_where(exporter: ExporterProcess, wrong: dict[str, Any], where: str) -> None:
    answer = exporter.post("/api/v1/alerts", _webhook(**wrong))
    assert answer.status == 400
    assert answer.json["where"] == where


def test_pushes_at_once_are_all_kept_and_each_counted_once(exporter: ExporterProcess) -> None:
    def send(sender: int) -> list[int]:
        counts = [RolloutCounts(succeeded=number) for number in range(1, 21)]
        fields = {"run": "many", "sender": f"w{sender}", "role": "worker"}
        return [push(exporter, seq=c.succeeded, rollout=c, **fields).accepted_seq for c in counts]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(send, range(8))) == [list(range(1, 21))] * 8
    assert exporter.metrics()['verl_rollout_requests_total{run="many",outcome="succeeded"}'] == 160


def test_tokens_by_scope(tmp_path: Path) -> None:
    (tmp_path / "operators").write_text("# two people\nope-1\nope-2\n")
    config = tmp_path / "config.yml"
    config.write_text(
        "tokens:\n"
        "  push:\n    - env: PUSH_TOKEN\n    - value: psh-2\n"
        "  alert:\n    - value: alr-1\n"
        f"  operate:\n    - file: {tmp_path / 'operators'}\n"
    )
    with running(tmp_path, "--config", str(config), environment={"PUSH_TOKEN": "psh-1"}) as exporter:
        body = encode(batch(run="t"))

        def status(path: str, token: str | None, post: bool = True) -> tuple[int, str]:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            answer = exporter.post(path, body, **headers) if post else exporter.get(path, **headers)
            return answer.status, answer.reason if answer.status >= 400 else ""

        assert status(PUSH, None) == (
            401,
            "This needs a token of scope push: send it as 'Authorization: Bearer <token>'.",
        )
        assert status(PUSH, "wrong") == (401, "The token is not one of those that are set for scope push.")
        assert status(PUSH, "ope-1") == (403, "This token is of scope operate, and this needs one of scope push.")
        assert "t" not in [
            run["run_id"] for run in exporter.get("/api/v1/runs", Authorization="Bearer ope-2").json["runs"]
        ]
        assert status(PUSH, "psh-1")[0] == 200
        assert status(PUSH, "psh-2")[0] == 200
        assert status("/api/v1/alerts", "psh-1")[0] == 403
        assert status("/api/v1/alerts", "alr-1")[0] == 415
        for path in ("/api/v1/runs", "/api/v1/runs/t", "/api/v1/incidents", "/api/v1/recoveries", "/api/v1/audit"):
            assert status(path, None, post=False)[0] == 401
            assert status(path, "psh-1", post=False)[0] == 403
            assert status(path, "ope-1", post=False)[0] == 200
        assert status("/api/v1/recoveries/x/approve", "psh-1")[0] == 403
        for path in ("/metrics", "/healthz", "/readyz"):
            assert exporter.get(path).status == 200


def test_a_hang_is_found_without_any_push(tmp_path: Path) -> None:
    with running(tmp_path) as exporter:
        push(exporter, steps=[Step(step=1, metrics={"actor/grad_norm": 1.0})])
        report = PhaseReport(step=2, open=[OpenPhase(name="gen", seconds=100_000.0)])
        push(exporter, seq=2, phase=report)
        wait_for(lambda: "verl_incident_open{" in exporter.get("/metrics").body.decode(), exporter)


def test_an_approval_needs_json_and_a_name(exporter: ExporterProcess) -> None:
    path = "/api/v1/recoveries/nothing/approve"
    assert exporter.post(path, b"x", Content_Type="text/plain").status == 415
    assert exporter.post(path, {}).json["where"] == "$"
    assert exporter.post(path, {"who": " "}).json["where"] == "$.who"
    assert exporter.post(path, {"who": "ada"}).status == 404
    assert exporter.post("/api/v1/recoveries/nothing/dance", {"who": "ada"}).status == 404
