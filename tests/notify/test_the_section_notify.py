"""The section ``notify`` of the configuration, as the program is started with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from exporter.config import ConfigError, load

SECRET = "s3cr3t"


def loaded(folder: Path, text: str) -> str:
    """What it says of a file; empty where it takes it."""
    path = folder / "c.yml"
    path.write_text(text)
    try:
        load(path)
    except ConfigError as error:
        return str(error).replace(str(path), "c.yml")
    return ""


@pytest.mark.parametrize(
    "address",
    [
        "feishu://token", "lark://token", "dingtalk://secret@token", "wecombot://key", "mailto://u:p@example.org",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#alerts", "json://localhost/hook", "ntfy://topic",
        "tgram://123456789:abcdefg_hijklmnop/12315544/", "pover://u@a",
    ],
)  # fmt: skip
def test_addresses_of_services_are_taken(tmp_path: Path, address: str) -> None:
    assert loaded(tmp_path, f'notify:\n  targets:\n    ops: [{{value: "{address}"}}]\n') == ""


def test_addresses_come_from_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text("# the group of the night shift\nfeishu://token\n")
    monkeypatch.setenv("VERL_TEST_URL", "json://localhost")
    text = (
        f"notify:\n  targets:\n    ops: [{{file: {tmp_path / 'url'}}}, {{env: VERL_TEST_URL}}]\n  timeout_seconds: 5\n"
    )
    assert loaded(tmp_path, text) == ""


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            'targets:\n    ops:\n      - value: "json://localhost"\n      - value: "feishu://s3cr3t x"',
            "c.yml, line 5: notify.targets.ops: the address in its value is not what apprise expects for Feishu",
        ),
        (
            'targets:\n    a: [{value: "json://localhost"}]\n    b: [{value: "gopher://s3cr3t"}]',
            "c.yml, line 4: notify.targets.b: the address in its value starts with gopher://, which is no service",
        ),
        (
            'targets:\n    a: [{value: "json://s3cr3t/?template=/s3cr3t"}]',
            "c.yml, line 3: notify.targets.a: the address in its value has the option template",
        ),
        (
            "targets:\n    a: [{file: /nowhere/at/all}]",
            "c.yml, line 3: notify.targets.a: the file /nowhere/at/all cannot be read: No such file or directory.",
        ),
        (
            "targets:\n    a: [{env: VERL_NOT_SET}]",
            "c.yml, line 3: notify.targets.a: the environment variable VERL_NOT_SET is not set.",
        ),
        ("targets:\n    a: []", "line 2: notify: targets has a without an address"),
        ("targets:\n    a/b: [{env: X}]", "targets has 'a/b': a target is named with"),
        ("targets:\n    a: [{}]", "a target's address has exactly one of file, env and value"),
        ('targets:\n    a: [{file: x, value: "s3cr3t"}]', "a target's address has exactly one of file, env and value"),
        ("timeout_seconds: 0", "line 2: notify: timeout_seconds is 0.0: it has to be from 1 to 120"),
        ("target: {}", "line 2: target is not a known setting; did you mean targets?"),
    ],
)
def test_a_wrong_one_is_refused_with_its_line_and_without_its_secret(tmp_path: Path, section: str, said: str) -> None:
    told = loaded(tmp_path, f"notify:\n  {section}\n")
    assert said in told
    assert SECRET not in told


def test_the_program_does_not_start_with_a_wrong_address(tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text('notify:\n  targets:\n    ops: [{value: "feishu://s3cr3t x"}]\n')
    argv = [sys.executable, "-m", "exporter", "--config", str(tmp_path / "c.yml"), "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "line 3: notify.targets.ops" in done.stderr
    assert SECRET not in done.stderr + done.stdout


def test_apprise_is_not_imported_by_an_exporter_that_has_no_target(tmp_path: Path) -> None:
    code = (
        "import sys; from exporter.app.lifecycle import Exporter; from exporter.app import make_app;"
        "from exporter.app.access import Access; from exporter.app.tokens import LiveTokens;"
        "from exporter.config import load;"
        f"config = load(None, data_dir={str(tmp_path / 'data')!r});"
        "make_app(Exporter(config), Access(LiveTokens(config.tokens, {})));"
        "print([name for name in sys.modules if name.split('.')[0] in ('apprise', 'requests')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
