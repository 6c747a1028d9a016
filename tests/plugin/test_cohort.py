"""The cohort that a run's owner names reaches the exporter from every sender of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_entry.handing_on import to_hand_on
from trainer_entry.plugin.runtime import Runtime
from trainer_entry.settings import COHORT, SettingsError, read_settings

ENVIRON = {"VERL_SENTINEL_URL": "http://127.0.0.1:9", "VERL_SENTINEL_RUN_ID": "r", COHORT: " sweep 7 "}


def test_the_trainer_and_its_workers_say_their_cohort(tmp_path: Path) -> None:
    settings = read_settings({**ENVIRON, "VERL_SENTINEL_STATE_DIR": str(tmp_path)})
    assert settings is not None
    trainer, worker = (Runtime(settings, "0.9.1", report=lambda sentence: None) for _ in range(2))
    clients = [trainer.open_trainer("p", "e", None), worker.rollout_client(None)]
    try:
        assert [client.run.cohort for client in clients] == ["sweep 7", "sweep 7"]
    finally:
        for client in clients:
            client.close(0.1)


def test_ray_workers_on_other_nodes_are_told_it() -> None:
    assert to_hand_on(ENVIRON)[COHORT] == " sweep 7 "


@pytest.mark.parametrize("cohort", ["x" * 129, "a\nb"])
def test_one_that_can_be_no_label_is_refused(cohort: str) -> None:
    with pytest.raises(SettingsError, match="VERL_SENTINEL_COHORT is"):
        read_settings({**ENVIRON, COHORT: cohort})
