"""Running something right after an import, without importing."""

import sys

import pytest

from trainer_entry.cpu.late import when_imported
from trainer_entry.plugin.post_import import PostImport


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that can be imported and is not yet."""
    name = f"late_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_an_action_waits_for_the_import_and_sees_the_whole_module(module):
    seen = []
    when_imported(module, lambda m: seen.append(m.value))
    assert seen == []
    assert module not in sys.modules
    imported = __import__(module)
    assert seen == [1]
    assert imported.__spec__.loader is imported.__loader__
    assert imported.__loader__.get_source(module) == "value = 1\n"


def test_several_actions_run_in_order_and_once(module):
    seen = []
    when_imported(module, lambda m: seen.append("first"))
    when_imported(module, lambda m: seen.append("second"))
    __import__(module)
    __import__(module)
    assert seen == ["first", "second"]


def test_an_action_for_a_module_that_is_there_runs_at_once():
    seen = []
    when_imported("json", lambda m: seen.append(m.__name__))
    assert seen == ["json"]


def test_a_module_that_does_not_exist_still_fails_to_import_and_is_hooked_when_it_comes(tmp_path, monkeypatch):
    seen = []
    when_imported("late_to_come", lambda m: seen.append(m.value))
    with pytest.raises(ModuleNotFoundError):
        __import__("late_to_come")
    (tmp_path / "late_to_come.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("late_to_come")
    sys.modules.pop("late_to_come")
    assert seen == [2]


@pytest.mark.parametrize("plugin_first", [True, False])
def test_the_plugins_finder_and_this_one_can_wait_for_the_same_module(module, plugin_first):
    seen, errors = [], []
    other = PostImport(lambda name, error: errors.append(error))
    waits = [other.when_imported, when_imported] if plugin_first else [when_imported, other.when_imported]
    for wait in waits:
        wait(module, lambda m: seen.append(m.value))
    try:
        __import__(module)
    finally:
        other.remove()
    assert seen == [1, 1]
    assert errors == []


def test_an_action_that_fails_stops_the_import_with_the_reason(module):
    def fail(m):
        raise AttributeError("no such class")

    when_imported(module, fail)
    with pytest.raises(RuntimeError, match=f"{module} could not be changed .*: no such class"):
        __import__(module)
