"""Checkpoints as verl leaves them, for tests: bytes in the right places, or a real small model saved by torch."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

KINDS = ("model", "optim", "extra_state")


def ppo(root: Path, step: int, *, ranks: int = 2, critic: bool = False, seed: str = "a") -> Path:
    """As verl's PPO trainers leave it."""
    directory = root / f"global_step_{step}"
    for component in ("actor", "critic") if critic else ("actor",):
        folder = directory / component
        (folder / "huggingface").mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            for rank in range(ranks):
                (folder / f"{kind}_world_size_{ranks}_rank_{rank}.pt").write_bytes(f"{seed}{step}".encode() * 500)
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
        (folder / "huggingface" / "config.json").write_text("{}")
    (directory / "data.pt").write_bytes(b"position")
    return directory


def sft(root: Path, step: int, *, ranks: int = 1, data_ranks: int = 1) -> Path:
    """As verl's SFT trainer leaves it."""
    directory = root / f"global_step_{step}"
    directory.mkdir(parents=True)
    for kind in KINDS:
        for rank in range(ranks):
            (directory / f"{kind}_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"w" * 700)
    (directory / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    for rank in range(data_ranks):
        (directory / f"data_{rank}.pt").write_bytes(b"position")
    return directory


def long_ago(directory: Path, seconds: float = 3600.0) -> Path:
    """Make it look untouched for a while, so that it is not taken for one that is being written."""
    then = directory.stat().st_mtime - seconds
    for base, _, names in os.walk(directory):
        for path in (base, *(os.path.join(base, name) for name in names)):
            os.utime(path, (then, then), follow_symlinks=False)
    return directory


def trained(folder: Path, *, ranks: int = 1) -> Path:
    """A tiny real model and its optimizer, sharded by FSDP2 over ``ranks`` and saved as verl's manager saves.

    Returns ``folder/global_step_7`` in the layout of SFT. One process plays all ranks, one after the other: cutting
    and saving need no word from the others.
    """
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory = folder / "global_step_7"
    directory.mkdir(parents=True)
    # An odd vocabulary, so that FSDP's cut is uneven.
    config = Qwen2Config(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    for rank in range(ranks):
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = Qwen2ForCausalLM(config)
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",)))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            rng = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
            extra = {"lr_scheduler": {"last_epoch": 7, "_last_lr": [1e-3]}, "rng": rng}
            for kind, state in (
                ("model", model.state_dict()),
                ("optim", optimizer.state_dict()),
                ("extra_state", extra),
            ):
                torch.save(state, directory / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
        torch.save({"_num_yielded": 7, "_iterator_finished": False}, directory / f"data_{rank}.pt")
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(directory / "huggingface")
    (directory / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    return directory
