"""Settings files of executors: what is right is read, and what is wrong is a sentence that says what and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer_entry.executors.configuration import read_ray, read_slurm
from trainer_entry.executors.interface import ExecutorError


def file(folder: Path, content: Any, name: str = "settings.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_everything_may_be_left_out(tmp_path: Path) -> None:
    assert read_ray("") == read_ray(file(tmp_path, {}))
    assert read_slurm("") == read_slurm(file(tmp_path, "", "empty.yml"))


def test_yaml_and_paths_beside_the_file(tmp_path: Path) -> None:
    text = "address: https://head:8265/\ntoken_file: token\nruntime_env: {working_dir: code}\nentrypoint_num_cpus: 1\n"
    given = read_ray(file(tmp_path, text, "ray.yml"))
    assert given.address == "https://head:8265"
    assert given.token_file == str(tmp_path / "token")
    assert given.runtime_env == {"working_dir": str(tmp_path / "code")}
    assert given.options == {"entrypoint_num_cpus": 1}
    words = read_slurm(file(tmp_path, "sbatch: [--gpus=8, --time, 60]\nrequeue: true\n", "slurm.yml"))
    assert (words.sbatch, words.requeue) == (("--gpus=8", "--time", "60"), True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"adress": "http://h:1"}, "'adress' is no setting of this executor; did you mean address?"),
        ({"address": "ray://h:10001"}, "address is 'ray://h:10001'; expected the dashboard's base URL"),
        ({"address": "http://me:secret@h:1"}, "address holds a user name or password; name a token_file instead."),
        ({"address": 5}, "address is 5; expected"),
        ({"poll_seconds": 0}, "poll_seconds is 0; expected seconds from 0.1 to 60."),
        ({"poll_seconds": True}, "poll_seconds is True; expected seconds"),
        ({"entrypoint_num_gpus": -1}, "entrypoint_num_gpus is -1; expected a number from 0."),
        ({"entrypoint_resources": {"a": "b"}}, "entrypoint_resources is {'a': 'b'}; expected names with values."),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "env_vars to be names with texts as values"),
        ({"runtime_env": {"env_vars": {"HF_TOKEN": "x"}}}, "HF_TOKEN looks like a secret"),
        ([], "holds []; expected keys and values"),
        ("{", "is not JSON."),
        ("\udcff", "is not"),
        ("x" * 300_000, "is larger than 262144 bytes"),
    ],
)
def test_what_is_wrong_for_ray_is_a_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "settings.json"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ExecutorError) as caught:
        read_ray(str(path))
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"sbatch": "--gpus=8"}, "sbatch is '--gpus=8'; expected a list of words"),
        ({"sbatch": [["--gpus"]]}, "expected a list of words"),
        ({"sbatch": ["--job-name=x"]}, "--job-name is set here: it is the job's name."),
        ({"sbatch": ["-Jx"]}, "-J is set here: it is the job's name."),
        ({"sbatch": ["--requeue"]}, "say requeue: true in the settings"),
        ({"sbatch": ["--gpus=8\n--wrap=x"]}, "expected words of one line"),
        ({"requeue": "yes"}, "requeue is 'yes'; expected true or false."),
    ],
)
def test_what_is_wrong_for_slurm_is_a_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    with pytest.raises(ExecutorError) as caught:
        read_slurm(file(tmp_path, content))
    assert sentence in str(caught.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="cannot be read: No such file"):
        read_ray(str(tmp_path / "none.yml"))
