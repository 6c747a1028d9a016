"""The demo's faults: inert unless asked for and in the first attempt, and each acts from its step on, not before."""

import asyncio
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from demo.faults import causes
from demo.faults.plan import Fault, Plan, plan_from
from demo.toy.overrides import REPOSITORY


def asked(tmp_path, **changes):
    return {
        "VERL_SENTINEL_DEMO_FAULT": "nan",
        "VERL_SENTINEL_DEMO_FAULT_STEP": "7",
        "VERL_SENTINEL_STATE_DIR": str(tmp_path),
        "VERL_SENTINEL_ATTEMPT": "1",
    } | changes


def test_a_fault_that_is_asked_for_is_planned(tmp_path):
    assert plan_from(asked(tmp_path)) == Plan(Fault.NAN, 7, tmp_path)


def test_nothing_is_planned_unless_asked_for(tmp_path):
    assert plan_from({}) is None
    assert plan_from(asked(tmp_path, VERL_SENTINEL_DEMO_FAULT="")) is None


def test_a_later_attempt_has_no_fault(tmp_path):
    assert plan_from(asked(tmp_path, VERL_SENTINEL_ATTEMPT="2")) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"VERL_SENTINEL_DEMO_FAULT": "meteor"}, "'meteor', which is no fault of the demo; it knows learning_rate"),
        ({"VERL_SENTINEL_DEMO_FAULT_STEP": ""}, "'' *; it must be the training step"),
        ({"VERL_SENTINEL_DEMO_FAULT_STEP": "0"}, "'0'; it must be the training step"),
        ({"VERL_SENTINEL_DEMO_FAULT_STEP": "-3"}, "'-3'; it must be the training step"),
        ({"VERL_SENTINEL_STATE_DIR": "/nowhere/at/all"}, "'/nowhere/at/all'; a fault needs it"),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused_with_a_sentence(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        plan_from(asked(tmp_path, **changes))


@pytest.mark.parametrize("attempt", [None, "2"])
def test_the_plugin_loads_nothing_and_hooks_nothing_when_inert(tmp_path, attempt):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL")}
    if attempt:
        environment |= asked(tmp_path, VERL_SENTINEL_ATTEMPT=attempt)
    check = (
        "import sys; before = list(sys.meta_path); import demo.faults; assert sys.meta_path == before;"
        "assert not {'torch', 'ray', 'verl', 'demo.faults.causes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], env=environment, cwd=REPOSITORY, check=True, timeout=60)


def test_the_fault_is_recorded_once_with_its_time_and_step(tmp_path):
    times = iter([100.5, 200.5])
    plan = Plan(Fault.CRASH, 3, tmp_path, clock=lambda: next(times))
    plan.begin_step(4)
    plan.record()
    plan.begin_step(5)
    plan.record()
    lines = (tmp_path / "fault.json").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"time": 100.5, "step": 4, "fault": "crash"}]


def test_a_fault_is_due_from_its_step_on(tmp_path):
    plan = Plan(Fault.CRASH, 3, tmp_path)
    due = [plan.due()]
    for step in (1, 2, 3, 4):
        plan.begin_step(step)
        due.append(plan.due())
    assert due == [False, False, False, True, True]


class Engine:
    """Stands for verl's FSDPEngine: what the causes wrap, and what they touch."""

    def __init__(self, module=None):
        self.module = module
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.5}, {"lr": 0.25}])
        self.rates_used = []
        self.forwards = 0

    def optimizer_step(self):
        self.rates_used.append([group["lr"] for group in self.optimizer.param_groups])

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        self.forwards += 1


def engine_with(cause, plan, module=None):
    engine_class = type("FSDPEngine", (Engine,), {})
    cause(plan, SimpleNamespace(FSDPEngine=engine_class))
    return engine_class(module)


def test_the_rate_is_raised_for_the_optimizer_and_not_for_the_scheduler(tmp_path):
    plan = Plan(Fault.LEARNING_RATE, 2, tmp_path)
    engine = engine_with(causes._raise_the_rate, plan)
    for step in (1, 2, 3):
        plan.begin_step(step)
        engine.optimizer_step()
        assert [group["lr"] for group in engine.optimizer.param_groups] == [0.5, 0.25]
    raised = [0.5 * causes.RATE_FACTOR, 0.25 * causes.RATE_FACTOR]
    assert engine.rates_used == [[0.5, 0.25], raised, raised]


def test_one_weight_becomes_nan_in_training_and_not_while_only_scoring(tmp_path):
    torch = pytest.importorskip("torch")
    plan = Plan(Fault.NAN, 2, tmp_path)
    module = torch.nn.Sequential(torch.nn.LayerNorm(3, bias=False), torch.nn.Linear(3, 2, bias=False))
    engine = engine_with(causes._spoil_a_weight, plan, module)

    def spoilt():
        return sum(int(weight.isnan().sum()) for weight in module.parameters())

    plan.begin_step(1)
    engine.forward_backward_batch(None, None)
    assert spoilt() == 0
    plan.begin_step(2)
    engine.forward_backward_batch(None, None, forward_only=True)
    assert spoilt() == 0
    engine.forward_backward_batch(None, None)
    engine.forward_backward_batch(None, None)
    assert spoilt() == 1
    assert engine.forwards == 4


