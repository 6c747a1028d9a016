"""A small checkpoint as verl lays it out, a run's state directory, and S3 without Amazon."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer_entry.checkpoints import Origin, write_manifest
from trainer_entry.checkpoints.manifest import Manifest
from trainer_entry.supervisor.state import RunRecord, StateDir

Save = Callable[..., Manifest]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The run's own checkpoint directory."""
    path = tmp_path / "run" / "checkpoints"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def save(root: Path) -> Save:
    """Saves a step: two actor shards of ``size`` bytes that no other seed has, and the position in the data."""

    def make(
        step: int,
        *,
        seed: int | None = None,
        size: int = 20_000,
        metrics: dict[str, float] | None = None,
        config: dict[str, object] | None = None,
        manifest: bool = True,
    ) -> Manifest:
        directory = root / f"global_step_{step}"
        write_files(directory, seed if seed is not None else step, size)
        (root / "latest_checkpointed_iteration.txt").write_text(str(step))
        if not manifest:
            return Manifest(format=2, step=step, files=[])
        return write_manifest(directory, step, origin=Origin(model="toy", config=config or {}), metrics=metrics or {})

    return make


def write_files(directory: Path, seed: int, size: int = 20_000) -> None:
    """The files of one checkpoint, as verl writes them: opened for writing in place where they exist."""
    (directory / "actor").mkdir(parents=True, exist_ok=True)
    numbers = random.Random(seed)
    for kind in ("model", "optim"):
        with open(directory / "actor" / f"{kind}_world_size_1_rank_0.pt", "wb") as file:
            file.write(numbers.randbytes(size))
    with open(directory / "data.pt", "wb") as file:
        file.write(numbers.randbytes(100))


@pytest.fixture
def state_dir(tmp_path: Path, root: Path) -> Path:
    """The state of run ``a``, which saves into ``root``."""
    state = StateDir(tmp_path / "state")
    state.create()
    state.write_run(RunRecord(run_id="a", argv=["true"], cwd=os.fspath(tmp_path), checkpoint_dir=os.fspath(root)))
    return state.path


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of moto's S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Options of a place in S3, with the bucket ``copies``, which is empty."""
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=s3_server)
    for bucket in ("copies", "elsewhere"):
        client.create_bucket(Bucket=bucket)
    yield {"endpoint_url": s3_server}
    for bucket in ("copies", "elsewhere"):
        for entry in client.list_objects_v2(Bucket=bucket).get("Contents", []):
            client.delete_object(Bucket=bucket, Key=entry["Key"])
        for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
