"""From a place's URL to its store. fsspec and its file systems are imported only when a place needs them."""

from __future__ import annotations

import importlib
import os
from urllib.parse import unquote, urlsplit

from trainer_entry.checkpoints.tiers.policy import Place
from trainer_entry.checkpoints.tiers.stores.base import Store, StoreError

_LOCAL = ("", "file", "local")


def local_path(place: Place) -> str | None:
    """The absolute folder of a place on a local file system, or None for any other.

    >>> local_path(Place(url="file:///a/b%20c/")), local_path(Place(url="s3://bucket/x"))
    ('/a/b c', None)
    """
    parts = urlsplit(place.url)
    if parts.scheme not in _LOCAL or (parts.scheme and parts.netloc not in ("", "localhost")):
        return None
    return os.path.abspath(unquote(parts.path) if parts.scheme else place.url)


def open_store(place: Place) -> Store:
    """The store of a place. Connects at the first use. Raises StoreError where a package for it is missing."""
    path = local_path(place)
    if path is not None:
        from trainer_entry.checkpoints.tiers.stores.local import LocalStore

        return LocalStore(path)
    scheme = urlsplit(place.url).scheme
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise StoreError(f"{place.url} needs fsspec, which is missing; install verl-sentinel[backup].") from error
    try:
        if scheme in ("s3", "s3a"):
            from trainer_entry.checkpoints.tiers.stores.s3 import S3Store

            return S3Store(place)
        from trainer_entry.checkpoints.tiers.stores.other import OtherStore

        return OtherStore(place, fsspec.filesystem(scheme, **place.options))
    except ImportError as error:
        raise StoreError(
            f"{place.url} needs a package that is missing ({error}); install verl-sentinel[backup], "
            "or fsspec's own for that kind of place."
        ) from error
    except (TypeError, ValueError) as error:
        raise StoreError(f"{place.url} cannot be opened with the options given: {str(error)[:300]}.") from error


def place_of(text: str) -> Place:
    """A place as the command line gives it: a URL or a folder, which may be relative. Raises StoreError."""
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise StoreError("The place holds a user name or password; credentials come from the environment.", "refused")
    return Place(url=text if parts.scheme else os.path.abspath(os.path.expanduser(text)))
