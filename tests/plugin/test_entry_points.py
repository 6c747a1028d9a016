"""The drop-in entry points hand the run's identity to every process, and are verl's own in everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from demo.toy import environment
from trainer_entry import handing_on
from trainer_entry.handing_on import handed_on_by_ray, set_defaults, set_identity, to_hand_on
from trainer_entry.main_sft import single_rank
from trainer_entry.settings import SettingsError, default_state_dir, derive_run_id, read_settings

TRAINER = {"project_name": "gsm8k", "experiment_name": "grpo", "default_local_dir": "/ckpt/a"}


def test_without_a_url_the_exporter_on_this_machine_is_meant() -> None:
    environ: dict[str, str] = {}
    set_defaults(environ)
    assert environ == {"VERL_SENTINEL_URL": "http://127.0.0.1:9464"}


def test_off_stays_off() -> None:
    environ = {"VERL_SENTINEL_URL": "off"}
    set_defaults(environ)
    set_identity(environ, TRAINER)
    assert environ == {"VERL_SENTINEL_URL": "off"}
    assert to_hand_on(environ) == {}


def test_old_verl_gets_the_plugin_as_an_external_module_before_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_on.importlib.metadata, "version", lambda name: "0.8.0")
    environ = {"VERL_USE_EXTERNAL_MODULES": "mine"}
    set_defaults(environ)
    set_defaults(environ)
    assert environ["VERL_USE_EXTERNAL_MODULES"] == "trainer_entry.plugin,mine"
    assert "VERL_USE_EXTERNAL_MODULES" in to_hand_on(environ)


def test_a_restart_of_the_same_job_is_the_same_run_and_another_job_is_not() -> None:
    first, again, other = ({"VERL_SENTINEL_URL": "http://h"} for _ in range(3))
    set_identity(first, TRAINER)
    set_identity(again, TRAINER)
    set_identity(other, TRAINER | {"default_local_dir": "/ckpt/b"})
    assert first["VERL_SENTINEL_RUN_ID"] == again["VERL_SENTINEL_RUN_ID"] != other["VERL_SENTINEL_RUN_ID"]
    assert first["VERL_SENTINEL_ATTEMPT"] == "1"
    assert first["VERL_SENTINEL_STATE_DIR"] == str(default_state_dir(first["VERL_SENTINEL_RUN_ID"]))


def test_what_the_supervisor_set_stays() -> None:
    given = {"VERL_SENTINEL_URL": "http://h", "VERL_SENTINEL_RUN_ID": "mine", "VERL_SENTINEL_ATTEMPT": "3"}
    environ = given | {"VERL_SENTINEL_STATE_DIR": "/state"}
    before = dict(environ)
    set_identity(environ, TRAINER)
    assert environ == before


def test_a_run_id_from_any_names_is_one_that_settings_accept() -> None:
    for project, experiment in (("", ""), ("日本", "実験"), ("a/b", "../../c"), ("x" * 500, "y"), ("-.", "_")):
        run_id = derive_run_id(project, experiment, "c")
        settings = read_settings({"VERL_SENTINEL_URL": "http://h", "VERL_SENTINEL_RUN_ID": run_id})
        assert settings is not None
        assert settings.run_id == run_id


def test_a_variable_that_cannot_be_used_stops_before_training() -> None:
    with pytest.raises(SettingsError, match="VERL_SENTINEL_ATTEMPT is 'x'"):
        set_defaults({"VERL_SENTINEL_ATTEMPT": "x"})


@pytest.fixture
def initialized(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a stand-in for ray.init was called with. Ray's insides are out of reach, loaded by another test or not, so
    whether a cluster is started here is not known, and the token is told.
    """
    monkeypatch.setitem(sys.modules, "ray._private", None)
    calls: list[dict[str, Any]] = []
    ray = ModuleType("ray")
    ray.init = lambda *args, **kwargs: calls.append(kwargs)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    return calls


