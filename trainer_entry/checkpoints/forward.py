"""One forward step on the CPU with a checkpoint's weights. Called by :mod:`.loading`, in its process.

The model is built from the ``huggingface/`` configuration that verl saves beside the shards, and filled with the merged
shards: those are what a resume would load. Eight tokens go through it; its output must be finite.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from typing import Any

from trainer_entry.checkpoints.loading import Refused, all_finite, load
from trainer_entry.checkpoints.shards import merged

TOKENS = 8
_MARGIN_BYTES = 2 << 30


def forward_step(torch: Any, directory: str, component: str, ranks: int) -> None:
    """Raises Refused: what is wrong, or why it cannot be tried here. ``component``: ``actor``, ``critic`` or empty."""
    prefix = f"{component}/" if component else ""
    names = [f"{prefix}model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
    _enough_memory(directory, names)
    weights = merged(torch, [load(torch, directory, name) for name in names], prefix)
    adapters = next((key for key in weights if "lora_" in key or ".adapter_" in key), None)
    if adapters is not None:
        raise Refused("not_tried", f"{prefix or 'The model'} has adapters ({adapters}); those are loaded but not run.")
    model = _model(torch, os.path.join(directory, component, "huggingface"), prefix, weights)
    _fill(torch, model, weights, prefix)
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)
    tokens = torch.arange(1, TOKENS + 1).remainder(max(2, vocabulary)).unsqueeze(0)
    try:
        with torch.inference_mode():
            output = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
    except MemoryError as error:
        raise Refused("not_tried", "There is not enough memory for a forward step.") from error
    except Exception as error:
        raise Refused(
            "not_runnable", f"The model of {prefix or 'the checkpoint'} cannot make a step: {error}"
        ) from error
    if not all_finite(torch, output):
        raise Refused("not_finite", f"The output of the model of {prefix or 'the checkpoint'} is NaN or infinite.")


def _enough_memory(directory: str, names: list[str]) -> None:
    """Weights of one rank stay mapped; those of more are copied together."""
    size = sum(os.path.getsize(os.path.join(directory, name)) for name in names)
    needed = _MARGIN_BYTES + (size if len(names) > 1 else 0)
    free = available_bytes()
    if free is not None and needed > free:
        raise Refused(
            "not_tried",
            f"A forward step needs about {needed / 2**30:.0f} GiB of memory, and {free / 2**30:.1f} GiB are free here.",
        )


def available_bytes() -> int | None:
    """Memory that can be had: of the machine, and of the cgroup where that is less; None where neither tells."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as file:
        found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            found.append(max(0, limit - int(file.read())))
    return min(found, default=None)


def _model(torch: Any, folder: str, prefix: str, weights: dict[str, Any]) -> Any:
    """The empty model. Its parameters take no memory yet; its buffers, which no shard holds, are real."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            described = json.load(file)
    except (OSError, ValueError) as error:
        raise Refused("not_runnable", f"{prefix}huggingface/config.json cannot be read: {error}.") from error
    if not isinstance(described, dict) or described.get("auto_map"):
        raise Refused("not_tried", f"The model of {prefix or 'the checkpoint'} has code of its own, which is not run.")
    try:
        import transformers
    except ImportError as error:
        raise Refused(
            "not_tried", f"transformers cannot be imported ({error}); use the trainer's interpreter."
        ) from error
    kind = _kind(transformers, described, weights, prefix)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        if "score.weight" in weights:
            config.num_labels = int(weights["score.weight"].shape[0])
        with _without_weights():
            return kind.from_config(config, attn_implementation="eager").eval()
    except Exception as error:
        raise Refused(
            "not_runnable", f"The model of {prefix}huggingface/config.json cannot be built: {error}"
        ) from error


def _kind(transformers: Any, described: dict[str, Any], weights: dict[str, Any], prefix: str) -> Any:
    """The class of model. A critic's configuration names its base model; its weights say that it gives one number."""
    if "score.weight" in weights:
        return transformers.AutoModelForTokenClassification
    named = " ".join(str(name) for name in described.get("architectures") or [])
    if "ForConditionalGeneration" in named:
        return transformers.AutoModelForImageTextToText
    if "ForCausalLM" in named:
        return transformers.AutoModelForCausalLM
    raise Refused("not_tried", f"No forward step is known for {prefix}{named or 'a model without a class'}.")


def _without_weights() -> Any:
    try:
        accelerate = importlib.import_module("accelerate")
    except ImportError:
        return contextlib.nullcontext()
    return accelerate.init_empty_weights(include_buffers=False)


def _fill(torch: Any, model: Any, weights: dict[str, Any], prefix: str) -> None:
    where = prefix or "the checkpoint"
    try:
        wrong = model.load_state_dict(weights, strict=False, assign=True)
        model.tie_weights()
    except Exception as error:
        raise Refused("not_runnable", f"The weights of {where} do not fit its model: {str(error)[:300]}") from error
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty:
        raise Refused("not_runnable", f"The weight {empty[0]} is in no shard of {where} ({len(empty)} are missing).")
    if wrong.unexpected_keys:
        raise Refused(
            "not_runnable", f"The shards of {where} hold {wrong.unexpected_keys[0]}, which its model does not have."
        )
