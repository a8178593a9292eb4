"""Container images made from nothing but bytes: for `docker load` and for the registry's HTTP API."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional, Union

# A file's bytes (mode 0644), bytes with a mode, or a symbolic link's target.
Content = Union[bytes, tuple[bytes, int], str]


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(files: Mapping[str, Content]) -> bytes:
    """A tar of the files and of the folders above them; the same content gives the same bytes."""
    folders = {
        "/".join(parts[:count])
        for parts in (path.strip("/").split("/") for path in files)
        for count in range(1, len(parts))
    }
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path.strip("/"))
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
                continue
            data, entry.mode = content if isinstance(content, tuple) else (content, 0o644)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return output.getvalue()


@dataclass(frozen=True)
class Image:
    """Layers from the lowest to the highest (plain tars) and the run settings."""

    layers: tuple[bytes, ...]
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    architecture: str = "amd64"

    def plus(self, files: Mapping[str, Content]) -> Image:
        """The same image with one more layer on top."""
        return Image(
            (*self.layers, layer(files)),
            self.entrypoint,
            self.command,
            self.environment,
            self.labels,
            self.architecture,
        )

    def config(self) -> bytes:
        """The image's config file; its hash is the image id that Docker shows."""
        settings = {
            "Entrypoint": list(self.entrypoint) or None,
            "Cmd": list(self.command) or None,
            "Env": ["PATH=/bin", *(f"{name}={value}" for name, value in self.environment.items())],
            "Labels": dict(self.labels) or None,
        }
        return json.dumps(
            {
                "architecture": self.architecture,
                "os": "linux",
                "created": "2026-01-01T00:00:00Z",
                "config": settings,
                "rootfs": {"type": "layers", "diff_ids": [digest(data) for data in self.layers]},
                "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "hf-lab"} for _ in self.layers],
            },
            sort_keys=True,
        ).encode()

    @property
    def id(self) -> str:
        return digest(self.config())

    def archive(self, *tags: str) -> bytes:
        """What `docker load` takes."""
        names = [f"{digest(data)[7:]}.tar" for data in self.layers]
        config_name = f"{self.id[7:]}.json"
        manifest = [{"Config": config_name, "RepoTags": list(tags), "Layers": names}]
        return layer(
            {
                "manifest.json": json.dumps(manifest).encode(),
                config_name: self.config(),
                **dict(zip(names, self.layers)),
            }
        )

    def blobs(self) -> tuple[dict[str, bytes], bytes]:
        """Blobs by digest, and the manifest, as a registry keeps them."""
        packed = [gzip.compress(data, 1, mtime=0) for data in self.layers]
        config = self.config()

        def reference(kind: str, data: bytes) -> dict[str, object]:
            return {"mediaType": f"application/vnd.docker.{kind}", "size": len(data), "digest": digest(data)}

        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": reference("container.image.v1+json", config),
            "layers": [reference("image.rootfs.diff.tar.gzip", data) for data in packed],
        }
        return {digest(data): data for data in (config, *packed)}, json.dumps(manifest).encode()


MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def split_reference(reference: str) -> tuple[str, Optional[str]]:
    """``lab/task:1`` is the repository ``lab/task`` and the tag ``1``."""
    name, colon, tag = reference.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (reference, None)
