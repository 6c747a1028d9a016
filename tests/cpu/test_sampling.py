"""Sampling on the CPU: what a batch of prompts returns, with a model whose logits are known."""

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from trainer_entry.cpu.sampling import sample, usable_logits  # noqa: E402

PAD, END, VOCABULARY = 0, 1, 6


class Countdown:
    """A model that after token k is sure of k - 1, so that a prompt ending in k is answered k-1, ..., 1, which ends."""

    def __init__(self, spoil=lambda logits: logits):
        self.batch_sizes = []
        self._spoil = spoil

    def __call__(self, *, input_ids, attention_mask, position_ids, past_key_values, use_cache):
        self.batch_sizes.append(input_ids.shape[0])
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        logits.scatter_(-1, (input_ids - 1).clamp(min=END).unsqueeze(-1), 50.0)
        return SimpleNamespace(logits=self._spoil(logits), past_key_values=(past_key_values or 0) + 1)


def run(model, prompts, **options):
    settings = {"max_tokens": 8, "temperature": 1.0, "pad_token_id": PAD, "eos_token_id": END, **options}
    return sample(model, prompts, **settings)


def test_each_prompt_of_a_padded_batch_gets_its_own_answer():
    answers = run(Countdown(), [[5], [2, 3], [4, 4, 2]])
    assert [a.token_ids for a in answers] == [[4, 3, 2, 1], [2, 1], [1]]
    assert all(a.finished for a in answers)


def test_an_answer_has_one_log_probability_a_token_and_they_are_those_of_the_distribution():
    (answer,) = run(Countdown(), [[3]], temperature=0)
    sure = 50.0 - math.log(math.exp(50.0) + VOCABULARY - 1)
    assert answer.log_probs == pytest.approx([sure, sure], abs=1e-5)


def test_an_answer_that_does_not_end_is_cut_at_the_longest_length():
    (answer,) = run(Countdown(), [[5]], max_tokens=2)
    assert answer.token_ids == [4, 3]
    assert not answer.finished


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
def test_nan_logits_give_garbage_tokens_and_finite_log_probabilities_instead_of_an_error(temperature):
    model = Countdown(spoil=lambda logits: logits * math.nan)
    answers = run(model, [[5], [3, 2]], temperature=temperature)
    for answer in answers:
        assert 1 <= len(answer.token_ids) <= 8
        assert all(0 <= token < VOCABULARY for token in answer.token_ids)
        assert all(math.isfinite(value) for value in answer.log_probs)


def test_nan_logits_make_all_tokens_alike():
    logits = usable_logits(torch.full((1, VOCABULARY), math.nan))
    assert torch.softmax(logits, -1).tolist() == [[pytest.approx(1 / VOCABULARY)] * VOCABULARY]


def test_infinite_logits_keep_their_order():
    logits = usable_logits(torch.tensor([[math.inf, 3.0, -math.inf]]))
    assert logits.isfinite().all()
    assert logits[0].argsort(descending=True).tolist() == [0, 1, 2]


def test_the_same_seed_gives_the_same_answers():
    flat = Countdown(spoil=lambda logits: logits * 0)
    twice = [run(flat, [[5], [4]], generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert twice[0] == twice[1]


@pytest.mark.parametrize("prompts", [[], [[2], []]])
def test_an_empty_batch_or_prompt_is_refused_with_the_lengths(prompts):
    with pytest.raises(ValueError, match="at least one prompt"):
        run(Countdown(), prompts)
