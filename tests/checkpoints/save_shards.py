"""One rank of a tiny training step with FSDP2, saved as verl's checkpoint manager saves; run by ``checkpoint_made``."""

from __future__ import annotations

import json
import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM


def main(directory: str, rank: int, ranks: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    torch.manual_seed(0)
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
    model = Qwen2ForCausalLM(config)
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.arange(8).unsqueeze(0)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    extra = {
        "lr_scheduler": {"last_epoch": 7, "_last_lr": [1e-3]},
        "rng": {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()},
    }
    for kind, state in (("model", model.state_dict()), ("optim", optimizer.state_dict()), ("extra_state", extra)):
        torch.save(state, os.path.join(directory, f"{kind}_world_size_{ranks}_rank_{rank}.pt"))
    torch.save({"_num_yielded": 7, "_iterator_finished": False}, os.path.join(directory, f"data_{rank}.pt"))
    if rank == 0:
        config.architectures = ["Qwen2ForCausalLM"]
        config.save_pretrained(os.path.join(directory, "huggingface"))
        with open(os.path.join(directory, "fsdp_config.json"), "w", encoding="utf-8") as file:
            json.dump({"FSDP_version": 2, "world_size": ranks}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
