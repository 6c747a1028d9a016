"""The supervisor: owns a run's trainer process over all its attempts, and carries out stop and rollback commands once.

``verl-sentinel-train run`` is the way in (:mod:`trainer_entry.cli`). Kept free of imports, because the small attempt
process (:mod:`trainer_entry.supervisor.attempt`) that outlives a killed supervisor is started from here too.
"""
