"""Changes: what may be asked for, how rungs add up, how they reach Hydra, and which GPUs are left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.protocol import Changes, Excluded, Scalar
from trainer_entry.changes import ChangeError, changes_of, checked, describe, merged, parse_setting, words_of
from trainer_entry.changes.configuration import difference, merged_with
from trainer_entry.changes.machines import Gpu, devices_without, joins_a_cluster, local_variables, needed_gpus
from trainer_entry.changes.sources import from_manifest, parsed
from trainer_entry.changes.words import hydra_value, with_interpreter, with_settings

RATE = "actor_rollout_ref.actor.optim.lr"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (Changes(settings={"trainer.resume_mode": "disable"}), "the supervisor decides where a run starts from"),
        (Changes(settings={"trainer.resume_from_path": "/x"}), "the supervisor decides where a run starts from"),
        (Changes(removed=["trainer.default_local_dir"]), "the supervisor decides where a run starts from"),
        (Changes(settings={"hydra.run.dir": "/tmp/x"}), "it is a setting of Hydra"),
        (Changes(settings={"a b;$(touch x)": 1}), "is no key of a configuration"),
        (Changes(settings={"a" * 300: 1}), "is no key of a configuration"),
        (Changes(settings={"a.b": "${oc.env:TOKEN}"}), "which Hydra would read"),
        (Changes(settings={"a.b": "one\ntwo"}), "which Hydra would read"),
        (Changes(settings={"a.b": "x\0y"}), "which Hydra would read"),
        (Changes(settings={"a.b": float("nan")}), "which no training can use"),
        (Changes(settings={"a.b": "x" * 5000}), "is longer than 2000 characters"),
        (Changes(settings={"trainer": 1}), "the supervisor decides where a run starts from"),
        (Changes(removed=["trainer"]), "the supervisor decides where a run starts from"),
        (Changes(settings={"optim.lr": "nan"}), "a learning rate is a number"),
        (Changes(settings={"actor_rollout_ref.actor.optim.lr": "fast"}), "a learning rate is a number"),
        (Changes(settings={"actor_rollout_ref.actor.optim.lr": -1e-6}), "a learning rate is a number"),
        (Changes(settings={f"k{n}": n for n in range(500)}), "that is another run, not this one"),
        (Changes(settings={f"k{n}": "x" * 1900 for n in range(40)}), "are larger than 60000 bytes together"),
        (Changes(settings={"a.b": 1}, removed=["a.b"]), "to be changed and to be taken out at once"),
        (Changes(verl_version="0.9.1; rm -rf /"), "is no version of verl"),
        (Changes(verl_version="../.."), "is no version of verl"),
        (Changes(exclude=[Excluded(node="$(id)")]), "is no name, address or id of a machine"),
        (Changes(exclude=[Excluded(node="-x")]), "is no name, address or id of a machine"),
        (Changes(exclude=[Excluded(node="a", gpu="0,1")]), "is no index or UUID of a GPU"),
        (Changes(exclude=[Excluded(node=f"n{n}") for n in range(100)]), "More than 64 machines"),
        (Changes(skip_steps=-1), "is no number of batches to skip"),
        (Changes(skip_steps=10**9), "is no number of batches to skip"),
    ],
)
def test_what_may_not_be_changed_is_refused_with_a_sentence(changes: Changes, why: str) -> None:
    with pytest.raises(ChangeError) as error:
        checked(changes)
    assert why in str(error.value)
    assert str(error.value).endswith(".")


def test_a_later_rung_replaces_what_it_names_and_leaves_the_rest() -> None:
    config = merged(Changes(), Changes(settings={"a": 1, "b": "x"}, removed=["c"], skip_steps=4))
    version = merged(config, Changes(verl_version="0.9.0"))
    assert version == Changes(settings={"a": 1, "b": "x"}, removed=["c"], verl_version="0.9.0")
    back = merged(version, Changes(settings={"c": 2}, removed=["a"]))
    assert back == Changes(settings={"b": "x", "c": 2}, removed=["a"], verl_version="0.9.0")


def test_machines_add_up_and_a_whole_one_stands_for_its_gpus() -> None:
    one = merged(Changes(), Changes(exclude=[Excluded(node="a", gpu="1"), Excluded(node="b", gpu="2")]))
    two = merged(one, Changes(exclude=[Excluded(node="a", reason="it fell over"), Excluded(node="b", gpu="2")]))
    assert [(each.node, each.gpu) for each in two.exclude] == [("b", "2"), ("a", "")]


AWKWARD: list[Scalar] = [
    "it's",
    'say "x"',
    "a b",
    "end\\",
    "a\\'b",
    "\\\\server\\x",
    "1e-5",
    "true",
    "null",
    "",
    " x ",
    "a,b",
    "a=b",
    "~x",
    "#c",
    "$HOME",
    "日本",
    "[x",
    "{",
    '["a", 1, null, {"k": "v\'"}]',
    "{}",
    0,
    -3,
    True,
    False,
    None,
    1e-05,
    5e-324,
    0.1,
    123456789012345,
]


@pytest.mark.parametrize("value", AWKWARD)
def test_hydra_reads_back_what_was_meant(value: Scalar) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    found = parser.parse_override(f"++a.b={hydra_value(value)}").value()
    text = getattr(found, "text", found)
    wanted: Any = value
    if isinstance(value, str) and value in ('["a", 1, null, {"k": "v\'"}]', "{}"):
        wanted, text = json.loads(value), json.loads(json.dumps(found, default=lambda quoted: quoted.text))
    assert (text, type(text)) == (wanted, type(wanted))


@pytest.mark.parametrize("value", AWKWARD)
def test_a_script_is_told_the_same_value(value: Scalar) -> None:
    changes = Changes(settings={"a.b": value})
    [word] = words_of(changes)
    assert word.startswith("--set=a.b=")
    key, found = parse_setting(word.removeprefix("--set="))
    assert (key, found, type(found)) == ("a.b", value, type(value))


def test_the_composed_configuration_has_the_changes_and_lacks_what_was_taken_out() -> None:
    hydra = pytest.importorskip("hydra")
    from omegaconf import OmegaConf

    given = ["python", "-m", "x", "optim.lr=0.1", "+new.key=1", "++maybe.key=2", "data.files=[a,b]"]
    changes = Changes(
        settings={"optim.lr": 5e-7, "added.name": "it's", "data.files": '["c"]'},
        removed=["optim.decay", "new.key", "maybe.key"],
    )
    words = with_settings(given, changes)[3:]
    from hydra.core.config_store import ConfigStore

    with hydra.initialize(version_base=None, config_path=None):
        store = ConfigStore.instance()
        store.store("base", {"optim": {"lr": 1.0, "decay": 0.1}, "data": {"files": []}})
        found = OmegaConf.to_container(hydra.compose("base", overrides=words))
    assert found == {"optim": {"lr": 5e-7}, "data": {"files": ["c"]}, "added": {"name": "it's"}, "maybe": {}}


def test_words_that_are_no_settings_stay_as_they_are() -> None:
    words = ["torchrun", "--nproc_per_node=2", "-m", "trainer_entry.main_sft", "--config-name=x", "model=big", "a.b"]
    assert with_settings(words, Changes(settings={"optim.lr": 1})) == [*words, "++optim.lr=1"]
    assert with_interpreter(["/opt/run.sh", *words[1:]], "/e/bin/python")[0] == "/opt/run.sh"
    assert with_interpreter(["python3.12", "-m", "x"], "/e/bin/python") == ["/e/bin/python", "-m", "x"]
    assert with_interpreter(["/a/pythonic", "-m", "x"], "/e/bin/python")[0] == "/a/pythonic"


def test_the_difference_leaves_alone_what_is_no_part_of_the_training() -> None:
    now: dict[str, Scalar] = {
        "optim.lr": 1e-3,
        "trainer.default_local_dir": "/new",
        "wandb.api_key": "(hidden)",
        "n": 1,
    }
    then: dict[str, Scalar] = {
        "optim.lr": 1e-6,
        "trainer.default_local_dir": "/old",
        "trainer.total_training_steps": 5,
        "wandb.api_key": "x",
        "store": "s3://(hidden)@host",
        "long": "x" * 5000,
        "hydra.job": "x",
        "n": 1.0,
    }
    found = difference(now, then, whole=True)
    assert (found.settings, found.removed) == ({"optim.lr": 1e-6}, [])
    assert set(found.left_out) == {"wandb.api_key", "store", "long"}
    merged_changes = merged_with(Changes(settings={"optim.lr": 5e-7}), found)
    assert merged_changes.settings == {"optim.lr": 5e-7}, "what is given by name goes before the file"


def test_a_rate_that_yaml_reads_as_a_text_is_a_rate() -> None:
    assert checked(Changes(settings={"optim.lr": "1e-6", "optim.lr_warmup_steps": -1})).settings["optim.lr"] == "1e-6"


def test_configurations_of_two_different_runs_are_refused() -> None:
    found = difference({f"a{n}": n for n in range(500)}, {f"b{n}": n for n in range(500)}, whole=True)
    with pytest.raises(ChangeError, match="differ in 1000 settings; that is another run"):
        merged_with(Changes(), found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "actor: {optim: {lr: 5.0e-7}}\n# x\nflag: true\nname: it's\n"),
        ("a.json", '{"actor": {"optim": {"lr": 5e-7}}, "flag": true, "name": "it\'s"}'),
        ("a.txt", "# healthy\nactor.optim.lr=5e-7 \\\n\nflag=true  # on\n++name=it's\n"),
    ],
)
def test_a_configuration_is_read_from_each_form_of_file(name: str, text: str) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    assert parsed(text, name) == {"actor.optim.lr": 5e-7, "flag": True, "name": "it's"}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "[1", "is no JSON"),
        ("a.json", "[" * 100_000, "is no JSON"),
        ("a.yaml", "a: [", "is no YAML"),
        ("a.yaml", "!!python/object/apply:os.system [id]", "is no YAML"),
        ("a.yaml", "just a text", "is no configuration"),
        ("a.txt", "\n# nothing\n", "holds no key=value line"),
        ("a.txt", "lr=1\nrm -rf /\n", "Line 2 of a.txt: 'rm -rf /' is not KEY=VALUE."),
    ],
)
def test_a_file_that_is_no_configuration_is_a_sentence(name: str, text: str, why: str) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    with pytest.raises(ChangeError) as error:
        parsed(text, name)
    assert why in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"config": 5}', "[" * 100_000])
def test_a_manifest_without_a_configuration_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "verl_sentinel_manifest.json").write_text(content)
    with pytest.raises(ChangeError, match=r"is damaged|holds no configuration"):
        from_manifest(tmp_path)


GPUS = [Gpu(index, f"GPU-{index}a") for index in range(4)]


@pytest.mark.parametrize(
    ("gpu", "needed", "visible", "left"),
    [
        ("1", 3, None, "0,2,3"),
        ("GPU-1a", 3, None, "0,2,3"),
        ("1", 1, "1,2", "2"),
        ("GPU-2a", 1, "1,2", "1"),
        ("2", 1, "GPU-2a,GPU-3a", "GPU-3a"),
        ("GPU-2a", 1, "GPU-2a,GPU-3a", "GPU-3a"),
    ],
)
def test_a_gpu_is_hidden_where_a_spare_one_is_left(gpu: str, needed: int, visible: str | None, left: str) -> None:
    changed = devices_without([Excluded(node="me", gpu=gpu)], gpus=GPUS, needed=needed, visible=visible)
    assert changed["CUDA_VISIBLE_DEVICES"] == left
    assert ("CUDA_DEVICE_ORDER" in changed) == (visible is None), "the numbers of a list that was given are its own"


def test_without_a_spare_gpu_it_is_refused() -> None:
    with pytest.raises(ChangeError, match=r"Without GPU 1 3 of 4 GPUs are left, and the run uses 4. A checkpoint"):
        devices_without([Excluded(node="me", gpu="1")], gpus=GPUS, needed=4, visible=None)


def test_how_many_gpus_a_run_uses() -> None:
    assert needed_gpus(["python", "-m", "x", "trainer.n_gpus_per_node=4"], {}) == 4
    assert needed_gpus(["torchrun", "--nproc_per_node=2", "-m", "trainer_entry.main_sft"], {}) == 2
    assert needed_gpus(["torchrun", "--nproc-per-node", "3", "-m", "trainer_entry.main_sft"], {}) == 3
    assert needed_gpus(["python", "-m", "x"], {"trainer.n_gpus_per_node": 6}) == 6
    assert needed_gpus(["python", "-m", "x"], {}) == 8


def test_a_trainer_that_joins_a_cluster_is_left_to_the_plugin() -> None:
    joined = ["python", "-m", "x", "+ray_kwargs.ray_init.address=auto"]
    assert joins_a_cluster(joined, {})
    assert joins_a_cluster(["python"], {"RAY_ADDRESS": "10.0.0.1:6379"})
    assert not joins_a_cluster(["python", "ray_kwargs.ray_init.address=null"], {})
    changes = Changes(exclude=[Excluded(node="gpu-17")])
    assert local_variables(changes, argv=joined, config={}, environ={}) == {}
    with pytest.raises(ChangeError, match="gpu-17 is not this machine"):
        local_variables(changes, argv=["python"], config={}, environ={})


def test_changes_are_told_in_a_bounded_phrase() -> None:
    many = changes_of([f"a.k{n}={n}" for n in range(50)], verl_version="0.9.0", exclude=["n1/2"], skip_steps=3)
    assert describe(many).endswith("42 settings more, verl 0.9.0, without GPU 2 of n1, 3 batches skipped")
    assert describe(Changes()) == ""
