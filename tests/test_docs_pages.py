"""The documentation site: guides run, the navigation is complete, generated parts match the code.

A guide is run as a reader would: block after block, in one folder, with a hundredth of the steps. A block is
written to a file if its first line names one (`# reach.yaml`); `runs/RUN` is the newest run in `runs`. A block that
cannot run here is preceded by a reason, `<!-- not run: needs SLURM -->`; its commands must still exist.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import rl_training
from rl_training.api import managed
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config, packaged_configs
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from tests import test_readme
from tests.reliability.processes import Child, command
from tests.test_readme import shortened
from tools import describe_algorithm

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ALGORITHMS = [spec.name for spec in list_algorithm_specs()]
# Their commands and programs are run here; every other page has its own tests.
GUIDES = ["index", "start", "choosing", *(f"guides/{path.stem}" for path in sorted((DOCS / "guides").glob("*.md")))]
# Slower pages: they draw reports, stack populations and train ensembles.
SLOW = {"start", "guides/data", "guides/offline-to-online", "guides/seeds"}
BLOCK = re.compile(r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block of a page."""

    reason: str  # why it is not run; empty where it is
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that its first line names."""
        found = re.match(r"# ([\w-]+\.(?:py|yaml))\n", self.text)
        return found[1] if found else ""

    def lines(self) -> list[str]:
        """Commands of a shell block; lines that end with a backslash are joined."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]

    def commands(self) -> list[list[str]]:
        return [shlex.split(line, comments=True) for line in self.lines() if line.startswith("rl-training")]


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(text)]


def short(text: str, divisor: int = 100) -> str:
    """Reduce the steps to a hundredth, like `shortened` for Python, in commands and YAML as well."""
    spelling = r'(--steps |"?(?:total_timesteps|learning_starts)"?: )(\d+)'
    return re.sub(spelling, lambda found: f"{found[1]}{max(1, int(found[2]) // divisor)}", shortened(text))


