"""Where copies lie: a local folder, S3, or any other file system that fsspec knows, behind one interface."""

from trainer_entry.checkpoints.tiers.stores.base import Content, Entry, Kind, Sent, Store, StoreError
from trainer_entry.checkpoints.tiers.stores.opening import local_path, open_store, place_of

__all__ = ["Content", "Entry", "Kind", "Sent", "Store", "StoreError", "local_path", "open_store", "place_of"]
