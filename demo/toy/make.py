"""Makes what the toy run trains on: a tiny Qwen2 model, its tokenizer, and data for RL and SFT.

`make(folder)` takes some seconds the first time and nothing after that; the demo and the trainer tests call it.
Everything comes from a seed, so two machines with the same torch make the same files.
"""

import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from demo.toy.task import ALL_QUESTIONS, Question, half_right, questions

RECIPE = "2"  # changes whenever what this module writes would change: an older folder is then made anew
TRAIN_ROWS, VALIDATION_ROWS = 512, 16
ERROR_RATE = 0.35
FIT_STEPS, FIT_BATCH = 300, 64
SPECIAL_TOKENS = ("<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
)


@dataclass(frozen=True)
class Toy:
    """Where the toy model and its data lie."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def data(self, kind: str, split: str) -> Path:
        """`kind` is `rl` or `sft`, `split` is `train` or `test`."""
        return self.folder / "data" / f"{kind}_{split}.parquet"


def make(folder: Path) -> Toy:
    """The toy in `folder`, made there if it is missing or of an older recipe.

    Written beside and renamed, so that a half-made toy is never used. Raises OSError when `folder` cannot be written.
    """
    toy = Toy(folder.absolute())
    stamp = toy.folder / "recipe"
    if stamp.is_file() and stamp.read_text() == RECIPE:
        return toy
    if toy.folder.exists() and not stamp.is_file():
        raise FileExistsError(f"{toy.folder} is there and holds no toy: name another folder, or remove it yourself.")
    fresh = Toy(toy.folder.with_name(f"{toy.folder.name}.making-{os.getpid()}"))
    try:
        (fresh.folder / "data").mkdir(parents=True)
        _write_model(fresh)
        _write_data(fresh)
        (fresh.folder / "recipe").write_text(RECIPE)
        if toy.folder.exists():
            shutil.rmtree(toy.folder)
        fresh.folder.rename(toy.folder)
    finally:
        shutil.rmtree(fresh.folder, ignore_errors=True)
    return toy


def _tokenizer() -> Any:
    """One token a character: newline, space and printable ASCII, with no merges; made without a network."""
    from transformers import Qwen2Tokenizer

    characters = ["\u010a", "\u0120"] + [chr(code) for code in range(33, 127)]
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate([*SPECIAL_TOKENS, *characters])},
        merges=[],
        unk_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        bos_token=None,
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _write_model(toy: Toy) -> None:
    """A random model of about 90,000 weights, fitted to half-right answers for a few seconds."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging as transformers_logging

    tokenizer = _tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more are slower at this size, and one gives the same sums everywhere
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(
                Qwen2Config(
                    vocab_size=len(SPECIAL_TOKENS) + 96,
                    hidden_size=64,
                    intermediate_size=128,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    max_position_embeddings=128,
                    tie_word_embeddings=False,
                    pad_token_id=tokenizer.pad_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                    bos_token_id=None,
                )
            )
            _fit(model, tokenizer)
    finally:
        torch.set_num_threads(threads)
    # Its progress bar for one small file would be the first thing that the demo shows.
    transformers_logging.disable_progress_bar()
    model.save_pretrained(toy.model)
    tokenizer.save_pretrained(toy.model)


def _fit(model: Any, tokenizer: Any) -> None:
    import torch

    rng = random.Random(1)
    source = questions(seed=1)
    prompts = {q.prompt: _prompt_ids(tokenizer, q) for q in ALL_QUESTIONS}  # tokenizing is most of the time otherwise
    digits = {digit: tokenizer.convert_tokens_to_ids(digit) for digit in "0123456789"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=FIT_STEPS)
    model.train()
    for _ in range(FIT_STEPS):
        rows = []
        for question in islice(source, FIT_BATCH):
            prompt = prompts[question.prompt]
            answer = [digits[digit] for digit in half_right(question, rng, ERROR_RATE)]
            rows.append(([*prompt, *answer, tokenizer.eos_token_id], len(prompt)))
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([[-100] * start + ids[start:] + [-100] * (width - len(ids)) for ids, start in rows])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def _prompt_ids(tokenizer: Any, question: Question) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question.prompt}], add_generation_prompt=True, tokenize=False
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _write_data(toy: Toy) -> None:
    for split, seed, count in (("train", 2, TRAIN_ROWS), ("test", 3, VALIDATION_ROWS)):
        chosen = list(islice(questions(seed), count))
        _write_table(toy.data("rl", split), rl_rows(chosen, split))
        _write_table(toy.data("sft", split), sft_rows(chosen))


def rl_rows(chosen: Sequence[Question], split: str) -> list[dict[str, Any]]:
    """Rows as verl's RL dataset reads them."""
    return [
        {
            "data_source": "toy/count",
            "prompt": [{"role": "user", "content": question.prompt}],
            "ability": "count",
            "reward_model": {"style": "rule", "ground_truth": question.answer},
            "extra_info": {"split": split, "index": index},
        }
        for index, question in enumerate(chosen)
    ]


def sft_rows(chosen: Sequence[Question]) -> list[dict[str, Any]]:
    """Rows as verl's multi-turn SFT dataset reads them: here the answers are right."""
    return [
        {
            "messages": [
                {"role": "user", "content": question.prompt},
                {"role": "assistant", "content": question.answer},
            ]
        }
        for question in chosen
    ]


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
