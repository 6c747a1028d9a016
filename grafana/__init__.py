"""The Grafana dashboards as code. `python -m grafana` writes their JSON."""
