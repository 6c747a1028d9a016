"""The stack without Docker: the exporter and what there is of Prometheus, Alertmanager, Grafana and VictoriaMetrics.

``make up`` and ``make down`` call it as ``python -m compose.local up`` and ``… down``. Everything is on loopback and in
one folder. Linux only, for a program is known by its start time in ``/proc``.
"""
