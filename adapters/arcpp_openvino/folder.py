"""An exported model's folder: which IRs it holds, and whether they are whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov

from arcpp.errors import BadModel

from .errors import last_line

LANGUAGE, DENSE = "openvino_language_model.xml", "openvino_model.xml"
EMBEDDINGS = "openvino_text_embeddings_model.xml"
#: Where a constant lies in the .bin, and its bytes.
_PLACE = re.compile(rb'\boffset="(\d{1,18})" size="(\d{1,18})"')
TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


@dataclass(frozen=True)
class IrFolder:
    """IRs of one exported model. embeddings: of VLM-style exports, whose language model starts at
    embeddings; None where the language model has them itself."""

    path: Path
    model: Path
    embeddings: Path | None


def open_folder(path: str | Path) -> IrFolder:
    """The IRs at ``path``. Raises BadModel, one line, for a folder without them."""
    folder = Path(path)
    if not folder.is_dir():
        raise BadModel("MODEL", str(path), "is not a folder with an OpenVINO IR")
    language, embeddings = folder / LANGUAGE, folder / EMBEDDINGS
    if language.is_file():
        if not embeddings.is_file():
            raise BadModel(
                str(folder), EMBEDDINGS, f"is missing beside {LANGUAGE}: export it again"
            )
        return IrFolder(folder, _whole(language), _whole(embeddings))
    if (folder / DENSE).is_file():
        return IrFolder(folder, _whole(folder / DENSE), None)
    right = f"holds neither {DENSE} nor {LANGUAGE}: export it with optimum-cli export openvino"
    raise BadModel("MODEL", str(path), right)


def check_tokenizers(folder: IrFolder) -> None:
    """Raises BadModel where the tokenizer or the detokenizer is missing."""
    for name in TOKENIZERS:
        if not (folder.path / name).is_file():
            right = "is missing: run convert_tokenizer --with-detokenizer of openvino-tokenizers"
            raise BadModel(str(folder.path), name, right)
        _whole(folder.path / name)


def _whole(xml: Path) -> Path:
    """``xml``, whose weights are as many bytes as it describes. Raises BadModel."""
    weights = xml.with_suffix(".bin")
    if not weights.is_file():
        raise BadModel(str(xml), weights.name, "is missing: copy the weights too")
    try:
        text, size = xml.read_bytes(), weights.stat().st_size
    except OSError as error:
        raise BadModel(str(xml), error.strerror, "cannot be read") from None
    described = max((int(at) + int(count) for at, count in _PLACE.findall(text)), default=size)
    if not text.rstrip().endswith(b"</net>"):
        raise BadModel(str(xml), len(text), "bytes are not all of it: copy it again")
    if size < described:
        right = f"bytes, but {xml.name} describes {described}: it is cut off, copy it again"
        raise BadModel(str(weights), size, right)
    if size > described:
        right = f"bytes, but {xml.name} describes {described}: they are not of one export"
        raise BadModel(str(weights), size, right)
    return xml


def read_ir(core: Any, xml: Path) -> ov.Model:
    """The model in ``xml``; constants stay in the mapped .bin. Raises BadModel."""
    try:
        return core.read_model(str(xml))
    except RuntimeError as error:
        raise BadModel(str(xml), last_line(error), "is why OpenVINO cannot read it") from error
