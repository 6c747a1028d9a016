"""Detectors over a run that is past: its steps from a file of any of several forms, and what would have been said.

Called by ``verl-sentinel replay``. Readers turn a file into rows (:mod:`exporter.replay.recognised` chooses one), and
:mod:`exporter.replay.past_run` gives the rows to the code that watches live runs.
"""
