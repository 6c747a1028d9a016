"""Batched sampling from a Hugging Face causal language model; the rollout server calls it in a thread.

Kept apart from the server so that what a batch of prompts returns can be tested without Ray and without verl.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Completion:
    """One sampled response: its token ids, end token included if it came, and each one's log-probability."""

    token_ids: list[int]
    log_probs: list[float]
    finished: bool


def usable_logits(logits: torch.Tensor) -> torch.Tensor:
    """`logits` as float32 with no NaN and no infinity.

    A policy with NaN in its weights gives NaN logits. A production engine does not fall over then: its kernels pick
    some token, and the request succeeds with garbage. `torch.multinomial` raises instead, which would turn a training
    fault into a rollout fault; so NaN counts as 0 (all tokens alike) and infinities as very large numbers.
    """
    return torch.nan_to_num(logits.float(), nan=0.0, posinf=1e4, neginf=-1e4)


def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float,
    pad_token_id: int,
    eos_token_id: int,
    generator: torch.Generator | None = None,
) -> list[Completion]:
    """Samples one response for each prompt, all in one batch, padded on the left.

    `model` is called as a `transformers` causal language model, with a key-value cache. `temperature` 0 takes the most
    likely token; the log-probabilities are those of the distribution that was sampled from (temperature 1 for 0).
    A response ends with `eos_token_id` or after `max_tokens` tokens. Raises ValueError for an empty batch or prompt.
    """
    if not prompts or not all(prompts):
        raise ValueError(f"a batch needs at least one prompt and no empty one, got lengths {[len(p) for p in prompts]}")
    count, width = len(prompts), max(map(len, prompts))
    ids = torch.tensor([[pad_token_id] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache: Any = None
    tokens: list[torch.Tensor] = []
    log_probs: list[torch.Tensor] = []
    done = torch.zeros(count, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(max_tokens):
            answer = model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            cache = answer.past_key_values
            logits = usable_logits(answer.logits[:, -1])
            distribution = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
            if temperature:
                chosen = torch.multinomial(distribution.exp(), 1, generator=generator).squeeze(-1)
            else:
                chosen = logits.argmax(dim=-1)
            tokens.append(chosen)
            log_probs.append(distribution.gather(-1, chosen.unsqueeze(-1)).squeeze(-1))
            done |= chosen.eq(eos_token_id)
            if bool(done.all()):
                break
            ids = chosen.unsqueeze(-1)
            mask = torch.cat([mask, torch.ones(count, 1, dtype=mask.dtype)], dim=-1)
            positions = positions[:, -1:] + 1
    rows = torch.stack(tokens, dim=1).tolist()
    probabilities = torch.stack(log_probs, dim=1).tolist()
    return [_cut(row, values, eos_token_id) for row, values in zip(rows, probabilities, strict=True)]


def _cut(row: list[int], log_probs: list[float], eos_token_id: int) -> Completion:
    """The batch goes on until its last row has ended: what a row got after its own end is dropped."""
    finished = eos_token_id in row
    length = row.index(eos_token_id) + 1 if finished else len(row)
    return Completion(row[:length], log_probs[:length], finished)
