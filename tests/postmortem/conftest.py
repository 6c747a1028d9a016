from __future__ import annotations

import sys
from pathlib import Path

for folder in ("cli", "exporter", "console"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
