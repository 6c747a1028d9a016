"""An export takes nothing away from anybody: what was changed by hand or written by others stays until it is forced."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from exporter.bundle.manifest import NAME
from exporter.cli.program import app

ROUTES = "rules/alertmanager.yml"
ONLY = ("--only", "alertmanager")


def export(folder: Path, *arguments: str, only: tuple[str, ...] = ONLY) -> Result:
    return CliRunner().invoke(app, ["export", str(folder), *only, *arguments])


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_twice_the_same_touches_no_file(tmp_path: Path) -> None:
    first = export(tmp_path)
    assert first.exit_code == 0, first.stderr
    before = state(tmp_path)
    again = export(tmp_path)
    assert again.exit_code == 0
    assert state(tmp_path) == before
    assert "0 files new, 0 changed, 0 removed, 2 as they were." in again.stderr


def test_another_value_changes_only_the_files_that_have_it(tmp_path: Path) -> None:
    export(tmp_path)
    before = state(tmp_path)
    done = export(tmp_path, "--exporter-url", "http://exporter:9464")
    assert done.exit_code == 0
    after = state(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {ROUTES, NAME}
    assert "0 files new, 1 changed" in done.stderr


def test_a_file_that_was_changed_by_hand_stays_while_there_is_nothing_new_for_it(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / ROUTES).write_text("# mine\n")
    done = export(tmp_path)
    assert done.exit_code == 0
    assert (tmp_path / ROUTES).read_text() == "# mine\n"
    assert f"Kept, you changed it and there is nothing new for it: {tmp_path / ROUTES}" in done.stderr
    again = export(tmp_path)
    assert (tmp_path / ROUTES).read_text() == "# mine\n", "also the time after"
    assert "Kept" in again.stderr


def test_a_file_that_was_changed_by_hand_and_has_something_new_stops_everything_and_is_named(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / ROUTES).write_text("# mine\n")
    before = state(tmp_path)
    done = export(tmp_path, "--exporter-url", "http://exporter:9464")
    assert done.exit_code == 1
    assert f"Changed by you, and there is something new for it: {tmp_path / ROUTES}" in done.stderr
    assert "Nothing was written." in done.stderr
    assert state(tmp_path) == before
    forced = export(tmp_path, "--exporter-url", "http://exporter:9464", "--force")
    assert forced.exit_code == 0
    assert "http://exporter:9464" in (tmp_path / ROUTES).read_text()
    assert f"Overwritten, you had changed it: {tmp_path / ROUTES}" in forced.stderr


def test_a_file_that_no_export_wrote_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / ROUTES).write_text("# ours for years\n")
    done = export(tmp_path)
    assert done.exit_code == 1
    assert f"In the way, no export wrote it: {tmp_path / ROUTES}" in done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["alertmanager.yml"]


def test_files_of_others_beside_it_are_no_concern(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/own.yml").write_text("own")
    assert export(tmp_path).exit_code == 0
    assert (tmp_path / "rules/own.yml").read_text() == "own"


def test_what_is_no_longer_part_of_it_is_removed_unless_it_was_changed(tmp_path: Path) -> None:
    rules = ("--only", "rules")
    export(tmp_path, "--preset", "manual", only=rules)
    preset = tmp_path / "rules/prometheus/presets/verl-manual.rules.yml"
    runbook = tmp_path / "rules/runbooks/VerlKLDrift.md"
    assert preset.exists()
    runbook.write_text("# Our own\n")
    done = export(tmp_path, only=rules)
    assert done.exit_code == 0, done.stderr
    assert not preset.parent.exists()
    assert runbook.read_text() == "# Our own\n"
    assert f"Left, it is no longer part of the export and you changed it: {runbook}" in done.stderr


def test_another_part_leaves_the_first_one_alone(tmp_path: Path) -> None:
    export(tmp_path)
    assert export(tmp_path, only=("--only", "dashboards")).exit_code == 0
    assert (tmp_path / ROUTES).exists()
    assert ROUTES in json.loads((tmp_path / NAME).read_text())["sha256"]


def test_a_dry_run_and_a_diff_say_what_would_be_and_do_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    done = export(folder, "--dry-run")
    assert (done.exit_code, folder.exists()) == (0, False)
    assert "2 files to be new" in done.stderr
    export(folder)
    before = state(folder)
    diff = export(folder, "--exporter-url", "http://exporter:9464", "--diff")
    assert state(folder) == before
    assert f"--- a/{ROUTES}\n+++ b/{ROUTES}\n" in diff.stdout
    assert '+      - url: "http://exporter:9464/api/v1/alerts"' in diff.stdout


def test_links_are_neither_followed_nor_replaced(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "rules").symlink_to(outside)
    done = export(folder, "--force")
    assert done.exit_code == 1
    assert "is a link: an export neither follows nor replaces one" in done.stderr
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"sha256": 7}', '{"sha256": {"a": "b"}, "version": "", "command": ""}', "\xff"]
)
def test_a_broken_manifest_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content, encoding="latin-1")
    done = export(tmp_path)
    assert done.exit_code == 1
    assert "is not what an export wrote" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_manifest_cannot_make_an_export_remove_what_is_outside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("")
    folder = tmp_path / "in"
    export(folder)
    data = json.loads((folder / NAME).read_text())
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    data["sha256"] |= {"rules/templates/../../../victim": [empty], "/" + str(victim): [empty]}
    (folder / NAME).write_text(json.dumps(data))
    assert export(folder).exit_code == 0
    assert victim.exists()


def test_an_export_that_was_broken_off_knows_its_own_files(tmp_path: Path) -> None:
    """The manifest is written first, with what each file was and what it becomes."""
    from exporter.bundle import writing
    from exporter.bundle.bundle import bundle
    from exporter.bundle.site import site

    writing.carry_out(writing.plan(tmp_path, bundle(site(), ("alertmanager",))), "1", "")
    made = writing.plan(tmp_path, bundle(site(exporter_url="http://b:1"), ("alertmanager",)))
    put, written = writing._put, []

    def break_off(path: Path, content: bytes, mode: int) -> None:
        if len(written) == 2:
            raise OSError(28, "No space left on device", str(path))
        written.append(path.name)
        put(path, content, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_put", break_off)
        with pytest.raises(writing.CannotWrite, match="No space left on device"):
            writing.carry_out(made, "1", "")
    assert written == [NAME, "alertmanager.yml"]
    third = writing.plan(tmp_path, bundle(site(exporter_url="http://c:1"), ("alertmanager",)))
    assert (third.in_the_way, third.changed) == ([], [ROUTES])


def test_scripts_can_be_run_and_files_can_be_read_by_the_programs(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        done = export(tmp_path, only=("--only", "compose"))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "compose/make-secrets.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "compose/compose.yml").stat().st_mode) == 0o644
    assert "compose/compose.yml mounts rules/ beside it, which is not there" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "everything"), "is no part of an export: rules, alertmanager, dashboards, compose."),
        (("--label", "run=a"), "--label run: alerts have a label of that name already"),
        (("--scrape-interval", "1h"), "--scrape-interval 1h is out of bounds"),
    ],
)
def test_a_wrong_option_is_a_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = export(tmp_path / "x", *arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_directory_that_cannot_be_one_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = export(tmp_path / "file")
    assert (done.exit_code, "is no directory." in done.stderr) == (1, True)
