"""The toy run: a tiny model, a task it can learn in a hundred steps, and how to start the stock trainers on them."""

from demo.toy.make import Toy, make
from demo.toy.overrides import environment, overrides, sft_overrides

__all__ = ["Toy", "environment", "make", "overrides", "sft_overrides"]
