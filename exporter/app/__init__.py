"""The exporter over HTTP: Litestar on uvicorn, and the push path beside it. Called by the CLI."""

from exporter.app.application import Room, make_app
from exporter.app.server import serve

__all__ = ["Room", "make_app", "serve"]
