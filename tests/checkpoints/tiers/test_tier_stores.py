"""Stores of all kinds keep the same promises."""

from __future__ import annotations

import gc
import hashlib
import os
import uuid
from pathlib import Path

import pytest

from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.policy import Place
from trainer_entry.checkpoints.tiers.stores import Content, Store, StoreError, open_store, place_of


@pytest.fixture(params=["folder", "file", "s3", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(Place(url=os.fspath(tmp_path / "far")))
    if request.param == "file":
        return open_store(Place(url=f"file://{tmp_path}/far%20away"))
    if request.param == "s3":
        return open_store(Place(url="s3://copies/prefix/", options=request.getfixturevalue("s3")))
    return open_store(Place(url=f"memory://copies-{uuid.uuid4().hex}"))


@pytest.fixture
def content(tmp_path: Path) -> Content:
    body = os.urandom(300_000)
    (tmp_path / "content").write_bytes(body)
    return Content(os.fspath(tmp_path / "content"), len(body), hashlib.sha256(body).hexdigest())


def test_what_was_sent_is_there_is_proven_and_is_not_sent_again(store: Store, content: Content) -> None:
    sent = store.send("run/name/a b/ü.pt", content, Pace())
    assert sent.sent_bytes == content.size
    assert store.send("run/name/a b/ü.pt", content, Pace()).sent_bytes == 0
    store.prove("run/name/a b/ü.pt", content.size, content.sha256, sent.checksum, Pace())
    assert hashlib.sha256(b"".join(store.chunks("run/name/a b/ü.pt", Pace()))).hexdigest() == content.sha256
    assert [(entry.key, entry.size) for entry in store.entries("run/name")] == [("run/name/a b/ü.pt", content.size)]
    assert store.folders("") == ["run"]
    assert store.folders("run") == ["name"]


def test_other_content_of_the_same_size_is_found_out_and_replaced(
    store: Store, content: Content, tmp_path: Path
) -> None:
    other = bytes(content.size)
    (tmp_path / "other").write_bytes(other)
    store.send("run/x", Content(os.fspath(tmp_path / "other"), len(other), hashlib.sha256(other).hexdigest()), Pace())
    with pytest.raises(StoreError) as raised:
        store.prove("run/x", content.size, content.sha256, "", Pace())
    assert raised.value.kind == "lies"
    assert store.send("run/x", content, Pace()).sent_bytes == content.size
    store.prove("run/x", content.size, content.sha256, "", Pace())


def test_what_is_not_there_is_missing(store: Store) -> None:
    assert store.folders("nothing") == []
    assert store.entries("nothing") == []
    for ask in (lambda: store.read("nothing/x", 10), lambda: store.prove("nothing/x", 1, "", "", Pace())):
        with pytest.raises(StoreError) as raised:
            ask()
        assert raised.value.kind == "missing"
    store.discard("nothing/x")


def test_a_small_object_that_is_not_small_is_refused(store: Store) -> None:
    store.write("run/x", b"12345")
    assert store.read("run/x", 5) == b"12345"
    with pytest.raises(StoreError, match="larger than 4 bytes"):
        store.read("run/x", 4)


def test_only_the_folder_itself_is_removed(store: Store) -> None:
    for key in ("run/name/a", "run/name/b/c", "run/name-2/a"):
        store.write(key, b"123")
    assert store.remove("run/name") == 6
    assert [entry.key for entry in store.entries("run")] == ["run/name-2/a"]


def test_a_changed_source_is_never_kept(store: Store, content: Content) -> None:
    with open(content.path, "r+b") as file:
        file.write(b"changed")
    with pytest.raises(StoreError) as raised:
        store.send("run/x", content, Pace())
    assert raised.value.kind == "source"


def test_a_place_with_a_password_in_it_is_refused() -> None:
    with pytest.raises(StoreError, match="credentials come from the environment"):
        place_of("s3://key:secret@bucket/x")


def test_a_place_of_an_unknown_kind_is_a_sentence() -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(Place(url="carrier-pigeon://roof/x"))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp:///x", "ftp:///x does not say its host"),
        ("s3:///x", "names no bucket"),
        ("ftp://127.0.0.1:1/x", "cannot be reached: ConnectionRefusedError"),
    ],
)
def test_a_place_that_is_no_place_is_a_sentence_and_no_traceback(
    url: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreError, match=said):
        open_store(Place(url=url))
    gc.collect()
    assert "Traceback" not in capsys.readouterr().err


def test_a_rate_is_kept_and_a_pause_is_no_credit() -> None:
    clock = 0.0

    def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    pace = Pace(bytes_per_second=100, sleep=sleep, clock=lambda: clock)
    for _ in range(10):
        pace.took(100)
    assert clock == pytest.approx(10, abs=1.1)
    clock += 1000
    began = clock
    for _ in range(10):
        pace.took(100)
    assert clock - began >= 8.9
