"""The CPU platform: inert unless asked for, and each patch changes the one thing it is for."""

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from demo.toy.overrides import REPOSITORY
from trainer_entry.cpu import patches
from trainer_entry.cpu.device import DEVICE


def run(code, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL")} | variables
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.mark.parametrize("platform", [None, "cuda", ""])
def test_the_plugin_does_nothing_unless_the_platform_is_asked_for(platform):
    variables = {} if platform is None else {"VERL_PLATFORM": platform}
    code = (
        "import sys, os; before = list(sys.meta_path), dict(os.environ); import trainer_entry.cpu;"
        "assert (list(sys.meta_path), dict(os.environ)) == before;"
        "assert not {'torch', 'ray', 'verl', 'trainer_entry.cpu.patches'} & set(sys.modules)"
    )
    run(code, **variables)


def test_verl_finds_the_platform_and_the_rollout_by_their_names():
    pytest.importorskip("verl")
    code = (
        "import verl, sys; from verl.utils.device import get_device_name, get_nccl_backend, get_torch_device;"
        "heavy = {'verl.workers.rollout.base', 'transformers.models.auto', 'trainer_entry.cpu.rollout'};"
        "loaded = heavy & set(sys.modules);"
        "from verl.workers.rollout.base import get_rollout_class;"
        "from verl.workers.rollout.replica import get_rollout_replica_class;"
        "print(get_device_name(), get_nccl_backend(), get_torch_device().is_available(), loaded,"
        " get_rollout_class('hfcpu').__name__, get_rollout_replica_class('hfcpu').__name__)"
    )
    assert run(code, VERL_PLATFORM="cpu").split("\n")[-2] == "cpu gloo False set() ServerAdapter CpuReplica"


def test_the_device_stand_in_answers_what_verl_asks_and_falls_back_to_torch():
    torch = pytest.importorskip("torch")
    assert isinstance(DEVICE, ModuleType)
    assert DEVICE.is_available() is False
    assert DEVICE.memory_allocated() == DEVICE.max_memory_reserved(0) == 0
    assert DEVICE.mem_get_info() == (0, 0)
    assert DEVICE.empty_cache() is None
    assert DEVICE.device_count is torch.cpu.device_count
    with pytest.raises(AttributeError):
        DEVICE.no_such_function  # noqa: B018 - the access is the test


@pytest.mark.parametrize(
    ("asked", "given"), [("cpu:gloo,cpu:gloo", "cpu:gloo"), ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"), (None, None)]
)
def test_a_process_group_names_each_device_once(asked, given):
    calls = []
    distributed = SimpleNamespace(init_process_group=lambda backend, **options: calls.append((backend, options)))
    patches._one_backend_per_device(distributed)
    patches._one_backend_per_device(distributed)  # verl's processes may arm the plugin twice
    distributed.init_process_group(backend=asked, rank=0)
    assert calls == [(given, {"rank": 0})]


def test_the_reference_policy_is_offloaded_without_pinning():
    engine = SimpleNamespace(CPUOffloadPolicy=lambda pin_memory=True: ("policy", pin_memory))
    patches._no_pinned_memory(engine)
    assert engine.CPUOffloadPolicy(pin_memory=True) == ("policy", False)


def test_the_critic_is_loaded_without_flash_attention_and_other_loads_are_left_alone(monkeypatch):
    transformers = pytest.importorskip("transformers")
    value_model = transformers.AutoModelForTokenClassification
    monkeypatch.setattr(value_model, "from_pretrained", lambda *args, **options: options["attn_implementation"])
    module = SimpleNamespace(
        load_valuehead_model=lambda: value_model.from_pretrained("x", attn_implementation="flash_attention_2")
    )
    patches._no_flash_attention_in_the_critic(module)
    assert module.load_valuehead_model() == "sdpa"
    assert value_model.from_pretrained("x", attn_implementation="flash_attention_2") == "flash_attention_2"
