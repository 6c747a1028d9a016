"""The dashboards as they are checked in, for the tests of this folder."""

from __future__ import annotations

import pytest
from dashboard_parts import DASHBOARDS, Json


@pytest.fixture(params=DASHBOARDS, ids=lambda one: str(one["uid"]))
def dashboard(request: pytest.FixtureRequest) -> Json:
    """Each in turn."""
    found: Json = request.param
    return found
