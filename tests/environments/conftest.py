"""Finds the package that environments are built from, for the supervisor's and the rollback scripts' tests too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
