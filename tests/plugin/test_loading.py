"""The plugin is inert unless asked for, patches whatever is imported when, and says what it could not put in place."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from trainer_entry.plugin.activation import Plugin, parse_version
from trainer_entry.plugin.hooks.base import Hook
from trainer_entry.plugin.post_import import PostImport
from trainer_entry.plugin.runtime import Runtime
from trainer_entry.plugin.wrapping import Target, marks, wrap
from trainer_entry.settings import Settings, SettingsError, read_settings

_LOADED = """
import sys
before = list(sys.meta_path)
import trainer_entry.plugin
print(sorted(name for name in sys.modules if name.startswith(("trainer_entry.", "exporter", "msgspec"))))
print(sys.meta_path == before)
"""


def loaded_with(environment: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", _LOADED],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("environment", [{}, {"VERL_SENTINEL_URL": ""}, {"VERL_SENTINEL_URL": "off"}])
def test_installed_but_not_asked_for_it_imports_nothing_and_patches_nothing(environment: dict[str, str]) -> None:
    assert loaded_with(environment) == "['trainer_entry.plugin']\nTrue\n"


def test_asked_for_it_waits_for_verl_and_imports_no_part_of_it() -> None:
    code = (
        "import sys, threading; import trainer_entry.plugin; "
        "print([m for m in sys.modules if m.split('.')[0] in ('verl', 'torch', 'ray', 'numpy', 'transformers')], "
        "threading.active_count(), type(sys.meta_path[0]).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "VERL_SENTINEL_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[] 1 PostImport\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VERL_SENTINEL_URL", "not a url"),
        ("VERL_SENTINEL_URL", "ftp://host"),
        ("VERL_SENTINEL_URL", "http://host:99999"),
        ("VERL_SENTINEL_ATTEMPT", "two"),
        ("VERL_SENTINEL_ATTEMPT", "1" * 5000),
        ("VERL_SENTINEL_RUN_ID", "a/../b"),
    ],
)
def test_a_wrong_variable_is_told_with_its_value_and_the_trainer_goes_on(name: str, value: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import trainer_entry.plugin; print('training')"],
        env={"PATH": "/usr/bin:/bin", "VERL_SENTINEL_URL": "http://127.0.0.1:9", name: value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "training\n"
    assert name in done.stderr
    assert repr(value) in done.stderr
    assert "not watched" in done.stderr


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    for url in ("http://user:hunter2@host:9464", "http://hunter2@host", "ftp://user:hunter2@host"):
        with pytest.raises(SettingsError, match="VERL_SENTINEL_URL holds a user name or password") as raised:
            read_settings({"VERL_SENTINEL_URL": url})
        assert "hunter2" not in str(raised.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An importable package with two modules, gone again after the test."""
    folder = tmp_path / "watched_fake"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "loop.py").write_text("class Trainer:\n    def fit(self):\n        return 'done'\n")
    (folder / "other.py").write_text("raise ImportError('needs a GPU')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "watched_fake"
    for name in [name for name in sys.modules if name.startswith("watched_fake")]:
        del sys.modules[name]


class Fit(Hook):
    """A hook for the fake package."""

    name = "fit"
    targets = (Target("watched_fake.loop", "Trainer.fit", trainers=frozenset({"toy"})),)
    not_for = {"other": "nothing to fit"}  # noqa: RUF012

    def install(self, module: ModuleType, target: Target) -> None:
        wrap(module, target.attribute, self.name, lambda original: lambda trainer: [original(trainer)])


def plugin_with(*hooks: type[Hook], told: list[str] | None = None, version: str = "0.9.1") -> Plugin:
    sentences = told if told is not None else []
    runtime = Runtime(Settings(url="http://127.0.0.1:9", run_id="r"), version, report=sentences.append)
    return Plugin(runtime, hooks)


def test_a_module_is_patched_right_after_its_import(package: str) -> None:
    plugin = plugin_with(Fit)
    plugin.install()
    assert "watched_fake.loop" not in sys.modules
    module = importlib.import_module("watched_fake.loop")
    plugin.imports.remove()
    assert module.Trainer().fit() == ["done"]
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"  # type: ignore[union-attr]
    assert module.__loader__ is module.__spec__.loader  # type: ignore[union-attr]


def test_a_module_that_is_imported_already_is_patched_in_place_and_only_once(package: str) -> None:
    module = importlib.import_module("watched_fake.loop")
    for _ in range(2):
        plugin = plugin_with(Fit)
        plugin.install()
        plugin.imports.remove()
    assert module.Trainer().fit() == ["done"]


def test_a_module_whose_import_fails_fails_as_it_would_without_the_plugin(package: str) -> None:
    called: list[ModuleType] = []
    imports = PostImport(lambda name, error: None)
    imports.when_imported("watched_fake.other", called.append)
    with pytest.raises(ImportError, match="needs a GPU"):
        importlib.import_module("watched_fake.other")
    imports.remove()
    assert called == []


def test_an_action_that_raises_does_not_break_the_import(package: str) -> None:
    errors: list[str] = []
    imports = PostImport(lambda name, error: errors.append(f"{name}: {error}"))

    def fail(module: ModuleType) -> None:
        raise RuntimeError("ours")

    imports.when_imported("watched_fake.loop", fail)
    assert importlib.import_module("watched_fake.loop").Trainer().fit() == "done"
    imports.remove()
    assert errors == ["watched_fake.loop: ours"]


def test_a_hook_whose_module_is_not_imported_here_is_in_place_when_the_source_has_it(package: str) -> None:
    plugin = plugin_with(Fit)
    plugin.runtime.trainer_kind = "toy"
    plugin.install()
    try:
        assert plugin.missing() == []
        assert "watched_fake.loop" not in sys.modules
    finally:
        plugin.imports.remove()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Trainer:\n    def train(self): ...\n", "watched_fake.loop has no Trainer.fit"),
        ("class Trainers: ...\n", "watched_fake.loop has no Trainer.fit"),
    ],
)
@pytest.mark.parametrize("imported", [True, False])
def test_what_a_verl_version_does_not_have_is_reported_with_the_reason(
    package: str, tmp_path: Path, source: str, reason: str, imported: bool
) -> None:
    (tmp_path / "watched_fake" / "loop.py").write_text(source)
    importlib.invalidate_caches()
    told: list[str] = []
    plugin = plugin_with(Fit, told=told)
    plugin.runtime.trainer_kind = "toy"
    plugin.install()
    if imported:
        importlib.import_module("watched_fake.loop")
    plugin.imports.remove()
    (missing,) = plugin.missing()
    assert missing.name == "fit"
    assert reason in missing.reason
    plugin.report()
    assert told[-1].startswith("0 of 1 hooks in place, verl 0.9.1; not in place: fit (")