def short_file(text: str) -> str:
    """A tenth of the steps for a study whose packaged configuration begins updates later than a hundredth."""
    base, steps = (re.search(pattern, text, re.M) for pattern in (r"^base: (\S+)$", r"total_timesteps: (\d+)"))
    starts = load_config(base[1]).config.algo_kwargs.get("learning_starts", 0) if base else 0
    return short(text, 10 if steps and int(steps[1]) // 100 <= starts else 100)


def newest(place: str) -> str:
    """`runs/RUN` and what is below it, with the name of the newest run."""
    folder, run, below = place.partition("/RUN")
    if not run:
        return place
    found = max(Path(folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return f"{found}{below}"


def quick(words: list[str]) -> list[str]:
    """A training command with a hundredth of the steps that its configuration or its algorithm would make."""
    if words[1] != "train":
        return words
    name = words[words.index("--config") + 1] if "--config" in words else ""
    if name and name not in packaged_configs():  # a file of the page, whose numbers are small already
        return words
    config = load_config(name).config if name else None
    if config is None:
        return words
    more = [] if "--steps" in words else ["--steps", str(config.total_timesteps // 100)]
    if "learning_starts" in config.algo_kwargs and "learning_starts" not in " ".join(words):
        more += ["--set", f"learning_starts={config.algo_kwargs['learning_starts'] // 100}"]
    return [*words, *more]


def runs_in(folder: Path) -> int:
    return len(list(folder.glob("*/*/run.json")))


def walk(page: str, text: str, folder: Path) -> None:
    """Go through the blocks of a page, in the current folder."""
    scope: dict[str, Any] = {"__name__": page.replace("/", "_")}
    for number, block in enumerate(one for one in blocks(text) if not one.reason):
        if block.file:
            Path(block.file).write_text(short_file(block.text), encoding="utf-8")
        if block.language == "python":
            before = runs_in(folder)
            exec(compile(short(block.text), f"{page}.md ({number})", "exec", dont_inherit=True), scope)
            if "stable_baselines3" not in block.text:
                made, wanted = runs_in(folder) - before, block.text.count(".learn(")
                assert made > wanted if "seeds=" in block.text else made == wanted, f"{page}.md ({number})"
        elif block.language == "bash":
            for words in Block("", "bash", short(block.text)).commands():
                arguments = [newest(word) for word in quick(words)[1:]]
                child = Child(command(*arguments), folder / "output.txt")
                assert child.wait() == 0, f"{shlex.join(words)}\n{child.text()}"


@pytest.mark.parametrize(
    "page", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in GUIDES]
)
def test_guides_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    walk(page, (DOCS / f"{page}.md").read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "td3" else pytest.mark.slow) for name in ALGORITHMS]
)
def test_the_programs_of_an_algorithm_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    walk(name, describe_algorithm.render(name), tmp_path)
    assert len(list((tmp_path / "runs").iterdir())) == 2


def every_block() -> Iterator[tuple[str, Block]]:
    for page in GUIDES:
        for block in blocks((DOCS / f"{page}.md").read_text(encoding="utf-8")):
            yield page, block


def test_every_block_of_a_guide_is_tested() -> None:
    """Shell blocks contain only commands of this package, and YAML blocks are files that a command reads."""
    for page, block in every_block():
        if block.reason or block.language in ("python", "bibtex"):
            continue
        if block.language == "yaml":
            assert block.file, f"{page}: its first line names no file"
        elif block.language == "bash":
            assert len(block.commands()) == len(block.lines()), f"{page}: {block.text}"
        else:
            assert block.language in ("", "python"), f"{page}: {block.language}"


@pytest.mark.parametrize(
    "words", [words for _, block in every_block() if block.reason for words in block.commands()], ids=shlex.join
)
def test_commands_that_are_not_run_exist(words: list[str]) -> None:
    answer = CliRunner().invoke(main, [*words[1:], "--help"])
    assert answer.exit_code == 0, answer.output


@pytest.mark.parametrize("library", ["Stable-Baselines3", "d3rlpy", "CORL"])
def test_another_library_is_compared_with_existing_settings(library: str) -> None:
    """Programs are Python on both sides, and the names in the column of this package are names of settings."""
    page = (DOCS / "guides" / "migrating.md").read_text(encoding="utf-8")
    text = page.partition(f"\n## {library}\n")[2].partition("\n## ")[0]
    programs = [block.text for block in blocks(text) if block.language == "python"]
    assert any("from rl_training import" in ast.unparse(ast.parse(program)) for program in programs)
    known = {*TrainConfig.model_fields, *ALGORITHMS, "env", "learn", "progress_bar", "resume"}
    known |= {key for name in ALGORITHMS for key in get_algorithm_spec(name).sections.owners()}
    here = [row.split("|")[2] for row in text.splitlines() if row.startswith("| ")]
    told = [code for cell in here for code in re.findall(r"`([^`]+)`", cell)]
    names = [found[1] for code in told if (found := re.match(r"([a-z_]+)(?:$|=|: )", code))]
    assert len(names) > 20
    assert [name for name in names if name not in known] == []


def hints_for(name: str, algo: type[rl_training.ManagedAlgorithm]) -> list[str] | None:
    """The hints for a setting, a method and an argument of `learn`; None if the class has the setting or method."""
    model, found = algo(None), []
    attempts: list[Callable[[], object]] = [
        lambda: algo(None, **{name: 1}),
        lambda: getattr(model, name),
        lambda: model.learn(1, **{name: 1}),  # type: ignore[call-arg]
    ]
    for attempt in attempts:
        try:
            attempt()
        except (ConfigError, AttributeError, TypeError) as error:
            found.append(str(error).partition("; ")[2])
        else:
            return None
    return found


@pytest.mark.parametrize(
    ("library", "default"), [("Stable-Baselines3", "SAC"), ("CleanRL", "SAC"), ("d3rlpy", "CQL"), ("CORL", "CQL")]
)
def test_the_error_for_a_name_of_another_library_names_its_counterpart(library: str, default: str) -> None:
    page = (DOCS / "guides" / "migrating.md").read_text(encoding="utf-8")
    functions = {"evaluate_policy", "get_d4rl", "get_minari", "load_learnable"}  # of modules there, not of classes
    checked = 0
    for row in page.partition(f"\n## {library}\n")[2].partition("\n## ")[0].splitlines():
        theirs, ours = row.split("|")[1:3] if row.startswith("| ") else ("", "")
        words = re.findall(r"\w+", re.sub(r"`[^`]*`", "", theirs).replace("PlusBC", "BC").replace("+BC", "BC"))
        algo = getattr(rl_training, next((word for word in words if word in rl_training.__all__), default))
        here = set(re.findall(r"[a-z_]{3,}", ours))
        for name in set(re.findall(r"`([a-z_0-9]+)(?:[=(][^`]*)?`", theirs)) - functions:
            if (hints := hints_for(name, algo)) is not None:
                named = any(here & set(re.findall(r"[a-z_]+", hint)) for hint in hints)
                assert named if here else any(hints), (name, hints)
                assert named or not any("did you mean" in hint for hint in hints), (name, hints)
                checked += 1
    assert checked > 10


def test_the_navigation_has_every_page_once() -> None:
    """Follows the toctrees from the start page; the plans are not part of the site."""
    found: list[str] = []

    def follow(page: str) -> None:
        found.append(page)
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.M | re.S):
            for line in tree.splitlines():
                if not line or line.startswith(":"):
                    continue
                entry = (Path(page).parent / re.sub(r".*<(.+)>", r"\1", line)).as_posix()
                for path in sorted(DOCS.glob(f"{entry}.md")) or [DOCS / entry]:
                    follow(path.relative_to(DOCS).with_suffix("").as_posix())

    follow("index")
    there = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    excluded = {"algorithms/_template", *(page for page in there if page.startswith("plans/"))}
    assert sorted(found) == sorted(there - excluded)


def test_every_page_with_python_is_tested() -> None:
    """A page with Python in it is walked through here, or another test reads it."""
    others = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    for path in DOCS.rglob("*.md"):
        page = path.relative_to(DOCS).with_suffix("").as_posix()
        folder = page.partition("/")[0]
        if "```python" in path.read_text(encoding="utf-8") and folder not in ("plans", "algorithms"):
            assert page in GUIDES or path in test_readme.PAGES or f'"{page}.md"' in others, page


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_a_page_made_from_the_code(name: str) -> None:
    spec, page = get_algorithm_spec(name), describe_algorithm.render(name)
    for key in spec.sections.owners():
        assert f"| `{key}` |" in page, key
    for key, value in spec.sections.defaults.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
        shown = json.dumps(value) if isinstance(value, dict) else getattr(value, "type", value)
        assert f"`{shown}`".lower() in row.lower(), row
    assert all(f"`{preset}`" in page for preset in packaged_configs() if preset.startswith(f"{name}/"))
    assert "the the task" not in page
    assert page.count("The data set is from Minari") <= 1
    assert "@" in describe_algorithm.particular(name)[1]["Citation"]
    assert "](../results/bare-classes.md)" in page  # a table with its row


def test_every_term_of_every_update_is_explained() -> None:
    reported = {term for spec in list_algorithm_specs() for term in describe_algorithm.terms(spec)}
    assert reported == set(describe_algorithm.TERMS)


def test_a_row_belongs_to_one_algorithm() -> None:
    text = (
        "## One\n\n|  | b |\n|---|---|\n| TD3 | 1 |\n| TD3+BC | 2 |\n| Stable-Baselines3 TD3 | 3 |\n| TD3, x | 4 |"
    )
    assert [line for line in describe_algorithm.results(("TD3",), text) if "|" in line][2:] == [
        "| TD3 | 1 |",
        "| Stable-Baselines3 TD3 | 3 |",
        "| TD3, x | 4 |",
    ]
    assert describe_algorithm.results(("SAC",), text) == []


def test_rows_of_an_algorithm_are_found_by_any_column_of_names() -> None:
    """With what the data returned and what is published; of what is published alone nothing is shown."""
    text = (
        "## One\n\n| data |  | b |\n|---|---|---|\n| random | the data itself | 1 |\n| random | BC | 2 |\n"
        "| random | d3rlpy DiscreteBC | 3 |\n\n## Two\n\n|  | b |\n|---|---|\n| BC (x=1) | 4 |\n"
        "| *the data, 9 episodes* | 5 |\n| *published BC* | 6 |\n| *published SAC* | 7 |"
    )
    found = [line.split("|")[-2].strip() for line in describe_algorithm.results(("BC",), text) if "|" in line]
    assert found == ["b", "---", "1", "2", "3", "b", "---", "4", "5", "6"]
    assert describe_algorithm.results(("SAC",), text) == []


def test_a_page_without_a_section_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sac.md").write_text("# SAC\n\n## Idea\n\nNone.\n", encoding="utf-8")
    monkeypatch.setattr(describe_algorithm, "FOLDER", tmp_path)
    with pytest.raises(LookupError, match=r"sac\.md: no section 'Citation'"):
        describe_algorithm.particular("sac")


def test_the_reference_has_every_public_name() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r":: rl_training\.(\w+)(?:\(\))?$", text, re.M))
    assert set(rl_training.__all__) <= named


