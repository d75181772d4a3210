"""A download from the hub is the listed commit, whole, or it is refused: against a stub of the hub."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from breakeven.config import ModelConfig, SourceConfig
from breakeven.errors import BreakevenError, DownloadError
from breakeven.models import sources, store
from breakeven.models.sources import hub as hub_source
from helpers.hub_stub import REPO, REVISION, StubHub, serve
from helpers.model_files import quiet, save_folder

MODEL = ModelConfig(name="tiny", source=SourceConfig(kind="hub", repo=REPO, revision=REVISION), license="MIT")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = save_folder(tmp_path_factory.mktemp("model"))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def point_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what HF_ENDPOINT=url does before the library is imported."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    # Retries wait a second each; the tests need not.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    # It writes 10 MB at a time; what breaks off within the first piece is not resumed but sent again.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    with serve(model_files) as stub:
        point_to(stub.url, monkeypatch)
        yield stub
        close_session()


def fetch(tmp_path: Path) -> Path:
    return sources.fetch(MODEL, tmp_path / "store", quiet)


def nothing_stored(tmp_path: Path) -> bool:
    return not list((tmp_path / "store").glob("tiny-*"))


def test_a_commit_is_fetched_whole_then_never_asked_for_again(
    hub: StubHub, model_files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.files |= {"README.md": b"x", "modeling_tiny.py": b"x", "pytorch_model.bin": b"x", "onnx/config.json": b"{}"}
    folder = fetch(tmp_path)
    manifest = store.verify(folder)
    kept = {name: content for name, content in model_files.items() if name != "README.md"}
    assert {name: (folder / name).read_bytes() for name in manifest["files"]} == kept
    assert manifest["source"] == {"kind": "hub", "repo": REPO, "revision": REVISION}
    assert hub.transferred()[0] == "config.json", "what cannot be run should be refused before its weights are fetched"
    assert hub.transferred()[-1] == WEIGHTS
    asked = len(hub.requests)
    assert fetch(tmp_path) == folder
    assert len(hub.requests) == asked, "the network was used although everything was there"


def test_a_transfer_that_breaks_off_goes_on_at_the_same_byte(hub: StubHub, tmp_path: Path) -> None:
    hub.cut_after[WEIGHTS] = [5000]
    folder = fetch(tmp_path)
    assert (folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    ranges = [part for _, path, part in hub.requests if path.endswith(WEIGHTS)]
    assert ranges == [None, "bytes=5000-"]


def test_an_interrupted_download_is_resumed_by_the_next_run(
    hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(url: str, stream: object, **arguments: object) -> None:
        if url.endswith(WEIGHTS):
            stream.write(hub.files[WEIGHTS][:7000])  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        original(url, stream, **arguments)

    import huggingface_hub.file_download as library

    original = library.http_get
    monkeypatch.setattr(library, "http_get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path)
    assert nothing_stored(tmp_path)
    monkeypatch.setattr(library, "http_get", original)
    hub.requests.clear()
    folder = fetch(tmp_path)
    assert hub.transferred() == [WEIGHTS], "files that had arrived were fetched again"
    assert [part for _, path, part in hub.requests if path.endswith(WEIGHTS)] == ["bytes=7000-"]
    assert (folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_a_resumed_download_whose_beginning_is_wrong_is_thrown_away(hub: StubHub, tmp_path: Path) -> None:
    folder_name = store.folder_name("tiny", {"kind": "hub", "repo": REPO, "revision": REVISION})
    arriving = tmp_path / "store" / ".partial" / folder_name / "files"
    arriving.mkdir(parents=True)
    (arriving / f"{WEIGHTS}.incomplete").write_bytes(b"?" * 1000)
    with pytest.raises(DownloadError, match=r"model\.safetensors arrived, but.*run the same command again"):
        fetch(tmp_path)
    assert nothing_stored(tmp_path)
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_a_server_that_ignores_ranges_gives_a_whole_file_all_the_same(hub: StubHub, tmp_path: Path) -> None:
    hub.cut_after[WEIGHTS] = [5000]
    hub.ignore_ranges = True
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_a_body_that_is_always_truncated_is_never_taken_for_whole(hub: StubHub, tmp_path: Path) -> None:
    whole = hub.files[WEIGHTS]
    hub.listed[WEIGHTS] = whole
    hub.files[WEIGHTS] = whole[:-100]  # a shorter file, sent with a Content-Length that agrees with it
    for _ in range(2):
        with pytest.raises(DownloadError, match=r"hub cannot be reached|arrived, but"):
            fetch(tmp_path)
        assert nothing_stored(tmp_path)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"], ids=["sha256 of LFS", "git blob id"])
def test_another_content_of_the_same_size_is_refused(hub: StubHub, tmp_path: Path, name: str) -> None:
    hub.listed[name] = hub.files[name]
    altered = bytearray(hub.files[name])
    altered[-3] ^= 1
    hub.files[name] = bytes(altered)
    with pytest.raises(DownloadError, match=rf"{name} arrived, but its size or digest is not what the hub lists"):
        fetch(tmp_path)
    assert nothing_stored(tmp_path)


def test_a_missing_revision_is_named(hub: StubHub, tmp_path: Path) -> None:
    other = "f" * 40
    model = ModelConfig(name="tiny", source=SourceConfig(kind="hub", repo=REPO, revision=other), license="MIT")
    with pytest.raises(DownloadError, match=f"{REPO} has no commit {other}"):
        sources.fetch(model, tmp_path / "store", quiet)


def test_a_hub_that_answers_for_another_commit_is_refused(hub: StubHub, tmp_path: Path) -> None:
    hub.revision = "e" * 40
    with pytest.raises(DownloadError, match="answered for commit eee"):
        fetch(tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "no repository someone/tiny"),
        (403, "GatedRepo", r"gated: accept its licence.*HF_TOKEN.*kind=local"),
        (500, "", "cannot be reached at http://127"),
        (429, "", "cannot be reached at http://127"),
    ],
)
def test_refusals_of_the_listing_say_what_helps(
    hub: StubHub, tmp_path: Path, status: int, code: str, message: str
) -> None:
    hub.status[f"/revision/{REVISION}"] = (status, code)
    with pytest.raises(DownloadError, match=message):
        fetch(tmp_path)


def test_a_listed_file_that_is_gone_is_named(hub: StubHub, tmp_path: Path) -> None:
    hub.status[f"/{WEIGHTS}"] = (404, "EntryNotFound")
    with pytest.raises(DownloadError, match=rf"a file that the hub lists for {REPO}.*not there"):
        fetch(tmp_path)
    assert nothing_stored(tmp_path)


def test_a_repository_of_pickles_is_refused_before_anything_is_fetched(hub: StubHub, tmp_path: Path) -> None:
    hub.files["pytorch_model.bin"] = hub.files.pop(WEIGHTS)
    with pytest.raises(DownloadError, match=r"only pickled weights \(pytorch_model\.bin\), which can run code"):
        fetch(tmp_path)
    assert hub.transferred() == []


def test_an_unsupported_architecture_is_refused_before_its_weights_are_fetched(hub: StubHub, tmp_path: Path) -> None:
    hub.files["config.json"] = b'{"model_type": "mamba"}'
    with pytest.raises(DownloadError, match="'mamba' is not supported"):
        fetch(tmp_path)
    assert hub.transferred() == ["config.json"]


def test_a_name_that_leaves_the_folder_is_never_written(hub: StubHub, tmp_path: Path) -> None:
    hub.files["../../evil.json"] = b"{}"
    hub.files["..%2Fevil.json"] = b"{}"
    fetch(tmp_path)
    assert not list(tmp_path.rglob("*evil*"))


def test_shards_are_taken_with_their_index(hub: StubHub, tmp_path: Path) -> None:
    hub.files["model-00001-of-00001.safetensors"] = hub.files.pop(WEIGHTS)
    from safetensors import safe_open

    shard = tmp_path / "shard.safetensors"
    shard.write_bytes(hub.files["model-00001-of-00001.safetensors"])
    with safe_open(shard, "pt") as tensors:
        names = dict.fromkeys(tensors.keys(), "model-00001-of-00001.safetensors")
    index = str({"metadata": {"total_size": 1}, "weight_map": names}).replace("'", '"')
    hub.files["model.safetensors.index.json"] = index.encode()
    manifest = store.verify(fetch(tmp_path))
    assert "model-00001-of-00001.safetensors" in manifest["files"]
    assert manifest["dtype_stored"] == "F32"


def test_too_little_memory_is_refused_before_the_weights_are_fetched(hub: StubHub, tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match="GiB of memory"):
        sources.fetch(MODEL, tmp_path / "store", quiet, max_ram_gib=1e-6)
    assert hub.transferred() == []


def test_an_unreachable_hub_is_said_clearly_with_the_way_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        point_to(f"http://127.0.0.1:{free.getsockname()[1]}", monkeypatch)
    with pytest.raises(
        DownloadError, match=r"hub cannot be reached at http://127.*kind=local model\.source\.path=FOLDER"
    ):
        fetch(tmp_path)
    assert nothing_stored(tmp_path)


def test_a_hub_that_dies_in_the_middle_keeps_what_has_arrived(hub: StubHub, tmp_path: Path) -> None:
    hub.cut_after[WEIGHTS] = [3000] + [0] * 20
    with pytest.raises(DownloadError, match=r"broke off.*What has arrived is kept"):
        fetch(tmp_path)
    assert nothing_stored(tmp_path)
    hub.cut_after.clear()
    hub.requests.clear()
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert [part for _, path, part in hub.requests if path.endswith(WEIGHTS)] == ["bytes=3000-"]


def test_offline_mode_is_named_as_the_reason(hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match=r"HF_HUB_OFFLINE.*kind=local"):
        fetch(tmp_path)


def test_git_blob_id_is_that_of_git(tmp_path: Path) -> None:
    (tmp_path / "hello").write_bytes(b"hello\n")
    assert hub_source.git_blob_id(tmp_path / "hello") == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
