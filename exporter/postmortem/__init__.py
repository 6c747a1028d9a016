"""Post-mortems of recoveries: what happened, why, what was done and how long it took, as Markdown with a picture.

Written when a recovery has ended, into ``<data_dir>/postmortems/<id>/``, by a process of its own, so that neither its
memory nor its work is the exporter's. :mod:`.material` gathers what it needs, :mod:`.writer` starts it,
``python -m exporter.postmortem FOLDER`` writes. Shown by the API, by the console and by ``verl-sentinel postmortem``.
"""
