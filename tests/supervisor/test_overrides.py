"""What is read off the trainer's command line, and how a resume is put into it."""

from __future__ import annotations

import pytest

from trainer_entry.supervisor.overrides import OverrideError, TrainerCommand, parse

PPO = ("python", "-m", "trainer_entry.main_ppo")


def command(*words: str, program: tuple[str, ...] = PPO) -> TrainerCommand:
    return parse([*program, *words], "/work dir")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "/work dir/checkpoints/verl_examples/gsm8k"),
        (("trainer.project_name=p", "trainer.experiment_name='e f'"), "/work dir/checkpoints/p/e f"),
        (("trainer.default_local_dir=/ckpt",), "/ckpt"),
        (("++trainer.default_local_dir=rel/x",), "/work dir/rel/x"),
        (("trainer.default_local_dir=/a", "trainer.default_local_dir=/b"), "/b"),
        (("trainer.default_local_dir=${oc.env:PLACE}/x",), "/from/env/x"),
        (('trainer.default_local_dir="/q/${trainer.experiment_name}"', "trainer.experiment_name=e"), "/q/e"),
        (("--config-name=mine", "trainer.default_local_dir=/ckpt"), "/ckpt"),
    ],
)
def test_the_checkpoint_directory_is_where_verl_would_save(words: tuple[str, ...], expected: str) -> None:
    assert command(*words).checkpoint_dir({"PLACE": "/from/env"}) == expected


def test_sft_saves_under_its_own_names() -> None:
    sft = command(program=("torchrun", "-m", "trainer_entry.main_sft"))
    assert sft.checkpoint_dir({}) == "/work dir/checkpoints/gsm8k-sft/test"


@pytest.mark.parametrize("word", ["--config-name=mine", "-cn", "trainer.default_local_dir=${oc.env:NOT_SET}/x"])
def test_a_directory_that_only_a_configuration_knows_must_be_given(word: str) -> None:
    with pytest.raises(OverrideError, match="--checkpoint-dir"):
        command(word).checkpoint_dir({})


def test_a_resume_replaces_every_resume_word_of_the_user_and_keeps_the_rest_in_order() -> None:
    given = command(
        "a=1",
        "trainer.resume_mode=auto",
        "+trainer.resume_from_path=/x",
        "~trainer.resume_from_path",
        "trainer.resume_mode_x=1",
    )
    assert given.resuming_from("/c/global_step_5") == (
        *PPO,
        "a=1",
        "trainer.resume_mode_x=1",
        "trainer.resume_mode=resume_path",
        "trainer.resume_from_path=/c/global_step_5",
    )
    again = TrainerCommand(given.resuming_from("/c/global_step_5"), "/").resuming_from("/c/global_step_2")
    assert again[-1] == "trainer.resume_from_path=/c/global_step_2"
    assert len(again) == 7


@pytest.mark.parametrize(
    "path", ["/a b/global_step_1", "/it's/global_step_1", "/a,b=(c)/global_step_1", "/é/global_step_1"]
)
def test_hydra_reads_an_unusual_path_as_it_is(path: str) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    word = command().resuming_from(path)[-1]
    assert parser.OverridesParser.create().parse_override(word).value() == path


def test_a_path_that_hydra_would_change_is_refused() -> None:
    with pytest.raises(OverrideError, match="Hydra"):
        command().resuming_from("/${x}/global_step_1")


def test_no_command_at_all_is_a_sentence() -> None:
    with pytest.raises(OverrideError, match="give its command after '--'"):
        parse([], "/")
