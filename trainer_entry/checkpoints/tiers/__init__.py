"""Copies of checkpoints beyond the run's own directory: snapshots, milestones, archives, and what is kept of each.

A policy file says when a tier takes a checkpoint, where the copy goes and how long it stays. Copies are made by a
process of their own at idle priority (:mod:`trainer_entry.checkpoints.keeper`), driven by files in
``<state_dir>/checkpoints/``. A copy is ``<place>/<run>/<model>-step<N>-<hash8>/``: the files, and last of all
``verl_sentinel_copy.json``, without which it is half and never restored from.
"""
