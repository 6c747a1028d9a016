"""The rollout server of the CPU platform: an async Ray actor that answers generation requests in batches.

verl's `LLMServerClient` calls `generate` once a request, as it calls vLLM's or SGLang's server. Requests that arrive
close together and want the same temperature and length are sampled as one batch in a thread, so that the actor goes
on taking requests meanwhile. The class holds no verl type: `rollout.py` wraps its answers.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_entry.cpu.sampling import Completion

BATCH_WAIT_SECONDS = 0.005  # requests of one step arrive within a few milliseconds of each other
LARGEST_BATCH = 64

Sampler = Callable[[Sequence[Sequence[int]], float, int], list[Completion]]
"""(prompts, temperature, max tokens) to one completion each, in the same order."""


@dataclass(frozen=True, eq=False)
class _Request:
    prompt: list[int]
    temperature: float
    max_tokens: int
    answer: "asyncio.Future[Completion]"

    @property
    def kind(self) -> tuple[float, int]:
        """Only requests of one kind can share a batch."""
        return (self.temperature, self.max_tokens)


class BatchingQueue:
    """Collects requests and runs `sampler` on batches of one kind, oldest first, one batch at a time."""

    def __init__(
        self, sampler: Sampler, wait_seconds: float = BATCH_WAIT_SECONDS, largest: int = LARGEST_BATCH
    ) -> None:
        self._sampler = sampler
        self._wait_seconds = wait_seconds
        self._largest = largest
        self._waiting: list[_Request] = []
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, prompt: Sequence[int], temperature: float, max_tokens: int) -> Completion:
        """The completion of `prompt`. Raises what the sampler raised for the batch the request was in."""
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(list(prompt), temperature, max_tokens, answer))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._wait_seconds)
            kind = self._waiting[0].kind
            batch = [request for request in self._waiting if request.kind == kind][: self._largest]
            taken = set(map(id, batch))
            self._waiting = [request for request in self._waiting if id(request) not in taken]
            try:
                completions = await asyncio.to_thread(self._sampler, [r.prompt for r in batch], *kind)
            except Exception as error:  # noqa: BLE001 - whatever the model raised belongs to those who asked
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            for request, completion in zip(batch, completions, strict=True):
                if not request.answer.done():  # the caller may have been cancelled meanwhile
                    request.answer.set_result(completion)


def token_budget(
    sampling_params: Mapping[str, Any], prompt_tokens: int, prompt_length: int, response_length: int
) -> int:
    """How many tokens a request may sample: what it asks for, or the configured response length, within the window."""
    asked = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or response_length
    return max(1, min(int(asked), prompt_length + response_length - prompt_tokens))
