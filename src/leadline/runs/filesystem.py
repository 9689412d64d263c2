"""Which file systems can hold a write-ahead log: it needs memory shared by all who have the file open."""

from __future__ import annotations

from pathlib import Path

MOUNTS = Path("/proc/self/mounts")

# Between machines memory is not shared, and SQLite does not notice. Names as the Linux kernel writes them.
# Source: sqlite.org/wal.html, "all processes using a database must be on the same host computer".
# fmt: off
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "panfs", "smb3", "smbfs",
    "vboxsf", "virtiofs", "wekafs",
})
# fmt: on


def network_kind(path: Path, mounts: str | None = None) -> str:
    """The kind of the network file system that the file is on; "" if it is on none, or that is not known."""
    kinds = _mounted(_read_mounts() if mounts is None else mounts)
    place = path.absolute().parent.resolve()
    nearest = next((each for each in (place, *place.parents) if str(each) in kinds), None)
    kind = kinds[str(nearest)] if nearest is not None else ""
    return kind if kind in NETWORK else ""


def _mounted(mounts: str) -> dict[str, str]:
    """Mount point to kind; what was mounted last on a point is on top."""
    rows = (line.split() for line in mounts.splitlines())
    return {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}


def _read_mounts() -> str:
    try:
        return MOUNTS.read_text(errors="replace")
    except OSError:  # not Linux: then only SQLite's own answer counts
        return ""
