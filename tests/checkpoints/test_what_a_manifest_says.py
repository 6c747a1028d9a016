"""A manifest says what the run was when it saved: its contents, its seal, its readers, and what it must not hold."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from checkpoint_made import ppo, sft

from trainer_entry import checkpoints
from trainer_entry.checkpoints import Origin, verify, write_manifest
from trainer_entry.checkpoints.provenance import data_position, git_state, model_name, torch_versions
from trainer_entry.configuration import HIDDEN, MAX_KEPT_TEXT, config_hash, flatten

ORIGIN = Origin(
    run_id="r",
    attempt=3,
    trainer="ppo_v1",
    verl_version="0.9.1",
    torch_version="2.13.0",
    cuda_version="13.0",
    config={"trainer.nnodes": 1, "actor.lr": 1e-6, "none": None, "flag": True},
    config_hash="c0ffee",
    git_commit="0" * 40,
    git_dirty=True,
    data_position={"epoch": 0, "batches": 40, "samples": 320},
    model="Qwen2.5-7B",
)


def test_all_that_is_known_of_the_run_is_in_it_and_reads_back_the_same(tmp_path: Path) -> None:
    written = write_manifest(ppo(tmp_path, 40), 40, origin=ORIGIN, metrics={"loss": 0.5, "kl": "NaN"}, metrics_step=40)
    read = verify(tmp_path / "global_step_40").manifest
    assert read == written
    document = json.loads((tmp_path / "global_step_40" / checkpoints.MANIFEST_NAME).read_text())
    assert document["format"] == 2
    assert document["metrics"] == {"loss": 0.5, "kl": "NaN"}
    assert {key: document[key] for key in ("run_id", "attempt", "git_dirty", "config", "data_position")} == {
        "run_id": "r",
        "attempt": 3,
        "git_dirty": True,
        "config": ORIGIN.config,
        "data_position": ORIGIN.data_position,
    }


def test_the_same_content_has_the_same_fingerprint_and_another_has_another(tmp_path: Path) -> None:
    first = write_manifest(ppo(tmp_path / "a", 5), 5, verl_version="0.9.0")
    again = write_manifest(ppo(tmp_path / "b", 5), 5, verl_version="0.9.1")
    other = write_manifest(ppo(tmp_path / "c", 5, seed="b"), 5)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert len(first.fingerprint) == 64


def test_a_manifest_of_format_1_is_still_read(tmp_path: Path) -> None:
    directory = sft(tmp_path, 5)
    written = write_manifest(directory, 5)
    old = {
        "format": 1,
        "step": 5,
        "files": [{"path": e.path, "size": e.size, "sha256": e.sha256} for e in written.files],
        "world_sizes": {".": 1},
        "verl_version": "0.9.1",
        "written_at": 1.5,
    }
    (directory / checkpoints.MANIFEST_NAME).write_text(json.dumps(old))
    result = verify(directory)
    assert result.ok, result.reason
    assert result.manifest is not None
    assert (result.manifest.config, result.manifest.fingerprint) == ({}, "")


def test_a_field_of_a_newer_version_is_covered_by_the_seal_too(tmp_path: Path) -> None:
    directory = sft(tmp_path, 5)
    write_manifest(directory, 5)
    path = directory / checkpoints.MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"signed_by": "nobody"}))
    assert verify(directory).problem == "manifest_edited"


@pytest.mark.parametrize(
    "key",
    [
        *("api_key", "wandb.api_key", "hf_token", "a.auth_token", "x.password", "db_passwd", "aws.secret_access_key"),
        *("secret", "client_secret", "access_key_id", "private_key", "credentials", "github.token", "openai-api-key"),
        *("secrets.anything", "credentials.user", "apiKey", "Authorization"),
    ],
)
def test_a_secret_is_neither_kept_nor_hashed(key: str) -> None:
    nested: object = "hush-1"
    for word in reversed(key.split(".")):
        nested = {word: nested}
    other = json.loads(json.dumps(nested).replace("hush-1", "hush-2"))
    assert "hush" not in json.dumps(flatten(nested))  # type: ignore[arg-type]
    assert config_hash(flatten(nested)) == config_hash(flatten(other))  # type: ignore[arg-type]


def test_secrets_in_lists_and_addresses_are_blanked_too() -> None:
    flat = flatten(
        {
            "tools": [{"name": "search", "api_key": "hush", "inner": [{"token": "hush"}]}],
            "url": "https://me:hush@host/x",
        }
    )
    assert "hush" not in json.dumps(flat)
    assert HIDDEN in str(flat["tools"])
    assert flat["url"] == f"https://{HIDDEN}@host/x"


@pytest.mark.parametrize(
    "key", ["eos_token", "data.pad_token", "balance_dp_token", "max_tokens", "tokenizer", "reward_fn_key"]
)
def test_what_only_sounds_secret_is_kept(key: str) -> None:
    assert list(flatten({key: "value"}).values()) == ["value"]


def test_where_to_resume_from_does_not_change_the_hash_and_any_other_setting_does() -> None:
    one = flatten({"trainer": {"resume_mode": "auto", "nnodes": 1}})
    resumed = flatten({"trainer": {"resume_mode": "resume_path", "resume_from_path": "/a/global_step_5", "nnodes": 1}})
    assert config_hash(one) == config_hash(resumed) != config_hash(flatten({"trainer": {"nnodes": 2}}))
    assert config_hash(flatten({"a": float("nan")})) == config_hash(flatten({"a": float("nan")})) != config_hash({})


def test_a_long_setting_is_kept_long_enough_to_be_given_again() -> None:
    assert len(str(flatten({"prompt": "x" * 5000}, MAX_KEPT_TEXT)["prompt"])) == 5000


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_is_that_of_the_folder_and_a_change_shows(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("checkpoints are written into many a repository")
    assert git_state(str(tmp_path)) == (commit, False)
    (tmp_path / "train.py").write_text("b")
    assert git_state(str(tmp_path)) == (commit, True)


def test_no_repository_and_no_git_program_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(str(tmp_path / "absent")) == ("", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(str(tmp_path)) == ("", None)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen2.5-7B", "Qwen2.5-7B"),
        ("/models/llama 3/", "llama-3"),
        ("/a/global_step_40/actor/huggingface", "a"),
        ("/toy/model", "toy-model"),
        ("model", "model"),
        ("/", ""),
        ("../../etc", "etc"),
        ("/x/模型", ""),
    ],
)
def test_the_models_short_name_is_fit_for_a_file_name(path: str, name: str) -> None:
    assert model_name({"actor_rollout_ref.model.path": path}) == name


def test_torchs_version_is_known() -> None:
    version, _ = torch_versions()
    assert version[:1].isdigit()


def test_the_position_in_the_data_is_read_from_the_state_of_the_data_loader(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {
        "_sampler_iter_state": {"samples_yielded": 48, "sampler_iter_state": {"generator": torch.zeros(9)}},
        "_num_yielded": 6,
        "_iterator_finished": False,
    }
    torch.save(state, tmp_path / "data.pt")
    known = {"file": "data.pt", "batches": 6, "samples": 48, "epoch_finished": False}
    assert data_position(str(tmp_path), 6) == known
    assert data_position(str(tmp_path), 70, 64) == known | {"epoch": 1, "batches_per_epoch": 64}
    workers = {
        "_snapshot": {"_snapshot_step": 4, "_main_snapshot": {"_sampler_iter_state": {"samples_yielded": 96}}},
        "_steps_since_snapshot": 2,
        "_iterator_finished": True,
    }
    torch.save(workers, tmp_path / "data.pt")
    assert data_position(str(tmp_path), 6) == known | {"samples": 96, "epoch_finished": True}


class Dangerous:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_position_that_would_run_code_is_named_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.save({"_num_yielded": 6, "own": Dangerous()}, tmp_path / "data_0.pt")
    assert data_position(str(tmp_path), 6) == {"file": "data_0.pt"}
    assert not (tmp_path / "ran").exists()
    assert data_position(str(tmp_path / "absent"), 6) == {}


def test_a_section_that_holds_itself_comes_to_an_end() -> None:
    section: dict[str, object] = {"lr": 1e-6}
    section["again"] = section
    assert flatten(section)["lr"] == 1e-6
