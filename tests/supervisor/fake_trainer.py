"""A trainer that obeys verl's contracts with the supervisor and trains nothing. Run by the tests as the trainer.

Overrides: ``fake.steps``, ``fake.save_freq``, ``fake.step_seconds``, ``fake.crash_at=N`` (exit 3), ``fake.hang_at=N``,
``fake.term=ignore|exit``, ``fake.stop=obey|ignore``, ``fake.children=N`` (in sessions of their own, deaf to SIGTERM),
``fake.hide=1`` (the children's environment is empty), ``fake.only_first=1`` (later attempts are without any of these),
``fake.later_hang_at=N`` (they hang there instead), ``fake.shards=FOLDER`` (checkpoints of the files in it).
All that is no ``fake.`` and no ``trainer.`` override is its configuration, which it leaves as the plugin does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from exporter.protocol import Changes, SettingApplied
from trainer_entry.changes import records
from trainer_entry.checkpoints import Origin, discard_manifest, write_manifest

options = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:] if "=" in word)
for word in sys.argv[1:]:
    if word.startswith("~"):
        del options[word[1:]]
config = {
    key: json.loads(value) if value[:1].isdigit() or value in ("true", "false", "null") else value.strip("'")
    for key, value in options.items()
    if not key.startswith(("fake.", "trainer."))
}
root = Path(options["trainer.default_local_dir"].strip("'"))
state = Path(os.environ["VERL_SENTINEL_STATE_DIR"])
attempt = int(os.environ["VERL_SENTINEL_ATTEMPT"])
faulty = options.get("fake.only_first") != "1" or attempt == 1


def fake(name: str, default: str) -> str:
    return options.get(f"fake.{name}", default) if faulty else default


def resume_step() -> int:
    mode = options.get("trainer.resume_mode", "auto")
    if mode == "disable":
        return 0
    if mode == "resume_path":
        return int(options["trainer.resume_from_path"].strip("'").split("global_step_")[-1])
    tracker = root / "latest_checkpointed_iteration.txt"
    step = int(tracker.read_text()) if tracker.exists() else 0
    return step if (root / f"global_step_{step}").exists() else 0


def save(step: int) -> None:
    directory = root / f"global_step_{step}"
    (directory / "actor").mkdir(parents=True, exist_ok=True)
    discard_manifest(directory)
    for kind in ("model", "optim", "extra_state"):
        (directory / "actor" / f"{kind}_world_size_1_rank_0.pt").write_bytes(f"{kind}{step}.{attempt}".encode() * 100)
    (directory / "data.pt").write_bytes(b"position")
    if shards := options.get("fake.shards"):
        shutil.copytree(shards, directory, dirs_exist_ok=True)
    write_manifest(directory, step, origin=Origin(config=config))
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def asked_to_stop() -> dict | None:  # type: ignore[type-arg]
    if fake("stop", "obey") == "ignore":
        return None
    try:
        request = json.loads((state / "stop-request").read_text())
    except (OSError, ValueError):
        return None
    return request if request.get("attempt") == attempt else None


root.mkdir(parents=True, exist_ok=True)
if fake("term", "exit") == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
children = [
    subprocess.Popen(
        [sys.executable, "-c", child], start_new_session=True, env={} if fake("hide", "0") == "1" else None
    ).pid
    for _ in range(int(fake("children", "0")))
]
step = resume_step()
with (root / "starts.jsonl").open("a") as log:
    started = {"attempt": attempt, "from": step, "argv": sys.argv[1:], "pid": os.getpid(), "children": children}
    started |= {"python": sys.executable, "changes": os.environ.get("VERL_SENTINEL_CHANGES", "")}
    log.write(json.dumps(started) + "\n")
records.keep_config(state, attempt, config)
changes = msgspec.json.decode(os.environ.get("VERL_SENTINEL_CHANGES", "{}"), type=Changes)
if changes.verl_version:
    import importlib.metadata

    there = importlib.metadata.version("verl")
    proof = SettingApplied(
        time=0.0, name="verl_version", wanted=changes.verl_version, found=there, ok=there == changes.verl_version
    )
    records.keep_applied(state / "attempts" / str(attempt), [proof])
print(f"Resuming from step {step}", flush=True)
while step < int(options.get("fake.steps", "100000")):
    step += 1
    if step == int(fake("hang_at", options.get("fake.later_hang_at", "-1") if attempt > 1 else "-1")):
        print("hanging", flush=True)
        time.sleep(600)
    if step == int(fake("crash_at", "-1")):
        print("RuntimeError: the fake fault", flush=True)
        sys.exit(3)
    time.sleep(float(options.get("fake.step_seconds", "0.02")))
    print(f"step:{step}", flush=True)
    stop = asked_to_stop()
    if (stop and stop.get("save", True)) or step % int(options.get("fake.save_freq", "5")) == 0:
        save(step)
    if stop:
        break
print("done", flush=True)
