"""Models of the Hugging Face Hub by id: config.json from the local cache, else downloaded.

The only module that uses the network, and only for an id that the user gave.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dovetail.documents import MAX_FILE_BYTES, read_document
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
from dovetail.models.traced import AnyModel

#: How long to wait for the Hub to answer.
TIMEOUT_S = 10.0
CONFIG = "config.json"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"({_PART})/({_PART})(?:@({_PART}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_GIVE_A_PATH = "give the path of its config.json"


@frozen
class HubId:
    """`org/name`, or `org/name@revision`."""

    organisation: str
    name: str
    revision: str = "main"

    @property
    def repository(self) -> str:
        """`org/name`."""
        return f"{self.organisation}/{self.name}"

    def __str__(self) -> str:
        return self.repository if self.revision == "main" else f"{self.repository}@{self.revision}"


def hub_id(text: str) -> HubId | None:
    """The id a text is, or None where it is not one."""
    match = _ID.fullmatch(text)
    # the Hub refuses these too: '--' separates the parts in its cache
    if match is None or ".." in text or "--" in text:
        return None
    return HubId(match[1], match[2], match[3] or "main")


def from_hub(asked: HubId, *, traced: bool = False, strict: bool = False) -> AnyModel:
    """The model of an id; raises one sentence where its config cannot be had.

    `traced`: through its PyTorch module even where its family is known. `strict`: a traced model has nothing that is
    approximated.
    """
    from dovetail.models.importing import read_or_traced, trace_document

    path = _cached(asked) or _download(asked)
    name = asked.name.lower().lstrip("._-")[:100] or "imported"
    import_as = trace_document if traced else read_or_traced
    model = import_as(read_document(path, finite=False), f"{asked}/{CONFIG}", name, strict=strict)
    commit = path.parent.name
    return model.model_copy(update={"source": f"{asked.repository} at {commit[:12]}: {model.source}"})


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloaded."""
    environment = os.environ
    given = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if not given:
        caches = environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        home = environment.get("HF_HOME") or os.path.join(caches, "huggingface")
        given = os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(given)))


def _cached(asked: HubId) -> Path | None:
    folder = cache_folder() / f"models--{asked.organisation}--{asked.name}"
    commit = asked.revision
    if not _COMMIT.fullmatch(commit):
        try:
            with (folder / "refs" / asked.revision).open("rb") as file:
                commit = file.read(100).decode("ascii").strip()
        except (OSError, ValueError):
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    path = folder / "snapshots" / commit / CONFIG
    return path if os.path.isfile(path) else None


def _download(asked: HubId) -> Path:
    """Downloads config.json alone, into the cache."""
    missing = f"{quoted(str(asked), 120)} is not in the local Hugging Face cache"
    if _is_offline():
        raise InputError("model", f"{missing}, and HF_HUB_OFFLINE is set", f"unset it, or {_GIVE_A_PATH}")
    try:
        from huggingface_hub import errors, hf_hub_url
        from huggingface_hub import get_hf_file_metadata as metadata  # pyright: ignore[reportUnknownVariableType]
        from huggingface_hub import hf_hub_download as download  # pyright: ignore[reportUnknownVariableType]
        from huggingface_hub.utils import tqdm
    except ImportError:
        fix = f'run `pip install "dovetail[hub]"` to download it, or {_GIVE_A_PATH}'
        raise InputError("model", f"{missing}, and huggingface_hub is not installed", fix) from None

    class Silent(tqdm):
        """No progress bar."""

        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **(options | {"disable": True}))  # pyright: ignore[reportUnknownMemberType]

    repository, revision = asked.repository, asked.revision
    named = quoted(str(asked), 120)
    try:
        # asked first, because hf_hub_download retries for half a minute where there is no network
        size = metadata(hf_hub_url(repository, CONFIG, revision=revision), timeout=TIMEOUT_S).size
        if size is not None and size <= MAX_FILE_BYTES:
            path = download(
                repository,
                CONFIG,
                revision=revision,
                cache_dir=cache_folder(),
                etag_timeout=TIMEOUT_S,
                tqdm_class=Silent,
            )
            return Path(path)
    except errors.GatedRepoError:
        fix = "ask for access on its page, then log in with `hf auth login`"
        raise InputError("model", f"{named} is gated on the Hugging Face Hub", fix) from None
    except errors.RepositoryNotFoundError:
        fix = "correct the id, or log in with `hf auth login` if it is private"
        raise InputError("model", f"{named} is not on the Hugging Face Hub", fix) from None
    except errors.RevisionNotFoundError:
        raise InputError("model", f"{named} has no such revision on the Hugging Face Hub", "correct it") from None
    except errors.RemoteEntryNotFoundError:
        fix = "give an id whose repository holds one"
        raise InputError("model", f"{named} has no {CONFIG} on the Hugging Face Hub", fix) from None
    except Exception as error:  # of its HTTP library, which is another one in other versions
        reason = f"the download failed ({quoted(str(error) or type(error).__name__, 80)})"
        raise InputError("model", f"{missing}, and {reason}", f"check the network, or {_GIVE_A_PATH}") from None
    raise InputError("model", f"{named} has a {CONFIG} of more than {MAX_FILE_BYTES} bytes", _GIVE_A_PATH)


def _is_offline() -> bool:
    given = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return given.upper() in ("1", "ON", "YES", "TRUE")
