"""The health checks whose programs are here, on real programs: healthy while they run, and not when they do not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from containers_view import compose_file

from compose.local.answers import answers
from demo.processes import Child, free_port


@pytest.mark.programs
@pytest.mark.skipif(
    not (shutil.which("prometheus-alertmanager") and shutil.which("amtool")), reason="Alertmanager is not installed"
)
def test_that_of_alertmanager(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    service = compose_file()["services"]["alertmanager"]
    options = [option for option in service["command"] if option.startswith("--cluster")]
    _, program, *arguments = service["healthcheck"]["test"]
    assert program == "/bin/amtool"
    check = ["amtool", *[argument.replace(":9093", f":{port}") for argument in arguments]]
    child = Child(
        "Alertmanager",
        [
            "prometheus-alertmanager",
            f"--config.file={config}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            *options,
        ],
        tmp_path / "log",
    )
    child.start()
    try:
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 180.0, "it was ready")
        assert subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0
    finally:
        child.stop()
    assert subprocess.run(check, capture_output=True, timeout=60, check=False).returncode != 0
