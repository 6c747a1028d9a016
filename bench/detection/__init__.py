"""How well runs are watched: false alarms on healthy runs, and what is caught of faults put into them, beside peers.

``python -m bench.detection`` prints it. Data: :mod:`~bench.detection.runs` and :mod:`~bench.detection.generators`; what
goes wrong, and what only looks so: :mod:`~bench.detection.faults` and :mod:`~bench.detection.controls`; who is asked:
:mod:`~bench.detection.contenders`; what counts: :mod:`~bench.detection.scoring`.
"""
