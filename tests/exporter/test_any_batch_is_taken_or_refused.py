"""Whatever a sender says within the wire types: it is taken or refused in a sentence, and ``/metrics`` can be read."""

from __future__ import annotations

from typing import Any

import pytest
from exporter_scene import Scene
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from exporter.detectors.registry import build_detectors
from exporter.protocol import (
    AttemptExited,
    AttemptStarted,
    Batch,
    CheckpointSaved,
    ClosedPhase,
    CommandProgress,
    GpuReading,
    HookMissing,
    HooksReported,
    OpenPhase,
    PhaseReport,
    RolloutCounts,
    Run,
    RunFinished,
    RunStarted,
    Sender,
    Step,
    WeightsSynced,
)
from exporter.service.admission import Refused
from exporter.service.exposition import Exposition, Ingest

# Mostly what is taken, or a batch of many parts would hardly ever be.
whole = st.sampled_from([*range(1, 40), 2**31, 2**53 - 1, 2**53 - 2, 0, 2**53, -1, 2**63])
real = st.sampled_from([0.0, 1.0, -2.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")])
odd = st.sampled_from(["", "new\nline", "\x00", "x" * 300])
plain = st.sampled_from(["a", "b", 'quo"te', "back\\slash", "é漢🙂", "gen", "step", "{x=1}", "update_actor"])
word = st.integers(0, 30).flatmap(lambda n: odd if n == 30 else plain)
duration = st.sampled_from([0.0, 0.5, 3.0, 100.0, 1e6, 1e300, 5e-324, 2.0, 7.0, float("nan")])
key = st.one_of(word, st.sampled_from(["actor/loss", "actor/grad_norm", "actor/kl_loss", "timing_s/step", "actor/lr"]))
spelled = st.one_of(real, st.sampled_from(["NaN", "Infinity", "-Infinity"]))

happening: st.SearchStrategy[Any] = st.one_of(
    st.builds(RunStarted, time=real, config=st.dictionaries(word, st.one_of(whole, real, word, st.none()), max_size=3)),
    st.builds(
        HooksReported,
        time=real,
        installed=st.lists(word, max_size=3),
        missing=st.lists(st.builds(HookMissing, name=word, reason=word), max_size=2),
    ),
    st.builds(CheckpointSaved, time=real, step=whole, path=word, verified=st.booleans(), reason=word),
    st.builds(WeightsSynced, time=real, step=whole, seconds=real),
    st.builds(RunFinished, time=real, exit_code=st.one_of(st.none(), whole)),
    st.builds(AttemptStarted, time=real, pid=whole, resume_step=st.one_of(st.none(), whole), command_id=word),
    st.builds(
        AttemptExited,
        time=real,
        exit_code=st.one_of(st.none(), whole),
        signal=st.one_of(st.none(), whole),
        expected=st.booleans(),
        seconds=real,
        last_output=st.lists(word, max_size=2),
    ),
    st.builds(
        CommandProgress,
        time=real,
        command_id=word,
        state=st.sampled_from(["accepted", "stopping", "started", "succeeded", "failed"]),
        target_step=st.one_of(st.none(), whole),
    ),
)
batches = st.builds(
    Batch,
    protocol=st.sampled_from([1] * 20 + [2]),
    run=st.builds(Run, run_id=st.sampled_from(["r"] * 20 + ["", "q\n"]), attempt=whole, project=word, trainer=word),
    sender=st.builds(Sender, id=word, role=st.sampled_from(["trainer", "worker", "gpu", "supervisor"])),
    seq=whole,
    steps=st.lists(st.builds(Step, step=whole, metrics=st.dictionaries(key, spelled, max_size=6)), max_size=3),
    phase=st.one_of(
        st.none(),
        st.builds(
            PhaseReport,
            step=whole,
            open=st.lists(st.builds(OpenPhase, name=word, seconds=duration), max_size=2),
            closed=st.lists(st.builds(ClosedPhase, name=word, seconds=duration), max_size=2),
        ),
    ),
    rollout=st.one_of(st.none(), st.builds(RolloutCounts, succeeded=whole, failed=whole, in_flight=whole)),
    gpus=st.lists(
        st.builds(
            GpuReading,
            node=word,
            index=whole,
            memory_used_bytes=st.one_of(st.none(), whole),
            xid_errors=st.one_of(st.none(), whole),
            power_watts=real,
        ),
        max_size=2,
    ),
    events=st.lists(happening, max_size=2),
)


@settings(
    deadline=None,
    max_examples=60,
    # Shrinking histories with a database each takes minutes; the batches that fail are printed as they are.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(given_batches=st.lists(batches, min_size=1, max_size=8))
def test_any_batch_is_taken_or_refused_and_the_state_can_be_shown_and_rebuilt(
    given_batches: list[Batch], tmp_path_factory: pytest.TempPathFactory
) -> None:
    scene = Scene(tmp_path_factory.mktemp("any"), detectors=build_detectors)
    taken = 0
    for batch in given_batches:
        refusal = None
        try:
            taken += not scene.core.accept(batch, scene.now).duplicate
        except Refused as refused:
            refusal = refused
        assert refusal is None or (refusal.message.endswith(".") and 400 <= refusal.status < 500)
        scene.tick()
    event(f"{taken} of {len(given_batches)} taken")
    shown = text(scene)
    assert scene.core.faults == 0
    assert all(not run.detector_faults for run in scene.core.runs.values())
    assert taken == 0 or scene.core.runs
    scene.restart()
    assert scene.core.faults == scene.core.unreadable_entries == 0
    assert text(scene) == shown
    scene.close()


def text(scene: Scene) -> str:
    shown = Exposition(scene.core, Ingest(), lambda: scene.now, "1", lambda: True).render().body.decode()
    list(text_string_to_metric_families(shown))
    names = [line.rpartition(" ")[0] for line in shown.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names)), "a sample is there twice"
    return "\n".join(line for line in shown.splitlines() if "verl_sentinel_" not in line and "process_" not in line)
