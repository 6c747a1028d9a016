"""The console: pages for people without Grafana, and for approving a recovery. Mounted by :mod:`exporter.cli`."""
