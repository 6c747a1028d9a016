"""The Hydra overrides and the environment with which the stock verl trainers run the toy on two CPU cores.

The demo and the trainer tests call it. Overrides go to `python -m verl.trainer.main_ppo`, or to
`python -m trainer_entry.main_ppo`, which takes the same.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from demo.toy.make import Toy
from demo.toy.task import LONGEST_ANSWER_TOKENS

REPOSITORY = Path(__file__).resolve().parents[2]
REWARD = Path(__file__).resolve().with_name("reward.py")
_FULL_PRECISION = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"

BATCH_PROMPTS = 8
RESPONSES_PER_PROMPT = 4


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a toy trainer: `base`, and what makes verl run on the CPU, offline and quickly.

    The repository is put on PYTHONPATH because every process of the run must be able to import `demo`, whatever its
    working directory.
    """
    paths = [str(REPOSITORY), *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **base,
        "VERL_PLATFORM": "cpu",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        # Processes share two cores; a thread pool in each makes all of them slower.
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        # Ray starts one idle Python process per configured CPU at once; on two cores they delay those that are needed.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        # TransferQueue sizes its thread pools for a server, and warns at every call when there are fewer cores.
        "TQ_NUM_THREADS": "1",
        "TQ_CLIENT_ZMQ_IO_THREADS": "1",
    }


def _ppo(toy: Toy, checkpoints: Path, steps: int, save_every: int, validate_every: int) -> list[str]:
    """What GRPO and PPO have in common, on either trainer."""
    return [
        "trainer.device=cpu",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        # Logical numbers: what the placement group, the task runner and the loop workers ask Ray for.
        "+ray_kwargs.ray_init.num_cpus=12",
        "+ray_kwargs.ray_init.num_gpus=1",
        "+ray_kwargs.ray_init.include_dashboard=False",
        f"+ray_kwargs.ray_init.object_store_memory={128 * 1024 * 1024}",
        f"data.train_files={toy.data('rl', 'train')}",
        f"data.val_files={toy.data('rl', 'test')}",
        f"data.train_batch_size={BATCH_PROMPTS}",
        "data.max_prompt_length=16",
        f"data.max_response_length={LONGEST_ANSWER_TOKENS}",
        "data.dataloader_num_workers=0",
        "data.filter_overlong_prompts=False",
        f"actor_rollout_ref.model.path={toy.model}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        f"+actor_rollout_ref.actor.fsdp_config.mixed_precision={_FULL_PRECISION}",
        # Two updates a batch, so that the policy moves away from the one that sampled and actor/ppo_kl is not 0.
        f"actor_rollout_ref.actor.ppo_mini_batch_size={BATCH_PROMPTS // 2}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={BATCH_PROMPTS // 2 * RESPONSES_PER_PROMPT}",
        "actor_rollout_ref.actor.calculate_entropy=True",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.005",
        "actor_rollout_ref.ref.strategy=fsdp2",
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile=False",
        f"+actor_rollout_ref.ref.fsdp_config.mixed_precision={_FULL_PRECISION}",
        f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={BATCH_PROMPTS * RESPONSES_PER_PROMPT}",
        "actor_rollout_ref.rollout.name=hfcpu",
        "actor_rollout_ref.rollout.dtype=float32",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"actor_rollout_ref.rollout.n={RESPONSES_PER_PROMPT}",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        # Validation samples as training does: the most likely answer is nearly always right and would show nothing.
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={BATCH_PROMPTS * RESPONSES_PER_PROMPT}",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={REWARD}",
        "reward.custom_reward_function.name=compute_score",
        f"trainer.default_local_dir={checkpoints}",
        "trainer.logger=[console,file]",
        "trainer.project_name=toy",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=1000",
        f"trainer.save_freq={save_every}",
        f"trainer.test_freq={validate_every}",
        "trainer.val_before_train=False",
    ]


def v1_only() -> list[str]:
    """What the V1 trainer has and the legacy one does not."""
    return [
        "trainer.use_v1=True",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "trainer.v1.sampler.custom_sampler.path=pkg://trainer_entry.cpu.replay_buffer",
        "trainer.v1.sampler.custom_sampler.name=FastReplayBuffer",
    ]


def overrides(
    toy: Toy,
    checkpoints: Path,
    *,
    steps: int,
    use_v1: bool = True,
    critic: bool = False,
    save_every: int = 5,
    validate_every: int = 20,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> list[str]:
    """Overrides for GRPO on the toy, or PPO with a critic, on the V1 or the legacy trainer.

    `steps` is the last training step, `save_every` and `validate_every` count steps. `seed` shuffles the data and
    seeds the rollout (V1).
    """
    chosen = _ppo(toy, checkpoints, steps, save_every, validate_every)
    if use_v1:
        chosen += [*v1_only(), f"actor_rollout_ref.rollout.seed={seed}"]
    else:
        chosen.append("++trainer.use_v1=False")  # verl 0.8 has neither this key, which is added there, nor the seed
    chosen += [
        f"actor_rollout_ref.actor.optim.lr={learning_rate}",
        f"data.seed={seed + 1}",
        f"actor_rollout_ref.actor.data_loader_seed={seed}",
    ]
    if not critic:
        return [*chosen, "algorithm.adv_estimator=grpo", "trainer.experiment_name=grpo"]
    return [
        *chosen,
        "algorithm.adv_estimator=gae",
        "trainer.experiment_name=ppo",
        f"critic.model.path={toy.model}",
        f"critic.model.tokenizer_path={toy.model}",
        "critic.model.use_remove_padding=False",
        "critic.model.enable_gradient_checkpointing=False",
        "+critic.model.override_config.attn_implementation=sdpa",
        "critic.strategy=fsdp2",
        "critic.fsdp.use_torch_compile=False",
        f"+critic.fsdp.mixed_precision={_FULL_PRECISION}",
        f"critic.ppo_mini_batch_size={BATCH_PROMPTS // 2}",
        f"critic.ppo_micro_batch_size_per_gpu={BATCH_PROMPTS // 2 * RESPONSES_PER_PROMPT}",
        f"critic.forward_micro_batch_size_per_gpu={BATCH_PROMPTS * RESPONSES_PER_PROMPT}",
        "critic.optim.lr=1e-3",
    ]


def sft_overrides(toy: Toy, checkpoints: Path, *, steps: int, save_every: int = 5) -> list[str]:
    """Overrides for `torchrun --nproc_per_node=1 -m verl.trainer.sft_trainer`; it validates as often as it saves."""
    return [
        f"model.path={toy.model}",
        "model.use_remove_padding=False",
        "model.enable_gradient_checkpointing=False",
        "+model.override_config.attn_implementation=sdpa",
        "engine.strategy=fsdp2",
        "engine.use_torch_compile=False",
        f"+engine.mixed_precision={_FULL_PRECISION}",
        f"data.train_files={toy.data('sft', 'train')}",
        f"data.val_files={toy.data('sft', 'test')}",
        "data.train_batch_size=16",
        "data.micro_batch_size_per_gpu=8",
        "data.use_dynamic_bsz=False",
        "data.num_workers=0",
        "data.max_length=32",
        "optim.lr=1e-3",
        "trainer.device=cpu",
        f"trainer.default_local_dir={checkpoints}",
        "trainer.logger=[console,file]",
        "trainer.project_name=toy",
        "trainer.experiment_name=sft",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=10",
        f"trainer.save_freq={save_every}",
        f"trainer.test_freq={save_every}",
    ]
