"""Gradient histograms: what one optimizer step's gradients look like, layer by layer, before they are clipped.

Asked for by the exporter when gradients become unstable. A training process measures what it holds
(:mod:`.measuring`), the trainer's process puts the ranks together and writes one file a step (:mod:`.files`);
:mod:`trainer_entry.plugin.hooks.gradients` is between the two. ``verl-sentinel-train gradients FILE`` shows a file.
"""
