"""S3 and what speaks like it, through s3fs: multipart uploads that go on where they stopped, proven by checksum.

What is proven: each request carries the SHA-256 of its body, and a store that computes checksums refuses a body that
differs and reports the sum it computed. Where it reports one that is right, that is the proof (``store``); where it
reports none, or the place says ``read_back``, every byte is read back and hashed. No list of finished parts is kept
here: the store itself is asked for the unfinished upload of the key and its parts, and a part counts as there only if
the store's checksum, or its MD5, is that of the local bytes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from trainer_entry.checkpoints.tiers.pace import Pace
from trainer_entry.checkpoints.tiers.policy import Place
from trainer_entry.checkpoints.tiers.stores.base import CHUNK_BYTES, Content, Entry, Sent, StoreError, proven

PART_BYTES = 32 * 1024 * 1024
MAX_PARTS = 10_000
_QUICK = {"connect_timeout": 10, "read_timeout": 300, "retries": {"max_attempts": 2}}


class S3Store:
    """Objects below ``s3://bucket/prefix``. ``part_bytes``: at least 5 MiB, which S3 asks of all parts but the last."""

    def __init__(self, place: Place, part_bytes: int = PART_BYTES) -> None:
        s3fs = importlib.import_module("s3fs")
        parts = urlsplit(place.url)
        self.place = place.url.rstrip("/")
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/")
        self._read_back = place.verify == "read_back"
        self._part_bytes = part_bytes
        options = dict(place.options)
        given = options.pop("config_kwargs", {})
        config = {**_QUICK, **(given if isinstance(given, dict) else {})}
        self._files = s3fs.S3FileSystem(**options, config_kwargs=config, use_listings_cache=False)

    def folders(self, prefix: str) -> list[str]:
        """See Store."""
        below = self._key(prefix).rstrip("/") + "/" if self._key(prefix) else ""
        found = []
        for page in self._pages(Prefix=below, Delimiter="/"):
            found += [entry["Prefix"][len(below) :].strip("/") for entry in page.get("CommonPrefixes", [])]
        return sorted(found)

    def entries(self, prefix: str) -> list[Entry]:
        """See Store."""
        below = self._key(prefix).rstrip("/") + "/" if self._key(prefix) else ""
        cut = len(self._prefix) + 1 if self._prefix else 0
        found = []
        for page in self._pages(Prefix=below):
            for entry in page.get("Contents", []):
                found.append(Entry(entry["Key"][cut:], int(entry["Size"]), entry["LastModified"].timestamp()))
        return sorted(found, key=lambda entry: entry.key)

    def read(self, key: str, limit: int) -> bytes:
        """See Store."""
        size = int(self._head(key)["ContentLength"])
        if size > limit:
            raise StoreError(f"{key} at {self.place} is larger than {limit} bytes.")
        return b"".join(self.chunks(key, Pace()))

    def chunks(self, key: str, pace: Pace) -> Iterator[bytes]:
        """See Store."""
        try:
            with self._files.open(
                f"{self._bucket}/{self._key(key)}", "rb", block_size=8 << 20, cache_type="readahead"
            ) as file:
                while chunk := file.read(CHUNK_BYTES):
                    pace.took(len(chunk))
                    yield chunk
        except Exception as error:
            raise self._told(error, key) from error

    def write(self, key: str, body: bytes) -> None:
        """See Store."""
        self._call("put_object", key, Body=body, ChecksumSHA256=_sum(body))

    def send(self, key: str, content: Content, pace: Pace, *, share: bool = False) -> Sent:
        """See Store."""
        part = self._part_size(content.size)
        there = self._existing(key, content, part, pace)
        if there is not None:
            return there
        if content.size <= part:
            body = b"".join(content.chunks(pace))
            self._call("put_object", key, Body=body, ChecksumSHA256=_sum(body))
            return self._proven(key, content, _sum(body), len(body), pace)
        expected, sent = self._multipart(key, content, part, pace)
        return self._proven(key, content, expected, sent, pace)

    def prove(self, key: str, size: int, sha256: str, checksum: str, pace: Pace) -> None:
        """See Store."""
        head = self._head(key)
        if int(head["ContentLength"]) != size:
            raise StoreError(f"{key} at {self.place} has {head['ContentLength']} bytes, not {size}.", "lies")
        reported = _reported(head)
        if checksum and reported:
            if reported != checksum:
                raise StoreError(f"{key} at {self.place} has another checksum than when it was sent.", "lies")
            if not self._read_back:
                return
        proven(self.place, key, size, sha256, self.chunks(key, pace))

    def discard(self, key: str) -> None:
        """See Store."""
        self._call("delete_object", key)

    def remove(self, prefix: str) -> int:
        """See Store."""
        entries = self.entries(prefix)
        # The record goes first: whoever comes between finds a half copy, not one with objects missing.
        entries.sort(key=lambda entry: not entry.key.endswith("verl_sentinel_copy.json"))
        for entry in entries:
            self._call("delete_object", entry.key)
        for upload in self._uploads(self._key(prefix) + "/"):
            self._call_raw(
                "abort_multipart_upload", Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )
        return sum(entry.size for entry in entries)

    def _existing(self, key: str, content: Content, part: int, pace: Pace) -> Sent | None:
        """The object, if it is there already and proven to be the same; otherwise it will be sent anew."""
        try:
            head = self._head(key)
        except StoreError as error:
            if error.kind == "missing":
                return None
            raise
        if int(head["ContentLength"]) != content.size:
            return None
        expected = _composite(content, part, pace) if content.size > part else ""
        try:
            return self._proven(key, content, expected, 0, pace)
        except StoreError as error:
            if error.kind == "lies":
                return None
            raise

    def _proven(self, key: str, content: Content, expected: str, sent: int, pace: Pace) -> Sent:
        head = self._head(key)
        if int(head["ContentLength"]) != content.size:
            raise StoreError(
                f"{key} at {self.place} has {head['ContentLength']} bytes after the upload, not {content.size}.", "lies"
            )
        reported = _reported(head)
        hashed = base64.b64encode(bytes.fromhex(content.sha256)).decode()
        if reported and not self._read_back:
            if reported not in (expected, expected.partition("-")[0], hashed):
                raise StoreError(f"{key} at {self.place} has another SHA-256 than what was sent.", "lies")
            return Sent(sent, "store", reported)
        proven(self.place, key, content.size, content.sha256, self.chunks(key, pace))
        return Sent(sent, "read back", reported)

    def _multipart(self, key: str, content: Content, part: int, pace: Pace) -> tuple[str, int]:
        """Send the parts that are not there yet. Returns the composite checksum, and the bytes that were sent."""
        full = self._key(key)
        unfinished = [upload for upload in self._uploads(full) if upload["Key"] == full]
        unfinished.sort(key=lambda upload: str(upload.get("Initiated", "")))
        there: dict[int, dict[str, Any]] = {}
        if unfinished:
            upload_id = unfinished[-1]["UploadId"]
            there = self._parts(full, upload_id)
        else:
            made = self._call("create_multipart_upload", key, ChecksumAlgorithm="SHA256")
            upload_id = made["UploadId"]
        parts, digests, sent = [], [], 0
        for number, body in enumerate(content.chunks(pace, part), start=1):
            digest = hashlib.sha256(body).digest()
            checksum = base64.b64encode(digest).decode()
            digests.append(digest)
            known = there.get(number)
            if known is not None and _same_part(known, body, checksum):
                tag = known["ETag"]
            else:
                answer = self._call(
                    "upload_part", key, PartNumber=number, UploadId=upload_id, Body=body, ChecksumSHA256=checksum
                )
                tag = answer["ETag"]
                sent += len(body)
            parts.append({"PartNumber": number, "ETag": tag, "ChecksumSHA256": checksum})
        self._call("complete_multipart_upload", key, UploadId=upload_id, MultipartUpload={"Parts": parts})
        return f"{_sum(b''.join(digests))}-{len(digests)}", sent

    def _parts(self, full: str, upload_id: str) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        marker = 0
        while True:
            answer = self._call_raw(
                "list_parts", Bucket=self._bucket, Key=full, UploadId=upload_id, PartNumberMarker=marker
            )
            found |= {int(entry["PartNumber"]): entry for entry in answer.get("Parts", [])}
            if not answer.get("IsTruncated") or not answer.get("NextPartNumberMarker"):
                return found
            marker = int(answer["NextPartNumberMarker"])

    def _uploads(self, prefix: str) -> list[dict[str, Any]]:
        """Unfinished uploads below a key; none where the store does not let us ask, and then a new one is begun."""
        try:
            answer = self._call_raw("list_multipart_uploads", Bucket=self._bucket, Prefix=prefix)
        except StoreError as error:
            if error.kind in ("refused", "other"):
                return []
            raise
        return [upload for upload in answer.get("Uploads", []) if upload.get("Key", "").startswith(prefix)]

    def _pages(self, **arguments: object) -> Iterator[dict[str, Any]]:
        token: dict[str, object] = {}
        while True:
            page = self._call_raw("list_objects_v2", Bucket=self._bucket, **arguments, **token)
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _head(self, key: str) -> dict[str, Any]:
        return self._call("head_object", key, ChecksumMode="ENABLED")

    def _call(self, operation: str, key: str, **arguments: object) -> dict[str, Any]:
        try:
            return dict(self._files.call_s3(operation, Bucket=self._bucket, Key=self._key(key), **arguments))
        except Exception as error:
            raise self._told(error, key) from error

    def _call_raw(self, operation: str, **arguments: object) -> dict[str, Any]:
        try:
            return dict(self._files.call_s3(operation, **arguments))
        except Exception as error:
            raise self._told(error, "") from error

    def _key(self, key: str) -> str:
        return "/".join(part for part in (self._prefix, key.strip("/")) if part)

    def _part_size(self, size: int) -> int:
        """The same for the same size, so that a later attempt finds the same borders; a whole number of MiB."""
        least = -(-size // MAX_PARTS)
        return self._part_bytes if least <= self._part_bytes else (least + (1 << 20) - 1) >> 20 << 20

    def _told(self, error: Exception, key: str) -> StoreError:
        """A sentence for what s3fs and botocore raise, which are many types with words of their own."""
        from trainer_entry.checkpoints.tiers.pace import Stopped

        if isinstance(error, StoreError | Stopped):
            raise error
        where = f"{key} at {self.place}" if key else self.place
        said = " ".join(str(error).split())[:300]
        kind = type(error).__name__
        if isinstance(error, FileNotFoundError):
            return StoreError(f"There is no {where} (or no such bucket).", "missing")
        if isinstance(error, PermissionError) or kind in ("NoCredentialsError", "PartialCredentialsError"):
            return StoreError(
                f"{where} refused us: {said or kind}. Check the credentials in the environment (AWS_…).", "refused"
            )
        if "Timeout" in kind or "Connect" in kind or isinstance(error, ConnectionError | TimeoutError):
            return StoreError(f"{where} cannot be reached: {said or kind}.", "unreachable")
        if re.search(r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|AccessDenied|InvalidToken", said):
            return StoreError(f"{where} refused us: {said}. Check the credentials in the environment.", "refused")
        if "BadDigest" in said or "checksum" in said.lower():
            return StoreError(f"{where} got other bytes than were sent, and says so: {said}.", "lies")
        return StoreError(f"{where} failed: {kind}: {said}.")


def _composite(content: Content, part: int, pace: Pace) -> str:
    digests = [hashlib.sha256(body).digest() for body in content.chunks(pace, part)]
    return f"{_sum(b''.join(digests))}-{len(digests)}"


def _same_part(known: dict[str, Any], body: bytes, checksum: str) -> bool:
    if int(known.get("Size", -1)) != len(body):
        return False
    if known.get("ChecksumSHA256"):
        return bool(known["ChecksumSHA256"] == checksum)
    return str(known.get("ETag", "")).strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest()


def _reported(head: dict[str, Any]) -> str:
    return str(head.get("ChecksumSHA256") or "")


def _sum(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()
