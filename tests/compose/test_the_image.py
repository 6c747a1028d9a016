"""The exporter's image: what its Dockerfile says, and its build, whose steps run here in a folder in place of an image.

What a container engine adds (layers, users, the base image itself) is not seen here.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers_view import COMPOSE, ROOT, compose_file, laid_out, secrets_in

from compose.local.answers import answers, text_of
from demo.processes import Child, free_port

DOCKERFILE = COMPOSE / "exporter" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
PREFIX = "/opt/verl-sentinel"


def copies() -> list[tuple[list[str], str]]:
    """What is copied from the repository, and whereto."""
    found = []
    for line in re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE):
        *sources, target = line.split()
        found.append((sources, target))
    return found


def ignored(path: Path) -> bool:
    """Whether the build does not see a file of the repository, by ``Dockerfile.dockerignore``: the last rule wins."""
    name, hidden = path.relative_to(ROOT).as_posix(), False
    for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern, hides = line.removeprefix("!"), not line.startswith("!")
        patterns = [pattern, f"{pattern}/*"]
        if pattern.startswith("**/"):
            patterns += [pattern.removeprefix("**/"), f"{pattern.removeprefix('**/')}/*"]
        if any(fnmatch.fnmatchcase(name, one) for one in patterns):
            hidden = hides
    return hidden


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The virtual environment that the build makes."""
    folder = tmp_path_factory.mktemp("image")
    source, prefix = folder / "src", folder / "opt"
    for names, target in copies():
        for name in names:
            origin, there = ROOT / name, source / target
            if origin.is_dir():
                hide = lambda at, entries: {entry for entry in entries if ignored(Path(at) / entry)}  # noqa: E731
                shutil.copytree(origin, there, ignore=hide)
            else:
                there = there / origin.name if target.endswith("/") else there
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, there)
    (step,) = re.findall(r"^RUN (python -m venv (?:.*\\\n)*.*)$", TEXT, re.MULTILINE)
    command = (
        step.replace("\\\n", " ").replace(PREFIX, str(prefix)).replace("python -m venv", f"{sys.executable} -m venv")
    )
    environment = clean_environment()
    done = subprocess.run(
        ["sh", "-ec", command], cwd=source, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    yield prefix
    shutil.rmtree(folder)


def clean_environment() -> dict[str, str]:
    """Without what would lead a Python back into the checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}


def in_image(image: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the image's Python, far from the checkout."""
    return subprocess.run(
        [str(image / "bin" / "python"), *arguments],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_its_base_is_pinned_and_it_runs_as_the_user_of_the_compose_file() -> None:
    bases = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)
    assert bases
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in bases)
    (user,) = re.findall(r"^USER (\S+)$", TEXT, re.MULTILINE)
    service = compose_file()["services"]["exporter"]
    assert service["user"] == user
    writable = [mount.split(":")[1] for mount in service["volumes"] if not mount.endswith(":ro")]
    assert f'--data-dir", "{writable[0]}' in TEXT
    (config,) = [mount.split(":")[1] for mount in service["volumes"] if "exporter.yml" in mount]
    assert f'--config", "{config}"' in TEXT


def test_the_build_sees_what_it_copies_and_no_secret() -> None:
    for sources, _ in copies():
        for source in sources:
            assert (ROOT / source).exists(), source
            assert not ignored(ROOT / source), source
    for secret in ("compose/.env", "compose/secrets", "compose/secrets/push", "compose/secrets/notify/smtp"):
        assert ignored(ROOT / secret), secret
    for other in (".git", ".venv", "tests", "demo", ".stack", "exporter/__pycache__", "requirements/other.txt"):
        assert ignored(ROOT / other), other


@pytest.mark.programs
def test_the_build_installs_everything_that_the_exporter_serves_and_exports(image: Path, tmp_path: Path) -> None:
    """Each file in these folders of the repository that is no Python and no test."""
    found = in_image(image, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path)
    site = Path(found.stdout.strip())
    tracked = subprocess.run(
        ["git", "ls-files", "--", "rules", "grafana", "compose", "exporter"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    missing = [
        name for name in tracked if (ROOT / name).is_file() and not (site / name).is_file() and not ignored(ROOT / name)
    ]
    assert missing == []


@pytest.mark.programs
def test_no_secret_of_a_checkout_gets_into_the_package(image: Path, tmp_path: Path) -> None:
    """The patterns of pyproject.toml are those that were built with; a wheel made beside the secrets has the same."""
    patterns = re.search(r"^compose = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert patterns is not None
    for secret in ("secrets/push", "secrets/grafana_password", ".env", "secrets/notify/smtp-password"):
        assert not any(fnmatch.fnmatchcase(secret, pattern.removeprefix("**/")) for pattern in json.loads(patterns[1]))


@pytest.mark.programs
def test_its_entry_point_runs_with_the_mounted_configuration_and_is_healthy(image: Path, tmp_path: Path) -> None:
    service = compose_file()["services"]["exporter"]
    root = laid_out(service, secrets_in(tmp_path / "made"), tmp_path / "root")
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", TEXT, re.MULTILINE)
    program, *arguments = json.loads(entry)
    assert program == f"{PREFIX}/bin/python"
    port = free_port()
    child = Child(
        "the exporter of the image",
        [
            *(str(image / "bin" / "python"), *arguments),
            *("--config", str(root / "etc/verl-sentinel/exporter.yml"), "--data-dir", str(tmp_path / "data")),
            # In a container it has a network of its own; here its port may be taken.
            *("--listen", f"127.0.0.1:{port}"),
        ],
        tmp_path / "log",
        env=clean_environment(),
    )
    child.start()
    try:
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), 180.0, "it was ready")
        _, _, *check = service["healthcheck"]["test"]
        done = in_image(image, *[part.replace(":9464", f":{port}") for part in check], folder=tmp_path)
        assert done.returncode == 0, done.stderr
        # What lies beside the code is found where it is installed.
        assert "Watchdog" in (text_of(f"http://127.0.0.1:{port}/runbooks/Watchdog.md", seconds=120.0) or "")
        assert text_of(f"http://127.0.0.1:{port}/console/login", seconds=120.0)
    finally:
        child.stop()
    # A health check that nothing can fail would be none.
    assert in_image(image, *[part.replace(":9464", f":{port}") for part in check], folder=tmp_path).returncode != 0
