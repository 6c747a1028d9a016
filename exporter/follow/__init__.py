"""Watches a run that nobody instrumented, by what verl itself writes. Called by ``verl-sentinel follow``.

:mod:`~exporter.follow.tail` reads whole lines from a file that grows, is truncated or replaced;
:mod:`~exporter.follow.parsing` finds steps in them; :mod:`~exporter.follow.lives` tells attempts apart and numbers what
each of them logged; :mod:`~exporter.follow.place` remembers how far it came; :mod:`~exporter.follow.delivery` brings it
to the exporter; :mod:`~exporter.follow.follower` joins them.
"""