def test_a_hook_that_was_overwritten_by_another_package_is_not_in_place(package: str) -> None:
    plugin = plugin_with(Fit)
    plugin.runtime.trainer_kind = "toy"
    plugin.install()
    module = importlib.import_module("watched_fake.loop")
    plugin.imports.remove()
    assert plugin.missing() == []
    module.Trainer.fit = lambda trainer: "mine"
    assert "replaced by something else" in plugin.missing()[0].reason


def test_a_hook_that_the_trainer_has_no_use_for_says_so(package: str) -> None:
    plugin = plugin_with(Fit)
    plugin.runtime.trainer_kind = "other"
    assert [(item.name, item.reason) for item in plugin.missing()] == [("fit", "nothing to fit")]


def test_a_wrapper_of_somebody_else_around_ours_is_seen_through() -> None:
    import functools

    module = ModuleType("m")
    module.f = lambda: 1  # type: ignore[attr-defined]
    wrap(module, "f", "hook", lambda original: lambda: original() + 1)
    ours = module.f

    @functools.wraps(ours)
    def theirs() -> int:
        return int(ours()) * 10

    assert marks(theirs) == {"hook"}
    assert theirs() == 20


def test_targets_are_bounded_by_version() -> None:
    target = Target("m", "f", since=(0, 8), before=(0, 10))
    assert [target.applies(parse_version(v)) for v in ("0.7.1", "0.8.0", "0.9.1", "0.10.0.dev1")] == [
        False,
        True,
        True,
        False,
    ]
