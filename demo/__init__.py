"""The demo: a tiny real run of the stock trainer, real faults in it, and the loop that brings it back."""
