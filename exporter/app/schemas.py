"""JSON schemas of what is taken and what is answered, for :mod:`exporter.app.description`.

msgspec writes them from the types. It knows nothing of the bounds that :mod:`exporter.service.admission` checks after
decoding, nor that a float that JSON cannot say is answered as a word: both are added here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from exporter.app.asked import Acknowledgement, Person
from exporter.app.notify_route import NotifyTest
from exporter.notify.message import MAX_ALERTS as NOTIFY_MAX_ALERTS
from exporter.notify.message import Notification
from exporter.protocol import PROTOCOL_VERSION, Batch
from exporter.recovery.alertmanager import MAX_ALERTS, Webhook
from exporter.service.admission import MAX_INTEGER, MAX_OPEN_PHASES, MAX_PARTS, MAX_SECONDS, Limits

NUMBER: dict[str, Any] = {
    "description": 'A number, or the word for one that JSON cannot say: "NaN", "Infinity", "-Infinity".',
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}

TAKEN = (Batch, Webhook, Acknowledgement, Person, Notification, NotifyTest)
REQUESTS = {kind.__name__: kind.__name__ for kind in TAKEN}
"""Bodies that are taken, and the names of their schemas."""

_REF = "#/components/schemas/{name}"
_PRINTABLE = {"pattern": r"^[^\u0000-\u001f\u007f-\u00a0\u00ad]*$"}

Schemas = dict[str, dict[str, Any]]


def bounded(limits: Limits) -> Schemas:
    """Schemas of the bodies that are taken, with the bounds of ``limits``."""
    _, schemas = msgspec.json.schema_components(TAKEN, ref_template=_REF)
    name = {"minLength": 1, "maxLength": limits.name_length, **_PRINTABLE}
    maybe = {"maxLength": limits.name_length, **_PRINTABLE}
    seconds = {"minimum": 0, "maximum": MAX_SECONDS}
    whole = {"minimum": 0, "maximum": MAX_INTEGER - 1}
    counted = {"minimum": 1, "maximum": MAX_INTEGER - 1}
    code = {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER - 1}
    many = {"maxItems": MAX_PARTS}
    rules: dict[str, dict[str, dict[str, Any]]] = {
        "Batch": {
            "protocol": {"const": PROTOCOL_VERSION},
            "seq": counted,
            "steps": {"maxItems": limits.steps_per_batch},
            "gpus": many,
            "events": many,
        },
        "Run": {
            "run_id": name,
            "attempt": counted,
            **dict.fromkeys(("project", "experiment", "trainer", "verl_version", "cohort"), maybe),
        },
        "Sender": {"id": name},
        "Step": {
            "step": whole,
            "metrics": {
                "maxProperties": limits.metrics_per_step,
                "propertyNames": {"maxLength": limits.name_length},
            },
        },
        "OpenPhase": {"name": name, "seconds": seconds},
        "ClosedPhase": {"name": name, "seconds": seconds},
        "PhaseReport": {"step": whole, "open": {"maxItems": MAX_OPEN_PHASES}, "closed": many},
        "RolloutCounts": dict.fromkeys(("succeeded", "failed", "cancelled", "in_flight"), whole),
        "GpuReading": {"node": name, "uuid": maybe, **dict.fromkeys(("index", "xid_errors", "last_xid"), whole)},
        "HooksReported": {"installed": {**many, "items": {"type": "string", **name}}, "missing": many},
        "HookMissing": {"name": name},
        "RunStarted": {"config": {"maxProperties": 10 * MAX_PARTS}},
        "RunFinished": {"exit_code": code},
        "AttemptStarted": {"pid": whole, "resume_step": whole},
        "AttemptExited": {"exit_code": code, "signal": code},
        "CheckpointSaved": {"step": whole, "bytes": whole},
        "WeightsSynced": {"step": whole},
        "CommandProgress": {"target_step": whole},
        "Webhook": {"alerts": {"maxItems": MAX_ALERTS}},
        "WebhookAlert": {"fingerprint": {"minLength": 1}, "startsAt": {"minLength": 1}},
        "Person": {"who": {"minLength": 1, "maxLength": 200}},
        "Acknowledgement": {"who": {"minLength": 1, "maxLength": 200}},
        "Notification": {"alerts": {"minItems": 1, "maxItems": NOTIFY_MAX_ALERTS}},
        "NotifyTest": {"who": {"minLength": 1, "maxLength": 200}},
    }
    for schema, fields in rules.items():
        for field, rule in fields.items():
            _bound(schemas[schema]["properties"][field], rule)
    return schemas


def _bound(schema: dict[str, Any], rule: dict[str, Any]) -> None:
    """Add a rule; where the value may be absent, to the branch in which it is there."""
    branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    (branches[0] if branches else schema).update(rule)


def shown(types: Iterable[type]) -> tuple[Schemas, dict[type, str]]:
    """Schemas of what is answered, and the name of each type's."""
    wanted = list(dict.fromkeys(types))
    taken = msgspec.json.schema_components(TAKEN, ref_template=_REF)[1]
    references, schemas = msgspec.json.schema_components(wanted, ref_template=_REF)
    renamed = {name: f"{name}Shown" if name in taken else name for name in schemas}
    names = {kind: renamed[ref["$ref"].rpartition("/")[2]] for kind, ref in zip(wanted, references, strict=True)}
    return {renamed[name]: _spelled(schema, renamed) for name, schema in schemas.items()}, names


def _spelled(schema: Any, renamed: dict[str, str]) -> Any:
    """With every number one that may be a word, and every reference by its new name."""
    if isinstance(schema, list):
        return [_spelled(item, renamed) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {**schema, "$ref": _REF.format(name=renamed.get(name, name))}
    if schema.get("type") == "number":
        rest = {key: value for key, value in schema.items() if key != "type"}
        return {**rest, "$ref": _REF.format(name="Number")}
    return {
        key: value if key in ("default", "enum", "const") else _spelled(value, renamed) for key, value in schema.items()
    }
