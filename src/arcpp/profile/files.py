"""What lies in a model's folder: what cannot be seen never passes for what is not there."""

from __future__ import annotations

from pathlib import Path

from arcpp.errors import UNSAID, BadModel


def unreadable(path: Path, error: OSError) -> BadModel:
    """The refusal of ``path``, which the system did not let us read."""
    return BadModel(str(path), UNSAID, f"cannot be read: {error.strerror or error}")


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder. Raises BadModel where the system does not say."""
    try:
        return path.is_dir()
    except OSError as error:
        right = f"cannot be read: {error.strerror or error}"
        raise BadModel("MODEL", str(path), right) from None


def names_in(folder: Path) -> list[str]:
    """Names in ``folder``, sorted. Raises BadModel where it cannot be listed."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None


def is_plain(path: Path) -> bool:
    """Whether ``path`` is a plain file; one with an impossible name is not."""
    try:
        return path.is_file()
    except OSError:
        return False


def check_plain(path: Path) -> None:
    """Refuse (BadModel) what is no plain file: a pipe or a device may never end."""
    try:
        plain = path.is_file()
    except OSError as error:
        raise unreadable(path, error) from None
    if not plain:
        raise BadModel(str(path), path.name[:120], "is not there, or is not a plain file")
