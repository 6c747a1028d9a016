"""Bodies that a sender has compressed: taken as what they stand for, never beyond the bound, refused in a sentence."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import msgspec
import pytest
from backports import zstd
from exporter_process import PUSH, ExporterProcess
from exporter_scene import batch

from exporter.app.bodies import MAX_MEMBERS, unpack
from exporter.protocol import JSON, MSGPACK, Step, encode
from exporter.service.admission import Refused

Pack = Callable[[bytes], bytes]
PACKS: dict[str, Pack] = {"gzip": gzip.compress, "zstd": zstd.compress}
BOTH = pytest.mark.parametrize("encoding", PACKS)


def refusal(body: bytes, encoding: str, limit: int = 1000) -> Refused:
    with pytest.raises(Refused) as refused:
        unpack(body, encoding, limit)
    assert refused.value.message.endswith(".")
    return refused.value


@BOTH
@pytest.mark.parametrize("media_type", [MSGPACK, JSON])
def test_a_compressed_push_is_taken_as_what_it_stands_for(
    exporter: ExporterProcess, encoding: str, media_type: str
) -> None:
    run = f"{encoding}-{media_type[12:]}"
    pushed = batch(run=run, steps=[Step(step=7, metrics={"actor/grad_norm": 0.25})])
    body = encode(pushed) if media_type == MSGPACK else msgspec.json.encode(pushed)
    answer = exporter.post(PUSH, PACKS[encoding](body), Content_Encoding=encoding, Content_Type=media_type)
    assert answer.status == 200, answer.body
    assert exporter.metrics()[f'verl_grad_norm{{run="{run}"}}'] == 0.25


@BOTH
def test_other_routes_take_compressed_bodies_too(exporter: ExporterProcess, encoding: str) -> None:
    webhook = PACKS[encoding](b'{"version": "4", "alerts": []}')
    answer = exporter.post("/api/v1/alerts", webhook, Content_Encoding=encoding, Content_Type=JSON)
    assert (answer.status, answer.json) == (200, {"alerts": []})


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "compress"])
def test_another_encoding_is_refused_with_those_that_are_accepted(exporter: ExporterProcess, encoding: str) -> None:
    answer = exporter.post(PUSH, encode(batch()), Content_Encoding=encoding)
    assert answer.status == 415
    assert answer.headers["Accept-Encoding"] == "gzip, zstd"
    assert f"encoded as {encoding!r}: gzip and zstd are accepted, or none." in answer.reason


@BOTH
def test_a_bomb_is_refused_by_the_exporter(exporter: ExporterProcess, encoding: str) -> None:
    answer = exporter.post(PUSH, PACKS[encoding](bytes(50_000_000)), Content_Encoding=encoding)
    assert answer.status == 413
    assert "more than 8388608 bytes when it is decompressed" in answer.reason


@BOTH
def test_a_bomb_costs_no_more_memory_than_the_bound(encoding: str) -> None:
    bomb, limit = PACKS[encoding](bytes(200_000_000)), 1_000_000
    assert len(bomb) < 250_000
    tracemalloc.start()
    try:
        assert refusal(bomb, encoding, limit).status == 413
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit


@BOTH
@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_what_fits_the_bound_to_the_byte_is_taken(encoding: str, size: int) -> None:
    assert unpack(PACKS[encoding](b"x" * size), encoding, 1000) == b"x" * size
    assert refusal(PACKS[encoding](b"x" * 1001), encoding).status == 413


@BOTH
def test_several_members_are_one_body_and_bounded_together(encoding: str) -> None:
    pack = PACKS[encoding]
    assert unpack(pack(b"ab") + pack(b"") + pack(b"c"), encoding, 3) == b"abc"
    assert refusal(pack(b"x" * 600) + pack(b"y" * 600), encoding).status == 413
    many = refusal(pack(b"") * (MAX_MEMBERS + 1), encoding)
    assert (many.status, many.reason) == (400, "encoding")
    assert f"more than {MAX_MEMBERS} parts" in many.message


@BOTH
def test_a_truncated_body_is_refused_wherever_it_ends(encoding: str) -> None:
    whole = PACKS[encoding](b"all of it, and not a byte less " * 9)
    for end in range(1, len(whole)):
        refused = refusal(whole[:end], encoding)
        assert (refused.status, refused.where) == (400, "body")


@BOTH
@pytest.mark.parametrize("tail", [b"\x00", b"garbage", b"\x1f\x8b", b"(\xb5/\xfd"])
def test_what_follows_the_compressed_body_is_refused(encoding: str, tail: bytes) -> None:
    refused = refusal(PACKS[encoding](b"body") + tail, encoding)
    assert refused.status == 400
    assert f"not {encoding}, as its Content-Encoding says" in refused.message


@pytest.mark.parametrize(
    ("body", "encoding"),
    [(b"plain text", "gzip"), (b"plain text", "zstd"), (zstd.compress(b"x"), "gzip"),
     (gzip.compress(b"x", mtime=0), "zstd"), (zlib.compress(b"x"), "gzip"), (b"", "gzip"), (b"", "zstd")],
)  # fmt: skip
def test_what_is_not_what_its_encoding_says_is_refused(body: bytes, encoding: str) -> None:
    assert refusal(body, encoding).status == 400


def test_a_damaged_checksum_is_noticed() -> None:
    whole = bytearray(gzip.compress(b"body"))
    whole[-8] ^= 1
    assert refusal(bytes(whole), "gzip").status == 400


def test_a_frame_that_asks_for_a_large_window_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    body = compressor.compress(b"x" * 10) + compressor.flush()
    assert refusal(body, "zstd").status == 400
