"""A model from the Hugging Face Hub at a pinned commit.

The hub's own listing of that commit says size and digest of every file; each file is compared with it after the
download, because a finished transfer alone proves nothing (huggingface_hub #3371, #3643). A transfer that was cut off
goes on where it stopped. `HF_ENDPOINT` and `HF_TOKEN` are honoured.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakeven import io
from breakeven.config import SourceConfig
from breakeven.errors import DownloadError
from breakeven.models import facts, files, store
from breakeven.models.store import Progress

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """What the hub says about one file at the pinned commit."""

    name: str
    size: int  # bytes
    sha256: str | None  # of files kept by LFS
    git_sha1: str | None  # git blob id of the others

    def matches(self, path: Path) -> bool:
        """Return whether a local file has this size and digest."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.sha256 is not None:
            return io.sha256_file(path) == self.sha256
        return git_blob_id(path) == self.git_sha1


def git_blob_id(path: Path) -> str:
    """Return git's id of a file: the sha1 of a small header and the content."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def identity(source: SourceConfig, store: Path) -> dict[str, Any]:
    """Return repository and commit: a commit pins every file."""
    return {"repo": source.repo, "revision": source.revision}


def prepare(source: SourceConfig, partial: Path, max_ram_gib: float, progress: Progress) -> dict[str, Any]:
    """Download and verify the files of the commit; see `breakeven.models.sources`."""
    repo, revision = str(source.repo), str(source.revision)
    with _hub_errors(repo, revision):
        listed = {remote.name: remote for remote in _list(repo, revision)}
        names = files.wanted(listed, f"{repo} at {revision[:12]}")
        # The configuration first: what cannot be run is refused before its gigabytes are fetched.
        names.sort(key=lambda name: (name != "config.json", listed[name].size))
        arriving = partial / "files"
        arriving.mkdir(parents=True, exist_ok=True)
        pending = sum(listed[name].size for name in names if not listed[name].matches(arriving / name))
        store.require_disk(partial, pending, f"downloading {repo}")
        store.require_ram(_weight_bytes(listed, names), max_ram_gib, repo)
        for name in names:
            _fetch(repo, revision, listed[name], arriving, progress)
            if name == "config.json":
                facts.require_supported(arriving)
    for name in names:
        (arriving / name).rename(partial / "ready" / name)
    return {}


def _weight_bytes(listed: dict[str, RemoteFile], names: list[str]) -> int:
    return sum(listed[name].size for name in names if name.endswith(".safetensors"))


def _list(repo: str, revision: str) -> list[RemoteFile]:
    """Ask the hub for the files of a commit.

    Raises:
        DownloadError: the hub answers for another commit, or leaves out a size or digest.
    """
    from huggingface_hub import HfApi

    info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    if info.sha != revision:
        raise DownloadError(f"the hub answered for commit {info.sha} of {repo} instead of {revision}. Try again later.")
    remotes = []
    for sibling in info.siblings or []:
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        if sibling.size is None or (sha256 is None and sibling.blob_id is None):
            raise DownloadError(f"the hub lists {sibling.rfilename} of {repo} without size or digest: it is unusable.")
        remotes.append(RemoteFile(sibling.rfilename, sibling.size, sha256, sibling.blob_id))
    return remotes


def _fetch(repo: str, revision: str, remote: RemoteFile, folder: Path, progress: Progress) -> None:
    """Download one file unless it is there; go on where an earlier try stopped.

    Raises:
        DownloadError: what came is not what the hub lists.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not in __all__

    target, incomplete = folder / remote.name, folder / f"{remote.name}.incomplete"
    if remote.matches(target):
        return
    target.unlink(missing_ok=True)
    start = incomplete.stat().st_size if incomplete.is_file() else 0
    if start > remote.size:
        incomplete.unlink()
        start = 0
    verb = f"resuming at {start / 1e6:.1f} MB of" if start else "downloading"
    progress(f"{verb} {repo}/{remote.name} ({remote.size / 1e6:.1f} MB)")
    with incomplete.open("ab") as stream:
        http_get(
            hf_hub_url(repo, remote.name, revision=revision),
            stream,
            resume_size=start,
            headers=build_hf_headers(),
            expected_size=remote.size,
            displayed_filename=remote.name,
        )
    if not remote.matches(incomplete):
        incomplete.unlink()
        raise DownloadError(
            f"{repo}/{remote.name} arrived, but its size or digest is not what the hub lists for {revision[:12]}. "
            "It was thrown away; run the same command again. If it happens again, a proxy alters the transfer."
        )
    incomplete.rename(target)


@contextlib.contextmanager
def _hub_errors(repo: str, revision: str) -> Iterator[None]:
    """Say in one sentence what went wrong at the hub and what helps."""
    from huggingface_hub import constants, errors

    instead = (
        "To do without the hub, copy the model's folder (config.json, tokenizer.json, model.safetensors) to this "
        "machine and run with model.source.kind=local model.source.path=FOLDER."
    )
    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{repo} is gated: accept its licence on its page, then log in (`hf auth login`) or set HF_TOKEN. {instead}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DownloadError(f"{repo} has no commit {revision}. Pin a commit that its history shows.") from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"the hub has no repository {repo}, or it is private: log in with `hf auth login`."
        ) from error
    except errors.EntryNotFoundError as error:
        raise DownloadError(f"a file that the hub lists for {repo} at {revision} is not there ({error}).") from error
    except errors.OfflineModeIsEnabled as error:
        raise DownloadError(f"hub access is switched off (HF_HUB_OFFLINE). Unset it, or: {instead}") from error
    except Exception as error:
        if not _is_transfer_error(error):
            raise
        raise DownloadError(
            f"the hub cannot be reached at {constants.ENDPOINT}, or broke off ({type(error).__name__}: {error}). "
            f"What has arrived is kept: run the same command again to go on. {instead}"
        ) from error


def _is_transfer_error(error: Exception) -> bool:
    """Return whether an exception comes from the network rather than from the disk or from a bug."""
    import httpx2

    # http_get reports a body of the wrong length as a bare OSError; a full disk has an errno.
    return isinstance(error, httpx2.HTTPError) or (isinstance(error, OSError) and error.errno is None)