class Server:
    async def generate(self, prompt):
        return prompt


def server_with(cause, plan):
    server_class = type("RolloutServer", (Server,), {})
    cause(plan, SimpleNamespace(RolloutServer=server_class))
    return server_class()


def test_a_hanging_server_takes_requests_and_never_answers(tmp_path):
    plan = Plan(Fault.HANG, 2, tmp_path)
    server = server_with(causes._stop_answering, plan)
    plan.begin_step(1)
    assert asyncio.run(server.generate("a")) == "a"
    plan.begin_step(2)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(server.generate("b"), timeout=0.2))
    assert (tmp_path / "fault.json").exists()


def test_a_share_of_the_requests_fails_and_the_rest_is_answered(tmp_path):
    plan = Plan(Fault.ROLLOUT_ERRORS, 2, tmp_path)
    server = server_with(causes._fail_a_share, plan)

    async def ask(count):
        return await asyncio.gather(*(server.generate(i) for i in range(count)), return_exceptions=True)

    plan.begin_step(1)
    assert asyncio.run(ask(100)) == list(range(100))
    plan.begin_step(2)
    answers = asyncio.run(ask(1000))
    failed = [a for a in answers if isinstance(a, RuntimeError)]
    assert len(failed) == pytest.approx(1000 * causes.FAILED_SHARE, rel=0.3)
    assert all(a == i for i, a in enumerate(answers) if not isinstance(a, RuntimeError))


def graded(change, plan, answer):
    class NaiveRewardManager:
        def __init__(self, compute_score):
            self.compute_score = compute_score

    causes._change_the_reward(change, plan, SimpleNamespace(NaiveRewardManager=NaiveRewardManager))
    manager = NaiveRewardManager(lambda data_source, solution_str: {"score": 0.5, "exact": 1.0})
    return manager.compute_score(data_source="toy", solution_str=answer)


@pytest.mark.parametrize(
    ("change", "answer", "after"),
    [
        (causes.blind, "3456", {"score": 0.0, "exact": 0.0}),
        (causes.paid_for_brevity, "3456", {"score": 1 - 4 / causes.LONG_ANSWER, "exact": 1.0}),
        (causes.paid_for_brevity, "3" * 40, {"score": 0.0, "exact": 1.0}),
    ],
)
def test_a_reward_function_gives_something_else_from_the_step_of_its_fault_on(tmp_path, change, answer, after):
    plan = Plan(Fault.BLIND_REWARD, 2, tmp_path)
    plan.begin_step(1)
    assert graded(change, plan, answer) == {"score": 0.5, "exact": 1.0}
    assert not (tmp_path / "fault.json").exists()
    plan.begin_step(2)
    assert graded(change, plan, answer) == pytest.approx(after)
    assert (tmp_path / "fault.json").exists()


def test_a_slow_reward_takes_longer_from_step_to_step_and_gives_the_same(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(causes.time, "sleep", slept.append)
    plan = Plan(Fault.SLOW_REWARD, 2, tmp_path)
    for step in (1, 2, 3, 4):
        plan.begin_step(step)
        assert graded(causes.slower, plan, "3456") == {"score": 0.5, "exact": 1.0}
    assert slept == pytest.approx([causes.SLOWER_SECONDS * steps for steps in (1, 2, 3)])


def test_the_worker_of_a_crash_dies_of_sigkill_at_its_step(tmp_path):
    script = (
        "import sys; from pathlib import Path; from types import SimpleNamespace as N;"
        "from demo.faults import causes; from demo.faults.plan import Fault, Plan;"
        "plan = Plan(Fault.CRASH, 2, Path(sys.argv[1]));"
        "engine = type('E', (), {'optimizer_step': lambda self: print('stepped', flush=True)});"
        "causes._kill_the_worker(plan, N(FSDPEngine=engine));"
        "[(plan.begin_step(step), engine().optimizer_step()) for step in (1, 2, 3)]"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9
    assert done.stdout == "stepped\n"
    assert json.loads((tmp_path / "fault.json").read_text())["step"] == 2


def test_the_step_is_told_by_the_trainer_before_its_own_work(tmp_path):
    plan = Plan(Fault.NAN, 2, tmp_path)
    seen = []

    class PPOTrainer:
        global_steps = 12

        def on_step_begin(self):
            seen.append(plan.current_step())

    causes._tell_the_step(plan, SimpleNamespace(PPOTrainer=PPOTrainer))
    PPOTrainer().on_step_begin()
    assert seen == [12]
