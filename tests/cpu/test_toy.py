"""The toy task: its data is the same every time, and its reward cannot be had for one token."""

import random
from itertools import islice

import pytest

from demo.toy.make import RECIPE, Toy, make, rl_rows, sft_rows
from demo.toy.overrides import environment, overrides, sft_overrides
from demo.toy.reward import compute_score
from demo.toy.task import ALL_QUESTIONS, LONGEST_ANSWER_TOKENS, Question, half_right, questions


def score(answer, question):
    return compute_score("toy/count", answer, question.answer)["score"]


ALL = list(ALL_QUESTIONS)


def test_the_right_answer_gets_everything_and_only_it():
    for question in ALL:
        assert score(question.answer, question) == pytest.approx(1.0)
        assert score(question.answer + "0", question) < 0.8
        assert score(question.answer[:-1], question) < 0.8


@pytest.mark.parametrize("character", [*"0123456789", ":", "a", " "])
def test_no_single_repeated_token_gets_a_high_reward(character):
    for length in range(LONGEST_ANSWER_TOKENS + 1):
        scores = [score(character * length, question) for question in ALL]
        assert max(scores) <= 0.2
        assert sum(scores) / len(scores) <= 0.14


def test_no_constant_answer_does_well_on_all_questions():
    best = max(sum(score(other.answer, q) for q in ALL) / len(ALL) for other in ALL)
    assert best < 0.2


def test_every_place_that_is_right_pays():
    question = Question(7, 5)
    scores = [score(answer, question) for answer in ("", "7", "78", "789", "7890", "78901")]
    assert scores == sorted(set(scores))


def test_no_answer_at_all_scores_nothing():
    assert compute_score("toy/count", "", "4567")["score"] == 0
    assert compute_score("toy/count", None, "4567")["score"] == 0


def test_questions_and_rows_are_the_same_every_time():
    assert list(islice(questions(5), 50)) == list(islice(questions(5), 50))
    assert list(islice(questions(5), 50)) != list(islice(questions(6), 50))
    chosen = list(islice(questions(5), 4))
    assert rl_rows(chosen, "train") == rl_rows(chosen, "train")
    assert sft_rows(chosen)[0]["messages"][1]["content"] == chosen[0].answer


def test_half_right_answers_leave_room_in_both_directions():
    rng, source = random.Random(0), questions(0)
    scores = [score(half_right(q, rng, 0.35), q) for q in islice(source, 500)]
    assert 0.35 < sum(scores) / len(scores) < 0.65


def test_a_finished_toy_is_not_made_again(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "recipe").write_text(RECIPE)
    toy = make(folder)
    assert toy.folder == folder
    assert sorted(p.name for p in folder.iterdir()) == ["recipe"]  # taken as it stands, with nothing written


def test_the_environment_keeps_what_was_there_and_puts_the_repository_first_once():
    base = {"HOME": "/home/someone", "PYTHONPATH": "/extra"}
    once = environment(base)
    assert once["HOME"] == "/home/someone"
    assert once["PYTHONPATH"].endswith("/extra")
    assert once["VERL_PLATFORM"] == "cpu"
    assert environment(once) == once


@pytest.mark.parametrize("use_v1", [True, False])
@pytest.mark.parametrize("critic", [True, False])
def test_no_override_is_given_twice(tmp_path, use_v1, critic):
    chosen = overrides(Toy(tmp_path), tmp_path / "checkpoints", steps=4, use_v1=use_v1, critic=critic)
    keys = [item.split("=", 1)[0] for item in chosen]
    assert len(keys) == len(set(keys))
    assert ("trainer.use_v1=True" in chosen) == use_v1


def test_sft_reads_the_sft_data(tmp_path):
    chosen = sft_overrides(Toy(tmp_path), tmp_path / "checkpoints", steps=4)
    assert f"data.train_files={tmp_path}/data/sft_train.parquet" in chosen


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")

    with pytest.raises(FileExistsError, match="holds no toy"):
        make(folder)

    assert (folder / "thesis.txt").read_text() == "years of work"
