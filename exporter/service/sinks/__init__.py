"""Sinks: send what was accepted on to other stores, in the background, each with a place of its own in the journal.

Prometheus scrapes and needs none of this. Whoever keeps years of raw metrics in InfluxDB sets ``influxdb`` in the
configuration; nothing in here is imported further than :mod:`exporter.service.sinks.settings` unless that is there.
"""
