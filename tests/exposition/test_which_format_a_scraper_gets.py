"""Accept and Accept-Encoding decide, with their qualities; what cannot be read gets plain text, uncompressed."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from exporter_scene import Scene
from hypothesis import given
from hypothesis import strategies as st
from pages import exposition, rich, samples

from exporter.service.exposition.negotiation import takes_gzip, wants_openmetrics

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROTOBUF_FIRST = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("APPLICATION/OpenMetrics-Text; Version=1.0.0", True),
        (PROMETHEUS_2_42, True),
        (PROMETHEUS_3, True),
        (PROTOBUF_FIRST, True),
        ("text/plain;version=0.0.4,application/openmetrics-text;q=0.5", False),
        ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.000, text/plain", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=high", False),
        ("application/openmetrics-text;q=7", False),
        (";;,,;q=,=,", False),
    ],
)
def test_openmetrics_is_sent_to_who_prefers_it(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected


@pytest.mark.parametrize(
    ("accept_encoding", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br", True),
        ("deflate, br", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0.0, *", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0.5, identity;q=0.9", False),
        ("gzip;q=0.9, identity;q=0.5", True),
        ("gzip;q=nonsense", False),
    ],
)
def test_gzip_is_sent_to_who_takes_it(accept_encoding: str, expected: bool) -> None:
    assert takes_gzip(accept_encoding) is expected


@given(st.text())
def test_no_header_breaks_the_choice(header: str) -> None:
    assert wants_openmetrics(header) in (True, False)
    assert takes_gzip(header) in (True, False)


@pytest.mark.parametrize(("accept", "content_type"), [("", CLASSIC), (PROMETHEUS_3, OPENMETRICS)])
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_the_answer_says_what_it_is(scene: Scene, accept: str, content_type: str, encoding: str) -> None:
    rich(scene)
    found = exposition(scene).render(accept, encoding)
    assert found.content_type == content_type
    assert found.headers.get("Content-Encoding", "") == encoding
    assert found.headers["Vary"] == "Accept, Accept-Encoding"
    body = gzip.decompress(found.body) if encoding else found.body
    page = body.decode()
    assert page.endswith("# EOF\n") == (content_type == OPENMETRICS)
    assert ("verl_grad_norm", (("run", "r"),)) in samples(page, openmetrics=content_type == OPENMETRICS)


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_scrape_in_slices_gives_the_same_page(scene: Scene, encoding: str) -> None:
    rich(scene)
    shown = exposition(scene, slice_seconds=0.0)
    for number in range(50):
        scene.step(1, run=f"run-{number}")
    whole = samples(shown.render().body.decode())
    sliced = asyncio.run(shown.scrape("", encoding)).body
    volatile = ("process_", "verl_sentinel_scrape_")
    again = samples((gzip.decompress(sliced) if encoding else sliced).decode())
    assert {k: repr(v) for k, v in whole.items() if not k[0].startswith(volatile)} == {
        k: repr(v) for k, v in again.items() if not k[0].startswith(volatile)
    }


def test_others_get_their_turn_during_a_scrape_and_two_scrapes_may_overlap(scene: Scene) -> None:
    for number in range(60):
        scene.step(1, run=f"run-{number}")
    shown = exposition(scene, slice_seconds=0.0)

    async def both() -> tuple[int, list[bytes]]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                # A push in the middle of a scrape: a run that was not there when it began.
                scene.step(1, run=f"new-{turns}")
                await asyncio.sleep(0)

        watching = asyncio.create_task(other())
        pages = await asyncio.gather(shown.scrape(), shown.scrape())
        watching.cancel()
        return turns, [page.body for page in pages]

    turns, pages = asyncio.run(both())
    assert turns > 3
    for page in pages:
        shown_runs = {dict(labels)["run"] for (name, labels) in samples(page.decode()) if name == "verl_run_running"}
        assert {f"run-{number}" for number in range(60)} <= shown_runs