def test_workers_on_other_nodes_get_the_variables_and_the_users_own_win(initialized: list[dict[str, Any]]) -> None:
    import ray

    environ = {"VERL_SENTINEL_URL": "http://h", "VERL_SENTINEL_TOKEN": "t", "OTHER": "x"}
    original = ray.init
    with handed_on_by_ray(environ):
        ray.init(num_cpus=1, runtime_env={"working_dir": None, "env_vars": {"A": "1", "VERL_SENTINEL_URL": "http://u"}})
        ray.init()
    assert initialized[0] == {
        "num_cpus": 1,
        "runtime_env": {
            "working_dir": None,
            "env_vars": {"VERL_SENTINEL_URL": "http://u", "VERL_SENTINEL_TOKEN": "t", "A": "1"},
        },
    }
    assert initialized[1]["runtime_env"]["env_vars"] == {"VERL_SENTINEL_URL": "http://h", "VERL_SENTINEL_TOKEN": "t"}
    assert ray.init is original


def test_a_cluster_that_is_started_here_inherits_the_token_and_rays_logs_are_not_given_it() -> None:
    """Whether one is started is what the real Ray says."""
    asked = {"VERL_SENTINEL_URL": "http://h", "VERL_SENTINEL_TOKEN": "t"}
    own = initialized_by(asked, "ray.init(address='local')")
    assert own == {"VERL_SENTINEL_URL": "http://h"}
    joined = initialized_by(asked, "ray.init(address='127.0.0.1:6379')")
    assert joined == {"VERL_SENTINEL_URL": "http://h", "VERL_SENTINEL_TOKEN": "t"}


def initialized_by(environ: dict[str, str], call: str) -> dict[str, str]:
    """The variables that the real ray.init is called with; it is not run."""
    code = f"""
import json, sys, ray
from trainer_entry.handing_on import handed_on_by_ray
ray.init = lambda *args, **kwargs: print(json.dumps(kwargs["runtime_env"]["env_vars"]))
with handed_on_by_ray(json.loads(sys.argv[1])):
    {call}
"""
    done = subprocess.run([sys.executable, "-c", code, json.dumps(environ)], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_what_ray_job_submit_brought_is_not_given_twice() -> None:
    job = {"runtime_env": {"env_vars": {"VERL_SENTINEL_URL": "http://h"}}}
    environ = {
        "VERL_SENTINEL_URL": "http://h",
        "VERL_SENTINEL_RUN_ID": "r",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job),
    }
    assert to_hand_on(environ) == {"VERL_SENTINEL_RUN_ID": "r"}


def test_sft_without_a_launcher_is_one_rank_and_under_torchrun_what_torchrun_says() -> None:
    alone: dict[str, str] = {}
    single_rank(alone)
    assert (alone["RANK"], alone["WORLD_SIZE"], alone["LOCAL_RANK"]) == ("0", "1", "0")
    assert int(alone["MASTER_PORT"]) > 0
    launched = {"RANK": "3", "WORLD_SIZE": "8"}
    single_rank(launched)
    assert launched == {"RANK": "3", "WORLD_SIZE": "8"}


@pytest.mark.trainer
def test_help_and_exit_codes_are_hydras_own(tmp_path: Path) -> None:
    variables = environment(os.environ) | {"VERL_SENTINEL_URL": "off"}

    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    watched, stock = run("trainer_entry.main_ppo", "--help"), run("verl.trainer.main_ppo", "--help")
    assert (watched.returncode, watched.stdout) == (stock.returncode, stock.stdout)
    assert "Powered by Hydra" in watched.stdout
    wrong = run("trainer_entry.main_ppo", "trainer.no_such_key=1")
    assert wrong.returncode == 1
    assert "no_such_key" in wrong.stderr


@pytest.mark.parametrize("module", ["main_ppo", "main_sft"])
def test_without_verl_an_entry_point_says_so_in_a_sentence(module: str) -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'verl':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"from trainer_entry.{module} import main\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"verl-sentinel: verl is not installed for {sys.executable}")
    assert "Traceback" not in result.stderr
