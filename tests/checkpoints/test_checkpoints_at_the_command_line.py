"""``verl-sentinel-train checkpoints list|verify|choose``: what a person sees, and what a script gets."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from checkpoint_made import long_ago, ppo, sft

from exporter.protocol import CheckpointChecked
from trainer_entry import checkpoints
from trainer_entry.checkpoints import Origin, write_manifest
from trainer_entry.checkpoints.holding import hold
from trainer_entry.checkpoints.progress import shown_progress
from trainer_entry.checkpoints.tiers.jobs import Workplace
from trainer_entry.checkpoints.world_size import asked_world_size
from trainer_entry.cli import main


@pytest.fixture(autouse=True)
def own_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in this process, which must not stay at their low priority."""
    monkeypatch.setattr("trainer_entry.checkpoint_commands.verifying.low_priority", lambda: None)
    for name in ("VERL_SENTINEL_STATE_DIR", "VERL_SENTINEL_RUN_ID", "VERL_SENTINEL_CHECKPOINTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Steps 10 good, 20 truncated, 30 without a manifest, 40 of another world size, and a tracker that is stale."""
    root = tmp_path / "checkpoints"
    origin = Origin(run_id="r", attempt=2, verl_version="0.9.1", config_hash="c0ffee1234", model="q")
    for step in (10, 20, 40):
        write_manifest(ppo(root, step, ranks=4 if step == 40 else 2), step, origin=origin)
    os.truncate(root / "global_step_20" / "data.pt", 1)
    long_ago(ppo(root, 30))
    (root / checkpoints.TRACKER_NAME).write_text("30")
    hold(root / "global_step_10", "command-7", "the target of a rollback")
    return root


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["checkpoints", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_list_says_of_each_what_it_is_who_holds_it_and_what_is_wrong(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "verify", str(run / "global_step_10"))[0] == 0
    code, out, _ = output(capsys, "list", "--checkpoint-dir", str(run), "--world-size", "2")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line[:2].isdigit()}
    assert list(rows) == ["40", "30", "20", "10"], "newest first"
    assert "c0ffee12" in rows["10"]
    assert "0.9.1" in rows["10"]
    assert "content," in rows["10"]
    assert "command-7" in rows["10"]
    assert rows["20"].endswith("truncated")
    assert rows["30"].endswith("no_manifest")
    assert rows["40"].endswith("world_size")
    assert "step 20: The file data.pt is truncated: 1 of 8 bytes." in out
    assert "names step 30, which may not be restored" in out


def test_the_list_as_json_has_it_all(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = output(capsys, "list", "--checkpoint-dir", str(run), "--json")
    document = json.loads(out)
    assert code == 0
    assert document["root"] == str(run)
    assert document["tracker"]["step"] == 30
    assert document["tracker"]["problem"]["code"] == "tracker_stale"
    by_step = {entry["step"]: entry for entry in document["checkpoints"]}
    assert [problem["code"] for problem in by_step[20]["problems"]] == ["truncated"]
    good = by_step[10]
    assert (good["ok"], good["attempt"], good["verl_version"], good["world_sizes"]) == (True, 2, "0.9.1", {"actor": 2})
    assert (good["held_by"], good["held_because"]) == ("command-7", "the target of a rollback")
    assert good["verified"] is None
    assert good["bytes"] > 6 * 1000


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "list", "--checkpoint-dir", str(tmp_path))[:2] == (
        0,
        f"There are no checkpoints in {tmp_path}.\n",
    )


def test_verify_tells_every_problem_and_its_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(
        capsys, "verify", "--depth", "manifest", str(run / "global_step_10"), str(run / "global_step_20")
    )
    assert code == 4
    assert "global_step_10 is verified (content)" in out
    assert "global_step_20 may not be restored (truncated): The file data.pt is truncated" in err


def test_verify_as_json_names_files(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = output(capsys, "verify", "--json", "--depth", "sizes", str(run / "global_step_20"))
    (result,) = json.loads(out)
    assert (code, result["ok"], result["depth"]) == (4, False, "sizes")
    assert [(problem["code"], problem["path"]) for problem in result["problems"]] == [("truncated", "data.pt")]


def test_verify_of_what_torch_cannot_load_says_which_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    directory = sft(tmp_path, 5)
    write_manifest(directory, 5)
    code, _, err = output(capsys, "verify", "--depth", "load", "--urgent", str(directory))
    assert code == 4
    for name in ("model", "optim", "extra_state"):
        assert f"{name}_world_size_1_rank_0.pt cannot be loaded" in err


def test_choose_prints_a_path_that_would_be_resumed_from(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(capsys, "choose", "--checkpoint-dir", str(run), "--world-size", "2")
    assert (code, out) == (0, f"{run / 'global_step_10'}\n")
    assert [line.split(" is refused")[0] for line in err.splitlines()] == [
        "verl-sentinel: step 40",
        "verl-sentinel: step 30",
        "verl-sentinel: step 20",
    ]
    assert output(capsys, "choose", "--checkpoint-dir", str(run), "--not-after-step", "9")[0] == 4


def test_what_was_found_is_left_for_the_exporter_in_the_runs_state(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    words = ["--checkpoint-dir", str(run), "--state-dir", str(state)]
    assert output(capsys, "verify", *words)[0] == 4
    with Workplace(state).reports() as reports:
        found = [(event.step, event.depth, event.ok) for event in reports if isinstance(event, CheckpointChecked)]
    assert found == [(40, "content", True), (20, "content", False), (10, "content", True)], (
        "no verdict without a manifest"
    )


def test_a_folder_alone_tells_the_run_that_its_manifest_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state = tmp_path / "cache" / "verl-sentinel" / "runs" / "r"
    state.mkdir(parents=True)
    assert output(capsys, "verify", str(run / "global_step_10"))[0] == 0
    with Workplace(state).reports() as reports:
        assert [event.step for event in reports] == [10]


@pytest.mark.parametrize("words", [["--world-size", "0"], ["--depth", "deep"], ["--world-size", "1e3"]])
def test_an_unusable_word_is_refused(run: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoints", "choose", "--checkpoint-dir", str(run), *words])
    assert ended.value.code == 2
    assert words[-1] in capsys.readouterr().err


def test_names_from_outside_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = ppo(tmp_path, 5)
    write_manifest(directory, 5)
    hold(directory, "\x1b[2Jgone", "\x1b]0;title\x07")
    assert "\x1b" not in output(capsys, "list", "--checkpoint-dir", str(tmp_path))[1]


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("python -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=4", 8),
        ("python -m trainer_entry.main_ppo", None),
        ("python -m trainer_entry.main_ppo ++trainer.n_gpus_per_node='2' trainer.n_gpus_per_node=1", 1),
        ("python -m verl.trainer.main_ppo trainer.n_gpus_per_node=${oc.env:N}", None),
        ("python -m verl.trainer.main_ppo --config-name mine trainer.n_gpus_per_node=4", None),
        ("torchrun --nnodes=2 --nproc-per-node=8 -m verl.trainer.sft_trainer", 16),
        ("torchrun --standalone --nproc_per_node gpu -m verl.trainer.sft_trainer", None),
        ("torchrun --nnodes=1:4 --nproc_per_node=2 -m verl.trainer.sft_trainer", None),
        ("python -m trainer_entry.main_sft", 1),
        ("python -m verl.trainer.sft_trainer", None),
        ("bash train.sh", None),
        ("", None),
    ],
)
def test_the_ranks_that_a_command_line_comes_to(words: str, ranks: int | None) -> None:
    assert asked_world_size(words.split()) == ranks


def test_changed_settings_change_the_ranks() -> None:
    words = ["python", "-m", "trainer_entry.main_ppo", "trainer.nnodes=4", "trainer.n_gpus_per_node=8"]
    assert asked_world_size(words, {"trainer.nnodes": 3}) == 24


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_at_a_terminal_and_silent_where_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        with shown_progress("verifying", 100, stream) as progress:
            progress(40)
            progress(60)
    assert "verifying" in terminal.getvalue()
    assert pipe.getvalue() == ""


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_entry.checkpoints.progress.LINE_SECONDS", 0.0)
    pipe = io.StringIO()
    with shown_progress("verifying", 200, pipe) as progress:
        progress(50)
    assert pipe.getvalue() == "verifying: 25 % of 200 B\n"
