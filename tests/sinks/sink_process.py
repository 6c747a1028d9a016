"""A sink as a process of its own, for tests that kill it: ``python sink_process.py DATA_DIR URL``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import influxdb_client.client.write_api  # noqa: F401 - so that a kill soon after the start meets it at work
from sink_scene import FAST, Source

from exporter.service.sinks.influx import CURSOR_FILE_NAME, InfluxSink
from exporter.service.sinks.settings import InfluxSettings


def main(data_dir: Path, url: str) -> None:
    settings = InfluxSettings(url=url, org="org", bucket="bucket")
    InfluxSink(settings, Source(data_dir), data_dir / CURSOR_FILE_NAME, {}, pace=FAST).start()
    print("started", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
