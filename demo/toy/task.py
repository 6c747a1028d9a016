"""The toy task: count up from a digit. `make.py` writes its data, `reward.py` scores its answers.

A prompt is `start:count`, and the answer is `count` digits that go up by one from `start`, over 9 to 0:
`7:5` asks for `78901`. Each place wants another digit and the answer must end in time, so a policy that collapses
onto one token gets next to nothing, while one that is half right has a slope to climb.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

SHORTEST, LONGEST = 4, 9
LONGEST_ANSWER_TOKENS = LONGEST + 3  # room to be wrong about the end


@dataclass(frozen=True)
class Question:
    """One prompt of the toy task: `count` digits from `start` on."""

    start: int
    count: int

    @property
    def prompt(self) -> str:
        return f"{self.start}:{self.count}"

    @property
    def answer(self) -> str:
        return "".join(str((self.start + i) % 10) for i in range(self.count))


ALL_QUESTIONS = tuple(Question(start, count) for start in range(10) for count in range(SHORTEST, LONGEST + 1))


def questions(seed: int) -> Iterator[Question]:
    """Questions without end, the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        yield Question(rng.randrange(10), rng.randint(SHORTEST, LONGEST))


def half_right(question: Question, rng: random.Random, error_rate: float) -> str:
    """An answer as an untrained eye would give it: each digit is wrong with `error_rate`, the length now and then.

    The model is fitted to these before reinforcement learning starts, as a real run starts from a model that can
    already do something: its reward is well above zero and well below one, and its entropy has a way to go.
    """
    digits = [str(rng.randrange(10)) if rng.random() < error_rate else digit for digit in question.answer]
    if rng.random() < error_rate:
        digits = digits[: max(1, len(digits) - rng.randint(1, 2))] if rng.random() < 0.5 else [*digits, digits[-1]]
    return "".join(digits)
