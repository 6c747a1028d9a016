"""Gradients by layer: what is measured, how shards add up, when it is written, and that training notices nothing."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.protocol import GradientHistogram, HistogramRequest
from trainer_entry.cli import main
from trainer_entry.gradients import armed, files
from trainer_entry.gradients.armed import Armed, Shard
from trainer_entry.gradients.files import About, GradientFileError, read, write
from trainer_entry.gradients.gathering import INCOMPLETE_SECONDS, Gathering
from trainer_entry.gradients.measuring import BINS, LOWEST_LOG2, Layer, layer_of, measured, merged

torch = pytest.importorskip("torch")


def parameter(values: Any) -> Any:
    found = torch.nn.Parameter(torch.zeros(len(values)))
    found.grad = torch.tensor(values)
    return found


def engine(**layers: Any) -> Any:
    module = SimpleNamespace(named_parameters=lambda: [(name, parameter(values)) for name, values in layers.items()])
    return SimpleNamespace(module=module, scaler=None)


def test_a_layer_has_the_numbers_that_torch_finds() -> None:
    torch.manual_seed(1)
    values = torch.randn(3000) * 1e-3
    values[:3] = torch.tensor([math.nan, math.inf, 0.0])
    finite = values[torch.isfinite(values)].double()
    layer = layer_of(values.reshape(30, 100))
    assert (layer.count, layer.non_finite, layer.zeros) == (3000, 2, 1)
    assert layer.norm == pytest.approx(float(finite.norm()))
    assert (layer.lowest, layer.highest) == (pytest.approx(float(finite.min())), pytest.approx(float(finite.max())))
    assert layer.mean == pytest.approx(float(finite.mean()))
    assert layer.deviation == pytest.approx(float(finite.std(correction=0)))
    assert sum(layer.bins) == 3000 - 2 - 1


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (1.0, -LOWEST_LOG2 + 1),
        (1.5, -LOWEST_LOG2 + 1),
        (2.0**-40, 1),
        (2.0**-41, 0),
        (2.0**23, BINS),
        (2.0**30, BINS + 1),
    ],
)
def test_each_value_falls_into_the_bin_of_its_power_of_two(value: float, place: int) -> None:
    assert layer_of(torch.tensor([value, -value])).bins[place] == 2


def test_shards_of_several_ranks_add_up_to_the_whole() -> None:
    torch.manual_seed(2)
    values = torch.randn(1000)
    whole = layer_of(values)
    (both,) = merged([{"a": layer_of(values[:300])}, {"a": layer_of(values[300:])}]).values()
    assert (both.count, both.bins, both.lowest, both.highest) == (
        whole.count,
        whole.bins,
        whole.lowest,
        whole.highest,
    )
    assert both.norm == pytest.approx(whole.norm)


def test_gradients_that_are_scaled_are_measured_unscaled_and_layers_without_are_left_out() -> None:
    frozen = torch.nn.Parameter(torch.zeros(2))
    found = measured([("a", parameter([8.0, 16.0])), ("frozen", frozen)], scale=8.0)
    assert list(found) == ["a"]
    assert (found["a"].lowest, found["a"].highest) == (1.0, 2.0)


def test_nothing_is_measured_until_armed_and_then_so_many_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Armed()
    monkeypatch.setattr(armed, "measured", lambda *_: pytest.fail("unarmed"))
    state.measure(engine(a=[1.0]))
    monkeypatch.undo()
    assert state.arm("one", 2)
    for _ in range(3):
        state.measure(engine(a=[3.0, 4.0]))
    found = state.collect("one")
    assert [(shard.update, shard.layers["a"].norm) for shard in found] == [(2, 5.0), (3, 5.0)]
    assert not state.pending
    assert not state.arm("one", 2), "the same request again"
    state.measure(engine(a=[1.0]))
    assert state.collect("one") == []


class Ranks:
    """Two ranks that were asked at different moments: the second missed update 5."""

    def __init__(self, *answers: list[Shard]) -> None:
        self.answers = list(answers)
        self.armed: list[tuple[str, int]] = []

    def arm(self, request: str, steps: int) -> None:
        self.armed.append((request, steps))

    def collect(self, request: str) -> list[Shard]:
        return self.answers.pop(0) if self.answers else []


def shard(update: int, rank: int, **layers: list[float]) -> Shard:
    found = {name: layer_of(torch.tensor(values)) for name, values in (layers or {"a": [3.0]}).items()}
    return Shard("q", "actor", update, 0.0, rank, 2, found)


def gathered(folder: Path, ranks: Ranks, steps: int = 2) -> tuple[list[GradientHistogram], Gathering]:
    told: list[GradientHistogram] = []
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 1.0

    made = Gathering(
        request=HistogramRequest(id="q", steps=steps, reason="why"),
        workers=ranks,
        folder=folder,
        run=("run", 1),
        logged=lambda: 41,
        over=lambda: False,
        told=told.append,
        monotonic=lambda: now[0],
        sleep=sleep,
    )
    made.carry_out()
    return told, made


def test_a_file_has_the_shards_of_all_ranks_and_a_step_that_one_missed_does_not_hold_up_the_others(
    tmp_path: Path,
) -> None:
    ranks = Ranks([shard(5, 0), shard(6, 0)], [shard(6, 1, a=[4.0]), shard(7, 0), shard(7, 1)])
    told, _ = gathered(tmp_path, ranks)
    assert ranks.armed == [("q", 3)]
    assert [event.step for event in told] == [42, 42]
    head, (layer,) = read(Path(told[0].file))
    assert (head["update"], head["ranks"], head["reason"], layer["norm"]) == (6, [0, 1], "why", 5.0)
    assert told[0].norm == 5.0


def test_a_rank_that_never_answers_is_left_out_and_the_file_says_so(tmp_path: Path) -> None:
    told, _ = gathered(tmp_path, Ranks([shard(5, 0)]), steps=1)
    head, _ = read(Path(told[0].file))
    assert (head["ranks"], head["world_size"]) == ([0], 2)
    assert INCOMPLETE_SECONDS < 900.0


def test_trainers_that_never_update_are_given_up_on(tmp_path: Path) -> None:
    told, _ = gathered(tmp_path, Ranks())
    assert told == []
    assert not list(tmp_path.iterdir())


def test_the_files_of_a_run_are_bounded_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 3)
    for step in range(6):
        write(tmp_path, About("r", 1, step, step, "actor", [0], 1), {"a": Layer(count=1, squares=4.0)})
    assert len(list(tmp_path.iterdir())) == 3
    assert (tmp_path / "attempt-1-step-00000005-actor-5.jsonl").is_file()


def test_numbers_that_are_not_finite_survive_the_file(tmp_path: Path) -> None:
    layer = layer_of(torch.tensor([math.nan, math.inf]))
    written = write(tmp_path, About("r", 1, 1, 1, "actor", [0], 1), {"a": layer})
    _, (line,) = read(written.path)
    assert (line["non_finite"], line["min"], line["mean"], written.non_finite) == (2, None, "NaN", 2)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"{}", b"[1]", b'{"format": 9}', b'{"format": 1}\nnot json', b"[" * 10**5]
)
def test_what_is_no_such_file_is_told_in_a_sentence(
    tmp_path: Path, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").write_bytes(body)
    with pytest.raises(GradientFileError):
        read(tmp_path / "f")
    assert main(["gradients", str(tmp_path / "f")]) == 2
    assert str(tmp_path / "f") in capsys.readouterr().err
    assert main(["gradients", str(tmp_path / "missing")]) == 2


def test_the_table_has_the_largest_layer_first_and_shows_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = {"small\x1b[31m": Layer(count=1, squares=1.0), "large": Layer(count=1, squares=9.0)}
    written = write(tmp_path, About("r\n", 1, 7, 3, "actor", [0], 1, reason="x\x07"), layers)
    assert main(["gradients", str(written.path)]) == 0
    said = capsys.readouterr().out
    assert said.index("large") < said.index("small")
    assert "\x1b" not in said
    assert "\x07" not in said
    assert main(["gradients", str(written.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"][0]["histogram"] == [0] * (BINS + 2)


def test_a_line_that_lacks_everything_is_shown_as_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text('{"format": 1, "ranks": 3}\n{"layer": ["a"], "norm": {}, "histogram": ["x"]}\n{}\n')
    assert main(["gradients", str(tmp_path / "f")]) == 0
    assert "–" in capsys.readouterr().out


def test_the_hook_leaves_the_optimizer_step_as_it_is_whatever_fails_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    from trainer_entry.plugin.hooks.gradients import Gradients
    from trainer_entry.plugin.runtime import Runtime
    from trainer_entry.settings import Settings

    told: list[str] = []
    runtime = Runtime(Settings(url="http://127.0.0.1:9"), "0.9.1", report=told.append)
    hook = Gradients(runtime)
    module = ModuleType("verl.workers.engine.fsdp.transformer_impl")

    class FSDPEngine:
        module = None

        def optimizer_step(self, factor: float = 1.0) -> float:
            return 2.5 * factor

    module.FSDPEngine = FSDPEngine  # type: ignore[attr-defined]
    hook.install(module, hook.targets[0])
    monkeypatch.setattr(armed, "STATE", Armed())
    monkeypatch.setattr("trainer_entry.plugin.hooks.gradients.STATE", broken := Armed())
    broken.arm("x", 5)
    assert FSDPEngine().optimizer_step(factor=2.0) == 5.0
    assert runtime.failures == {"gradients": 1}
    assert len(told) == 1


def test_the_same_request_is_carried_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer_entry.plugin.hooks.gradients import Gradients
    from trainer_entry.plugin.runtime import Runtime
    from trainer_entry.settings import Settings

    begun: list[str] = []
    done = threading.Event()

    def carry_out(_: Any, request: HistogramRequest) -> None:
        begun.append(request.id)
        if request.id == "last":
            done.set()

    monkeypatch.setattr(Gradients, "_carry_out", carry_out)
    hook = Gradients(Runtime(Settings(url="http://127.0.0.1:9"), "0.9.1", report=lambda _: None))
    for name in ("a", "a", "a", "last"):
        hook.asked(HistogramRequest(id=name, steps=1))
    assert done.wait(20)
    assert sorted(begun) == ["a", "last"]
