"""What ``heterofleet artifacts build`` left on the controller: is it whole, and may it go out?"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from finding import FLEET, Finding

from runtime.protocol.manifest import FILE_NAME, Manifest, ManifestError, checksums, pieces, read_manifest

BUILD = "heterofleet artifacts build"


def read_builds(value: Any) -> Optional[Manifest]:
    """The manifest; None where a finding says why there is none."""
    try:
        return read_manifest(Path(value).expanduser())
    except (ManifestError, OSError, TypeError, ValueError):
        return None


def build_findings(value: Any, allow_dirty: Any) -> list[Finding]:
    def wrong(found: str, wanted: str, do: str = f"make the builds anew: {BUILD}") -> list[Finding]:
        return [Finding(FLEET, "builds", found, wanted, do)]

    if not isinstance(value, str) or not value:
        return wrong("no folder", "the folder that holds the builds", f"set fleet_builds_dir to what {BUILD} made")
    folder = Path(value).expanduser()
    try:
        manifest = read_manifest(folder)
    except OSError as error:
        return wrong(
            f"{folder / FILE_NAME}: {error.strerror}", "a manifest", f"set fleet_builds_dir to what {BUILD} made"
        )
    except (ManifestError, ValueError) as error:
        return wrong(f"{folder / FILE_NAME}: {error}", "a manifest")
    found = []
    if not manifest.builds:
        found += wrong(f"no build in {folder / FILE_NAME}", "a build for amd64 or arm64")
    for arch, build in manifest.builds.items():
        try:
            with (folder / build.file).open("rb") as file:
                here = checksums(pieces(file))
        except OSError as error:
            found += wrong(f"{folder / build.file}: {error.strerror}", f"the build for {arch}")
            continue
        if here != build.sums:
            found += wrong(f"{folder / build.file} with sha256 {here.sha256[:12]}... and {here.size} bytes",
                f"sha256 {build.sha256[:12]}... and {build.size} bytes, as the manifest says")  # fmt: skip
    name = f"{manifest.version}-{manifest.commit}"
    if (manifest.dirty or manifest.version == "dev") and allow_dirty is not True:
        found += wrong(
            f"{name}, a build that no commit describes", "a build of a clean checkout",
            "commit and build again; fleet_allow_dirty: true lets it out as it is",
        )  # fmt: skip
    return found
