"""The garble detector: its arithmetic, its sheet, and a server that is asked."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from arcpp.cli.main import commands
from arcpp.doctor.ask import answers
from arcpp.doctor.garble import Answer, Reference, compare, perplexity, read_sheet
from arcpp.errors import BadInput

BUNDLED = Path(__file__).resolve().parents[1] / "models" / "kjv-hybrid-8l" / "reference.json"

RIGHT = [Reference([1, 2, 3], [5.0, 0.05, 4.0]), Reference([4, 5], [1.0, 1.0])]


def test_the_same_text_is_fine() -> None:
    found = compare(RIGHT, [Answer([1, 2, 3]), Answer([4, 5])], rounding=0.1)
    assert (found.tokens, found.rounded, found.wrong, found.garbled) == (5, 0, (), False)


def test_a_token_may_differ_only_where_the_model_was_not_sure() -> None:
    rounded = compare(RIGHT, [Answer([1, 9, 9]), Answer([4, 5])], rounding=0.1)
    assert (rounded.rounded, rounded.garbled) == (1, False)
    wrong = compare(RIGHT, [Answer([1, 2, 9]), Answer([9, 5])], rounding=0.1)
    assert wrong.wrong == ((0, 2, 4.0), (1, 0, 1.0))
    assert wrong.garbled


@pytest.mark.parametrize(("logprob", "garbled"), [(-0.5, False), (-0.7, True), (math.nan, True)])
def test_worse_text_shows_as_perplexity(logprob: float, garbled: bool) -> None:
    answers = [Answer([1, 2, 3], [logprob] * 3), Answer([4, 5], [logprob] * 2)]
    found = compare(RIGHT, answers, rounding=0.1, expected=math.exp(0.5))
    assert found.garbled is garbled
    assert "perplexity" in str(found)


def test_perplexity_is_that_of_a_coin() -> None:
    assert perplexity([Answer([1, 2], [math.log(0.5)] * 2)]) == pytest.approx(2.0)
    assert perplexity([Answer([1])]) is None


def test_answers_that_are_no_answers_are_refused() -> None:
    with pytest.raises(BadInput, match="one per prompt"):
        compare(RIGHT, [Answer([1, 2, 3])], rounding=0.1)
    with pytest.raises(BadInput, match="is not 3 tokens"):
        compare(RIGHT, [Answer([1, 2]), Answer([4, 5])], rounding=0.1)


def test_the_bundled_models_sheet() -> None:
    sheet = read_sheet(BUNDLED)
    assert len(sheet.prompts) == len(sheet.references) == 12
    assert sheet.perplexity == pytest.approx(2.2077)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"prompts": []}', '{"prompts": [{"prompt_ids": [1], "output_ids": [2]}]}',
     '{"prompts": [{"prompt_ids": [1], "output_ids": [2], "margins": []}]}',
     '{"prompts": [{"prompt_ids": [], "output_ids": [2], "margins": [1]}]}'],
)  # fmt: skip
def test_a_sheet_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sheet.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="reference"):
        read_sheet(path)


def test_no_sheet_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_sheet(tmp_path / "none.json")


class Server(BaseHTTPRequestHandler):
    """As much of vLLM's API as is asked: counts upwards, and is sure of it unless garbled."""

    garbled = False

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt: list[int] = asked["prompt"]
        wanted = range(asked["max_tokens"])
        tokens = [0 if self.garbled else prompt[-1] + 1 + place for place in wanted]
        choice: dict[str, Any] = {"logprobs": {"tokens": [f"token_id:{one}" for one in tokens]}}
        if "prompt_logprobs" in asked:
            logprob = None if self.garbled else math.log(0.5)
            places = [{str(one): {"logprob": logprob}} for one in prompt[1:]]
            choice["prompt_logprobs"] = [None, *places]
        self._reply({"choices": [choice]})

    def _reply(self, found: dict[str, Any]) -> None:
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    path = tmp_path / "sheet.json"
    rows = [{"prompt_ids": [5], "output_ids": [6, 7], "margins": [3.0, 3.0]}]
    path.write_text(json.dumps({"output_perplexity": 2.0, "prompts": rows}))
    return path


def test_a_server_is_asked_and_read_back(address: str, sheet: Path) -> None:
    assert answers(address, read_sheet(sheet)) == [Answer([6, 7], [math.log(0.5)] * 2)]


@pytest.mark.parametrize("garbled", [False, True])
def test_doctor_says_whether_a_server_is_garbled(
    monkeypatch: pytest.MonkeyPatch, address: str, sheet: Path, garbled: bool
) -> None:
    monkeypatch.setattr(Server, "garbled", garbled)
    arguments = ["doctor", "--garble", address, "--reference", str(sheet)]
    found = CliRunner().invoke(commands, [*arguments, "--json"], standalone_mode=False)
    assert found.return_value == int(garbled)
    said = json.loads(found.output)
    assert (said["garbled"], len(said["wrong"])) == (garbled, int(garbled))
    text = CliRunner().invoke(commands, arguments, standalone_mode=False).output
    assert text.startswith("garbled: " if garbled else "not garbled: ")


def test_one_without_the_other_is_refused(sheet: Path) -> None:
    for arguments in (["--garble", "http://x"], ["--reference", str(sheet)]):
        found = CliRunner().invoke(commands, ["doctor", *arguments], standalone_mode=False)
        assert isinstance(found.exception, BadInput)


@pytest.mark.parametrize(
    ("url", "right"), [("http://127.0.0.1:1", "does not answer"), ("ftp://x", "is not the address")]
)
def test_a_server_that_is_not_there_is_refused(sheet: Path, url: str, right: str) -> None:
    with pytest.raises(BadInput, match=right):
        answers(url, read_sheet(sheet))
