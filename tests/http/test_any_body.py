"""Whatever the bytes of a body are: they are a batch, or are refused in a sentence. Nothing else ever comes out."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from backports import zstd
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from exporter.app.asked import Acknowledgement, Person, decoded
from exporter.app.bodies import unpack
from exporter.app.push import decode
from exporter.protocol import JSON, MSGPACK, Batch, Run, Sender, Step, encode
from exporter.recovery.alertmanager import alerts_from_webhook
from exporter.service.admission import Limits, Refused, check

VALID = Batch(
    protocol=1,
    run=Run(run_id="r", project="p", cohort="c"),
    sender=Sender(id="s", role="gpu"),
    seq=1,
    steps=[Step(step=1, metrics={"actor/grad_norm": 0.5, "actor/loss": "NaN", "actor/lr": None})],
)
BODIES = {MSGPACK: encode(VALID), JSON: msgspec.json.encode(VALID)}
LIMIT = 100_000
ANY = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])

# What JSON and msgpack can say, nested as deeply as anybody likes.
plain: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
kinds = st.sampled_from([MSGPACK, JSON])


@st.composite
def damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """A body in which bytes are changed, left out or put in."""
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        how = draw(st.sampled_from(["change", "cut", "insert"]))
        if how == "change" and changed:
            changed[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del changed[at : at + draw(st.integers(1, 20))]
        else:
            changed[at:at] = draw(st.binary(max_size=6))
    return bytes(changed)


def outcome(body: bytes, kind: str) -> Refused | None:
    """The refusal, None for a batch that is taken."""

    def taken() -> None:
        check(decode(body, kind), Limits())

    return refusal(taken, 400)


def refusal(act: Callable[[], object], *statuses: int) -> Refused | None:
    found: Refused | None = None
    try:
        act()
    except Refused as refused:
        found = refused
    assert found is None or (found.message.endswith(".") and found.status in statuses)
    return found


@ANY
@given(kind=kinds, body=st.binary(max_size=200))
@example(kind=MSGPACK, body=b"")
@example(kind=MSGPACK, body=b"\x91" * 100_000)
@example(kind=JSON, body=b"[" * 100_000)
@example(kind=JSON, body=b'{"protocol":1e999}')
@example(kind=MSGPACK, body=b"\x81\xa8protocol\xcf" + b"\xff" * 8)
@example(kind=MSGPACK, body=b"\xdd\xff\xff\xff\xff")
@example(kind=MSGPACK, body=b"\xc6\xff\xff\xff\xff")
@example(kind=MSGPACK, body=b"\xd6\xff" + bytes(4))
def test_bytes_that_mean_nothing_are_refused(kind: str, body: bytes) -> None:
    assert outcome(body, kind) is not None


@ANY
@given(data=st.data(), kind=kinds)
def test_a_damaged_batch_is_taken_or_refused(data: st.DataObject, kind: str) -> None:
    outcome(data.draw(damaged(BODIES[kind])), kind)


@ANY
@given(value=plain, kind=kinds, field=st.sampled_from(["", *Batch.__struct_fields__]))
def test_any_value_in_the_place_of_any_field_is_taken_or_refused(value: Any, kind: str, field: str) -> None:
    whole = {**msgspec.to_builtins(VALID), field: value} if field else value
    spelled = msgspec.json.encode(_finite(whole)) if kind == JSON else msgspec.msgpack.encode(whole)
    outcome(spelled, kind)


def _finite(value: Any) -> Any:
    """JSON's encoder writes null for what is not finite; here it is a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN"
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


@ANY
@given(data=st.data(), encoding=st.sampled_from(["gzip", "zstd"]))
def test_damaged_compression_is_refused_or_gives_at_most_the_limit(data: st.DataObject, encoding: str) -> None:
    packed = gzip.compress(BODIES[JSON]) if encoding == "gzip" else zstd.compress(BODIES[JSON])
    body = data.draw(damaged(packed))
    sizes: list[int] = []
    refusal(lambda: sizes.append(len(unpack(body, encoding, LIMIT))), 400, 413)
    assert max(sizes, default=0) <= LIMIT


@ANY
@given(body=st.one_of(st.binary(max_size=100), plain.map(lambda value: msgspec.json.encode(_finite(value)))))
@pytest.mark.parametrize(
    "read",
    [
        alerts_from_webhook,
        msgspec.json.Decoder(Person).decode,
        msgspec.json.Decoder(Acknowledgement).decode,
    ],
    ids=["webhook", "person", "acknowledgement"],
)
def test_any_body_of_the_other_routes_is_taken_or_refused(read: Any, body: bytes) -> None:
    refusal(lambda: decoded(lambda: read(body)), 400)
