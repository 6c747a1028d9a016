"""verl's side of the CPU rollout, registered under the name `hfcpu` (`actor_rollout_ref.rollout.name=hfcpu`).

Three classes, as verl has them for every engine: the server actor that samples, the replica that launches it, and the
adapter that lives in the training worker and sends it the new weights after each step.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from trainer_entry.cpu.sampling import Completion, sample
from trainer_entry.cpu.server import BatchingQueue, token_budget


def _actor_name(replica_rank: int) -> str:
    return f"hfcpu_server_{replica_rank}"


class RolloutServer:
    """The actor: a Hugging Face model on the CPU behind the calls verl makes to a rollout engine."""

    def __init__(self, config: Any, model_path: str, replica_rank: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._config = config
        self._tokenizer = AutoTokenizer.from_pretrained(model_path)
        self._model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self._generator = torch.Generator().manual_seed(int(getattr(config, "seed", 0) or 0) + replica_rank)
        self._queue = BatchingQueue(self._sample)
        self._global_steps: int | None = None

    async def ready(self) -> bool:
        return True

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        image_data: object = None,
        video_data: object = None,
        **_: object,
    ) -> TokenOutput:
        """Samples one response. `request_id` and media are what other engines need; a text model uses neither."""
        budget = token_budget(
            sampling_params, len(prompt_ids), self._config.prompt_length, self._config.response_length
        )
        completion = await self._queue.submit(prompt_ids, float(sampling_params.get("temperature", 1.0)), budget)
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self._global_steps},
        )

    def _sample(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> list[Completion]:
        return sample(
            self._model,
            prompts,
            max_tokens=max_tokens,
            temperature=temperature,
            pad_token_id=self._tokenizer.pad_token_id,
            eos_token_id=self._tokenizer.eos_token_id,
            generator=self._generator,
        )

    async def load_weights(self, state: Mapping[str, torch.Tensor], global_steps: int | None) -> None:
        """Takes the policy of training step `global_steps`. Raises KeyError for weights the model does not have."""
        result = self._model.load_state_dict(state, strict=False)
        if result.unexpected_keys:
            raise KeyError(f"the rollout model has no weights named {result.unexpected_keys}")
        if global_steps is not None:
            self._global_steps = global_steps

    async def _nothing(self, *_: object, **__: object) -> None:
        """Memory, cache and profiling calls of engines on a GPU: this one has nothing to release or resume."""

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = _nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """Launches the server actor; one a replica, no matter how many workers share the replica."""

    async def launch_servers(self) -> None:
        # a DictConfig when verl starts hybrid replicas, verl's own dataclass otherwise; both know `get`
        path = self.model_config.get("local_path", None) or self.model_config["path"]
        server = (
            ray.remote(RolloutServer)
            .options(name=_actor_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency)
            .remote(self.config, path, self.replica_rank)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"hfcpu-{self.replica_rank}"


class ServerAdapter(BaseRollout):  # type: ignore[misc]
    """In the training worker: hands each new policy to the replica's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: object) -> None:
        super().__init__(config, model_config, device_mesh)
        ranks = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        rank = int(os.environ["RANK"])
        self._replica_rank = rank // ranks if replica_rank == -1 else replica_rank
        self._leads_replica = rank % ranks == 0
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None:
        return None

    async def release(self) -> None:
        return None

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: object,
    ) -> None:
        """Sends all weights in one message. Every rank must drain the generator: it gathers the shards."""
        state = {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in weights}
        if not self._leads_replica:
            return
        if self._server is None:
            self._server = ray.get_actor(_actor_name(self._replica_rank))
        await self._server.load_weights.remote(state, global_steps)