def test_every_example_is_linked_from_the_start_page() -> None:
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[(\S+)\]\(\.\./examples/(\S+)\) \|", text, re.M)
    examples = {path.relative_to(ROOT / "examples").as_posix() for path in (ROOT / "examples").rglob("*.py")}
    assert sorted(file for _, file in linked) == sorted({*examples, "first_steps.ipynb"})
    assert all(name == file for name, file in linked)


def test_code_blocks_fit_into_a_column_of_the_site() -> None:
    pages = [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md"), *DOCS.glob("algorithms/[a-z]*.md"), ROOT / "README.md"]
    long = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in pages
        for block in blocks(path.read_text(encoding="utf-8"))
        for line in block.text.splitlines()
        if len(line) > 80
    ]
    assert long == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """As `make docs` does: a reference that leads nowhere, or a formula that cannot be read, is an error."""
    options = ["-W", "-n", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "site" / "algorithms" / "sac.html").read_text(encoding="utf-8")
    assert "target_entropy" in page
    assert "haarnoja2018soft" in page
    assert page.count("<math ") > 10
    for path in (tmp_path / "site").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|source)\b[^>]*(?:https?:)?//[^>]*>", text)
        assert loaded == [], f"{path} needs the network"
        for picture in re.findall(r'<(?:img|source)\b[^>]*\bsrc(?:set)?="([^":]+)"', text):
            assert (path.parent / picture).is_file(), f"{path}: {picture}"


def test_the_types_on_the_site_exist() -> None:
    """The site is built with packages that tests may not need, so its source is read."""
    source = (DOCS.parent / "tools" / "docs_site.py").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmanaged\.([A-Z]\w*)", source))
    assert named >= {"Data", "Environment"}
    assert [name for name in named if not hasattr(managed, name)] == []
