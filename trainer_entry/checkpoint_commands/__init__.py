"""``verl-sentinel-train checkpoints …``: what a person, or a script, does with checkpoints at the command line."""
