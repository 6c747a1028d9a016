"""From a place's URL to its store. fsspec and its file systems are imported only when a place needs them."""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any
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
    scheme, host = urlsplit(place.url)[:2]
    if scheme in ("s3", "s3a") and not host:
        raise StoreError(f"{place.url} names no bucket; it belongs after the two slashes, as in s3://bucket/copies.")
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise StoreError(f"{place.url} needs fsspec, which is missing; install verl-sentinel[backup].") from error
    try:
        if scheme in ("s3", "s3a"):
            from trainer_entry.checkpoints.tiers.stores.s3 import S3Store

            return S3Store(place)
        from trainer_entry.checkpoints.tiers.stores.other import OtherStore

        kind = fsspec.get_filesystem_class(scheme)
        options = {**kind._get_kwargs_from_urls(place.url), **place.options}
        _refuse_incomplete(place, kind, options)
        return OtherStore(place, fsspec.filesystem(scheme, **options))
    except ImportError as error:
        raise StoreError(
            f"{place.url} needs a package that is missing ({error}); install verl-sentinel[backup], "
            "or fsspec's own for that kind of place."
        ) from error
    except (TypeError, ValueError) as error:
        raise StoreError(f"{place.url} cannot be opened with the options given: {str(error)[:300]}.") from error
    except StoreError:
        raise
    except Exception as error:  # some connect at once, and raise what their library has
        said = " ".join(str(error).split())[:300]
        raise StoreError(f"{place.url} cannot be reached: {type(error).__name__}: {said}.", "unreachable") from error


def _refuse_incomplete(place: Place, kind: Any, options: dict[str, Any]) -> None:
    """Before it is made: a file system of fsspec that was half made prints a traceback when it is thrown away."""
    wanted = [
        one.name
        for one in list(inspect.signature(kind.__init__).parameters.values())[1:]
        if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    if missing := [name for name in wanted if not options.get(name)]:
        raise StoreError(
            f"{place.url} does not say its {' and '.join(missing)}; it belongs after the two slashes, or into the "
            "options of the place in the policy."
        )


def place_of(text: str) -> Place:
    """A place as the command line gives it: a URL or a folder, which may be relative. Raises StoreError."""
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise StoreError("The place holds a user name or password; credentials come from the environment.", "refused")
    return Place(url=text if parts.scheme else os.path.abspath(os.path.expanduser(text)))
