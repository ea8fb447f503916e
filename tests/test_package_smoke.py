"""The package as it is installed, and documentation that cannot drift from the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from itertools import groupby
from pathlib import Path

import pytest

import rl_training
from rl_training.experiment.config import load_config, packaged_configs
from rl_training.experiment.registry import AlgorithmSpec, list_algorithm_specs, resolve
from rl_training.settings import Settings
from tools import describe_config

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLANS = ROOT / "docs" / "plans"
SPECS = list_algorithm_specs()
NAMES = [spec.name for spec in SPECS]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def slug(heading: str) -> str:
    """The anchor a heading of a page gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip would install it, built without a network (torch brings setuptools) from a copy."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "src" / "rl_training").rglob("*"):
        if path.is_file() and path.suffix in (".py", ".pyi", ".yaml", ".typed"):
            copy = source / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(target)], cwd=source, check=True, capture_output=True)
    return next(target.glob("*.whl"))


def test_an_installed_package_loads_its_configs_and_knows_its_commands(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "rl-training = rl_training.__main__:main" in archive.read(entry).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
        typed = {"rl_training/py.typed", "rl_training/__init__.pyi", "rl_training/api/__init__.pyi"}
        assert typed <= set(archive.namelist())
    (site / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("-packages")), encoding="utf-8"
    )
    program = """
import rl_training
from importlib.metadata import version
from rl_training.experiment.config import load_config, packaged_configs
from rl_training.experiment.registry import resolve
assert version("rl-training") == rl_training.__version__
for name in packaged_configs():
    resolve(load_config(name).config)
print(rl_training.__file__, *packaged_configs(), sep="\\n")
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    place, *names = done.stdout.splitlines()
    assert Path(place).is_relative_to(site)
    assert names == packaged_configs()


def test_configs_in_the_checkout_are_the_packaged_ones() -> None:
    assert (ROOT / "configs").resolve() == Path(rl_training.__file__).parent / "assets" / "configs"


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_every_algorithm_has_a_starter_that_names_it(spec: AlgorithmSpec) -> None:
    starter = "dqn/cartpole" if spec.name == "dqn" else f"{spec.name}/pendulum"
    config = load_config(starter).config
    resolve(config)
    assert config.algo == spec.name


def test_the_readme_has_a_row_for_every_algorithm() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| [^|]+ \| (\d{4}) \| (\S+) \| [^|]+ \| `(\S+)` \|$", README, re.M)
    assert [(name, int(year), regime) for name, _, year, regime, _ in rows] == [
        (spec.name, spec.year, spec.regime) for spec in SPECS
    ]
    for name, public, _, _, config in rows:
        assert getattr(rl_training, public).algo == name
        assert config in packaged_configs()


@pytest.mark.parametrize(
    "word", ["eval_interval", "early_stopping", "checkpoint_interval", "make train", "make test"]
)
def test_the_readme_documents(word: str) -> None:
    assert f"`{word}`" in README


def test_the_roadmap_lists_the_waves_in_the_order_they_were_built() -> None:
    roadmap = (PLANS / "2026-03-12-rl-expansion-roadmap-design.md").read_text(encoding="utf-8")
    waves = re.findall(r"^\| (\d+) \| ([^|]+) \|", roadmap, re.M)
    assert [int(number) for number, _ in waves] == list(range(1, len(waves) + 1))
    assert [name for _, names in waves for name in re.findall(r"`(\w+)`", names)] == NAMES


def test_the_sourcebook_has_every_algorithm_under_its_year() -> None:
    sourcebook = (PLANS / "2026-03-12-rl-yearly-sourcebook-design.md").read_text(encoding="utf-8")
    found = {
        int(year): re.findall(r"`(\w+)`", names)
        for year, names in re.findall(r"^\| (\d{4}) \| (.+) \|$", sourcebook, re.M)
    }
    by_year = groupby(sorted(SPECS, key=lambda spec: spec.year), key=lambda spec: spec.year)
    assert found == {year: [spec.name for spec in specs] for year, specs in by_year}


@pytest.mark.parametrize(
    "name",
    [
        "redq",
        "awac-online-controls-phase3",
        "crr-phase8",
        "edac-phase12",
        "rlpd-phase13",
        "mainstream-rl-package-design",
        "rl-expansion-roadmap-design",
        "rl-yearly-sourcebook-design",
    ],
)
def test_every_promised_plan_is_there_and_names_what_exists(name: str) -> None:
    text = (PLANS / f"2026-03-12-{name}.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|examples|docs)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:algorithms|models|runtime|data|experiment)/\w+\.py)", text):
        assert (ROOT / "src" / "rl_training" / path).exists(), path


def test_the_architecture_names_every_layer_and_only_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "rl_training"
    for path in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        assert (package / path).is_file(), path
    for layer in package.iterdir():
        if (layer / "__init__.py").exists():
            assert f"`{layer.name}/`" in text, layer.name
    for file in (package / "runtime").glob("[!_]*.py"):
        assert f"`runtime/{file.name}`" in text or file.name.endswith("_trainer.py"), file.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name) if name else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor in {slug(heading) for heading in headings}, target


def test_the_configuration_page_is_current() -> None:
    assert describe_config.PAGE.read_text(encoding="utf-8") == describe_config.render(), (
        "run: python -m tools.describe_config"
    )


def test_a_key_says_what_it_means() -> None:
    """Under the key itself, or under that of the class whose default it changes; without a word it is refused."""

    class Spoken(Settings):
        key: int = 0
        """so many"""

    class Changed(Spoken):
        key: int = 1

    class Silent(Settings):
        key: int = 0

    assert describe_config.rows(Spoken)[-1] == "| `key` | whole number | `0` | so many |"
    assert describe_config.rows(Changed)[-1] == "| `key` | whole number | `1` | so many |"
    with pytest.raises(LookupError, match="Silent: key has no meaning; write a docstring under the field"):
        describe_config.rows(Silent)
