"""``/metrics``: current state as Prometheus metrics. Made by the app, called by its route at each scrape.

Nothing is kept up to date in between. Names are in base units, without a step label; a run that has ended leaves after
its grace time. What is exported is listed in :mod:`.families` and explained in ``docs/metrics.md``.

    exposition = Exposition(core, ingest, clock, version, ready)
    rendered = await exposition.scrape(accept, accept_encoding)      # or, at once: exposition.render(…)
    rendered.body, rendered.headers()
"""

from exporter.service.exposition.ingest import Ingest
from exporter.service.exposition.scrape import Exposition, Rendered

__all__ = ["Exposition", "Ingest", "Rendered"]
