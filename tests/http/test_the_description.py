"""The OpenAPI document: it is valid, describes every route that is there and no other, and what it says is true."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from exporter_process import PUSH, ExporterProcess, push
from hypothesis import HealthCheck, given, settings

from exporter.app.description import OPERATIONS, document
from exporter.app.push import decode
from exporter.protocol import JSON, GpuReading, PhaseReport, Step
from exporter.service.admission import Limits, Refused, check

DOCUMENT = document(OPERATIONS, "1", Limits())
METHODS = {"get", "post", "delete"}


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{method.upper()} {path}": it for path, item in document["paths"].items() for method, it in item.items()}


def schemas_in(node: Any) -> list[str]:
    """Every reference."""
    if isinstance(node, list):
        return [found for item in node for found in schemas_in(item)]
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for item in node.values() for found in schemas_in(item)]
    return []


def validator(name: str, document: dict[str, Any] = DOCUMENT) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    )


def test_every_route_is_described_and_no_other(exporter: ExporterProcess) -> None:
    served = exporter.get("/schema/openapi.json").json
    assert operations(served).keys() == {f"{method} {path}" for method, path in OPERATIONS}


def test_the_document_is_openapi_3_1_with_valid_schemas() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert name.isidentifier()
    for reference in schemas_in(DOCUMENT):
        kind, _, name = reference.removeprefix("#/components/").partition("/")
        assert name in DOCUMENT["components"][kind], reference
    ids = [it["operationId"] for it in operations(DOCUMENT).values()]
    assert len(ids) == len(set(ids))
    for path, item in DOCUMENT["paths"].items():
        assert item.keys() <= METHODS
        for it in item.values():
            named = {parameter["name"] for parameter in it.get("parameters", []) if parameter["in"] == "path"}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert all("schema" in parameter for parameter in it.get("parameters", []))
            for schema in [
                content["schema"] for answer in it["responses"].values() for content in answer["content"].values()
            ]:
                jsonschema_rs.meta.validate(schema)
            for requirement in it.get("security", []):
                assert requirement.keys() <= DOCUMENT["components"]["securitySchemes"].keys()


def test_it_says_what_each_route_takes_answers_and_needs() -> None:
    it = operations(DOCUMENT)[f"POST {PUSH}"]
    assert set(it["requestBody"]["content"]) == {"application/msgpack", "application/x-msgpack", JSON}
    assert {"200", "400", "401", "403", "413", "415", "429", "503"} <= it["responses"].keys()
    assert it["security"] == [{"pushToken": []}]
    assert "Retry-After" in it["responses"]["503"]["headers"]
    assert operations(DOCUMENT)["GET /api/v1/audit"]["security"] == [{"operateToken": []}]
    assert "security" not in operations(DOCUMENT)["GET /metrics"]


def test_a_scope_without_tokens_is_said_to_be_open(exporter: ExporterProcess) -> None:
    served = operations(exporter.get("/schema/openapi.json").json)
    assert served[f"POST {PUSH}"]["security"] == [{"pushToken": []}, {}]


def test_nothing_in_it_is_loaded_from_elsewhere(exporter: ExporterProcess) -> None:
    assert "http" not in json.dumps(exporter.get("/schema/openapi.json").json).replace('"type": "http"', "")
    for page in ("/schema", "/schema/swagger", "/schema/redoc", "/docs"):
        assert exporter.get(page).status == 404


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=schemathesis.openapi.from_dict(DOCUMENT)[PUSH]["POST"].as_strategy())
def test_what_the_document_says_can_be_pushed_is_taken(case: schemathesis.Case) -> None:
    """All but what no schema says: 1.0 is no integer here, and not every code point can be printed."""
    why_not = ""
    try:
        check(decode(json.dumps(case.body).encode(), JSON), Limits())
    except Refused as refused:
        why_not = refused.message
    allowed = ("64 bits", "cannot be printed", "got `float`")
    assert not why_not or any(words in why_not for words in allowed)


def test_answers_are_what_the_document_says(exporter: ExporterProcess) -> None:
    served = exporter.get("/schema/openapi.json").json
    push(exporter, run="d", steps=[Step(step=1, metrics={"actor/grad_norm": float("nan"), "actor/loss": 1.0})])
    push(exporter, run="d", seq=2, sender="gpu", role="gpu", gpus=[GpuReading(node="n", index=0, power_watts=3.5)])
    push(exporter, run="d", seq=2, phase=PhaseReport(step=2))
    for operation, path in {
        "GET /healthz": "/healthz",
        "GET /readyz": "/readyz",
        "GET /api/v1/runs": "/api/v1/runs",
        "GET /api/v1/runs/{run_id}": "/api/v1/runs/d",
        "GET /api/v1/incidents": "/api/v1/incidents",
        "GET /api/v1/recoveries": "/api/v1/recoveries",
        "GET /api/v1/audit": "/api/v1/audit?limit=3",
    }.items():
        answer = exporter.get(path)
        content = operations(served)[operation]["responses"]["200"]["content"][JSON]["schema"]
        assert answer.status == 200
        validator(content["$ref"].rpartition("/")[2], served).validate(answer.json)
    validator("ErrorAnswer", served).validate(exporter.get("/nowhere").json)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1.0])
def test_a_number_that_json_cannot_say_is_one_of_the_words(value: float) -> None:
    from exporter.app.answers import spell

    validator("Number").validate(spell(value))
    assert not validator("Number").is_valid("nan")
    assert msgspec.json.decode(b'"NaN"') == spell(float("nan"))
