"""The rollout server's queue: which requests share a batch, and who gets which answer or error."""

import asyncio

import pytest

from trainer_entry.cpu.sampling import Completion
from trainer_entry.cpu.server import BatchingQueue, token_budget


class Recorder:
    """A sampler that answers every prompt with itself and remembers its batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, prompts, temperature, max_tokens):
        self.batches.append((len(prompts), temperature, max_tokens))
        return [Completion(list(prompt), [temperature] * len(prompt), True) for prompt in prompts]


def gather(queue, requests):
    async def run():
        return await asyncio.gather(*(queue.submit(*r) for r in requests), return_exceptions=True)

    return asyncio.run(asyncio.wait_for(run(), timeout=30))


def test_requests_that_arrive_together_share_a_batch_and_get_their_own_answers():
    recorder = Recorder()
    answers = gather(BatchingQueue(recorder), [([i], 1.0, 8) for i in range(10)])
    assert [a.token_ids for a in answers] == [[i] for i in range(10)]
    assert recorder.batches == [(10, 1.0, 8)]


def test_requests_of_different_temperature_or_length_are_sampled_apart():
    recorder = Recorder()
    requests = [([1], 1.0, 8), ([2], 0.0, 8), ([3], 1.0, 4), ([4], 1.0, 8)]
    answers = gather(BatchingQueue(recorder), requests)
    assert [a.token_ids for a in answers] == [[1], [2], [3], [4]]
    assert [a.log_probs for a in answers] == [[1.0], [0.0], [1.0], [1.0]]
    assert sorted(recorder.batches) == [(1, 0.0, 8), (1, 1.0, 4), (2, 1.0, 8)]


def test_a_batch_never_grows_over_the_largest_size_and_nothing_is_left_behind():
    recorder = Recorder()
    answers = gather(BatchingQueue(recorder, largest=4), [([i], 1.0, 8) for i in range(10)])
    assert [a.token_ids for a in answers] == [[i] for i in range(10)]
    assert [size for size, *_ in recorder.batches] == [4, 4, 2]


def test_an_error_of_the_model_reaches_the_requests_of_its_batch_and_no_others():
    def sampler(prompts, temperature, max_tokens):
        if temperature == 0.0:
            raise RuntimeError("out of memory")
        return [Completion(list(p), [], True) for p in prompts]

    answers = gather(BatchingQueue(sampler), [([1], 0.0, 8), ([2], 1.0, 8), ([3], 0.0, 8)])
    assert [type(a) for a in answers] == [RuntimeError, Completion, RuntimeError]


def test_a_request_cancelled_by_its_caller_does_not_disturb_the_rest_of_its_batch():
    queue = BatchingQueue(Recorder())

    async def run():
        first = asyncio.create_task(queue.submit([1], 1.0, 8))
        second = asyncio.create_task(queue.submit([2], 1.0, 8))
        await asyncio.sleep(0)  # both are queued now
        first.cancel()
        return await asyncio.wait_for(second, timeout=30)

    assert asyncio.run(run()).token_ids == [2]


@pytest.mark.parametrize(
    ("asked", "prompt_tokens", "expected"),
    [
        ({}, 10, 12),
        ({"max_tokens": 5}, 10, 5),
        ({"max_new_tokens": 5}, 10, 5),
        ({}, 22, 6),
        ({"max_tokens": 99}, 27, 1),
    ],
)
def test_the_token_budget_stays_within_the_window_and_is_at_least_one(asked, prompt_tokens, expected):
    assert token_budget(asked, prompt_tokens, prompt_length=16, response_length=12) == expected
