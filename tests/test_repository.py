"""Traps of the repository itself: pins that drift apart, options without a word, code that runs what it downloads."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PIPELINES = sorted((ROOT / "pipelines").glob("*.py"))
CONF = sorted((ROOT / "conf").rglob("*.yaml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Files over 300 lines, each with its own limit: the whole schema in one place is easier to read than in two.
LONGER: dict[str, int] = {}

# Modules whose tests stand in a file of another name. Every other module has tests/<package>/test_<module>.py.
TESTED_ELSEWHERE = {
    "breakeven/doctor.py": "tests/test_cli.py",
    "breakeven/reporting/data.py": "tests/reporting/test_page.py",
    "breakeven/reporting/figures/acceptance.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/figures/catalogue.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/figures/costs.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/figures/kv_error.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/figures/memory.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/figures/outliers.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/figures/speedup.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/figures/style.py": "tests/reporting/test_figures.py",
    "breakeven/reporting/kv_tables.py": "tests/reporting/test_tables.py",
    "breakeven/reporting/narrative.py": "tests/reporting/test_page.py",
    "breakeven/tracking/files.py": "tests/tracking/test_projection.py",
    "breakeven/tracking/provenance.py": "tests/tracking/test_project.py",
    "breakeven/tracking/publish.py": "tests/tracking/test_project.py",
    "breakeven/tracking/reap.py": "tests/tracking/test_project.py",
    "breakeven/tracking/ui.py": "tests/tracking/test_store.py",
    "breakeven/config_rules.py": "tests/test_config.py",
    "breakeven/dvc_experiment.py": "tests/test_sweep.py",
    "breakeven/errors.py": "tests/test_stage.py",
    "breakeven/evidence/claims/cache.py": "tests/evidence/claims/test_rules.py",
    "breakeven/evidence/claims/facts.py": "tests/evidence/claims/test_rules.py",
    "breakeven/evidence/claims/guide.py": "tests/evidence/claims/test_rules.py",
    "breakeven/evidence/claims/post_table.py": "tests/evidence/claims/test_rules.py",
    "breakeven/evidence/claims/speculation.py": "tests/evidence/claims/test_rules.py",
    "breakeven/evidence/speculation.py": "tests/evidence/test_summary.py",
    "breakeven/kv/schemes/base.py": "tests/kv/schemes/test_quantizers.py",
    "breakeven/kv/schemes/post_symmetric.py": "tests/kv/schemes/test_quantizers.py",
    "breakeven/kv/schemes/uniform.py": "tests/kv/schemes/test_quantizers.py",
    "breakeven/models/facts.py": "tests/models/test_store.py",
    "breakeven/models/files.py": "tests/models/sources/test_local.py",
    "breakeven/models/random_model.py": "tests/models/sources/test_random.py",
    "breakeven/results.py": "tests/evidence/test_summary.py",
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def direct_requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    texts = [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]
    return [Requirement(text) for text in texts]


def lock() -> dict[str, str]:
    """Return package -> version of requirements.lock."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", pin), f"{pin!r} is not a plain name==version"
    names = [canonicalize_name(pin.split("==")[0]) for pin in pins]
    assert len(set(names)) == len(names)
    return dict(zip(names, (pin.split("==")[1] for pin in pins), strict=True))


# ------------------------------------------------------------------------------------------- pins


def test_every_direct_dependency_is_pinned_to_the_version_in_the_lock():
    pinned = lock()
    requirements = direct_requirements()
    assert len(requirements) > 20
    for requirement in requirements:
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{requirement} is not pinned"
        assert pinned[canonicalize_name(requirement.name)] == specifier.version, requirement


def test_the_lock_is_complete():
    pinned, seen = lock(), set()
    todo = [(canonicalize_name(r.name), frozenset(r.extras)) for r in direct_requirements()]
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen or re.match(r"nvidia-|cuda-|triton$", name):  # torch's own CUDA parts, pinned by it
            continue
        seen.add((name, extras))
        assert name in pinned, f"{name} is needed but not in requirements.lock: run `make lock`"
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in (*extras, "")):
                todo.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    assert len(seen) > 100


def test_this_environment_is_the_locked_one():
    different = {
        name: (version, metadata.version(name))
        for name, version in lock().items()
        if Version(metadata.version(name)).public != version
    }
    assert different == {}, "run `make env`"


def test_the_package_and_pip_are_not_in_the_lock():
    assert not {"breakeven", "pip"} & lock().keys()


# ------------------------------------------------------------------------------------------- conf


def uncommented(text: str, documented: set[str]) -> list[str]:
    """Return the keys with a value that no comment explains, neither on their line nor where `documented` comes from.

    A key whose value is a block needs none (its own keys have them), nor does a choice in a defaults list; a list of
    alike items explains its keys once.
    """
    missing, known = [], set(documented)
    for line in text.splitlines():
        match = re.match(r"\s*(?:- )?(?:override )?([\w/]+):(?P<value>\s+[^#\s].*)?", line)
        if match is None or match["value"] is None or re.match(r"\s*- override", line):
            continue
        # A '#' inside quotes opens no comment.
        if "#" in re.sub(r"\"[^\"]*\"|'[^']*'", "", line):
            known.add(match[1])
        elif match[1] not in known:
            missing.append(match[1])
    return missing


def commented(text: str) -> set[str]:
    return {m[1] for m in re.finditer(r"^ *(?:- )?([\w/]+):[^#\n]*#", text, re.MULTILINE)}


@pytest.mark.parametrize("path", CONF, ids=relative)
def test_every_option_has_a_comment(path):
    text = path.read_text(encoding="utf-8")
    # An experiment only changes keys that are explained where they are at home.
    at_home = [p.read_text(encoding="utf-8") for p in CONF if p.parent.name != "experiment"]
    documented = set().union(*map(commented, at_home)) if path.parent.name == "experiment" else set()
    assert uncommented(text, documented) == []


def test_an_option_without_a_comment_is_found():
    assert uncommented('a: 1\nb: "#"\nc: 2  # explained\nd:\n  e: [3]\n', set()) == ["a", "b", "e"]
    assert uncommented("a: 1\nb: 2\n", {"a"}) == ["b"]
    assert uncommented("x:\n  - name: 1  # explained\n  - name: 2\n", set()) == []


@pytest.mark.parametrize("path", CONF, ids=relative)
def test_every_file_of_conf_says_what_it_is_for(path):
    lines = [x for x in path.read_text(encoding="utf-8").splitlines() if not x.startswith("# @package")]
    assert re.match(r"# \w", lines[0])


# ------------------------------------------------------------------------------------------- code


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_source_files_stay_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < LONGER.get(relative(path), 300)


@pytest.mark.parametrize("path", PIPELINES, ids=relative)
def test_pipeline_scripts_stay_thin(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert re.search(r'\nif __name__ == "__main__":\n    run\(main', text)


def test_every_stage_has_its_script_and_every_script_its_stage():
    stages = set(re.findall(r"cmd: python pipelines/(\w+)\.py", (ROOT / "dvc.yaml").read_text(encoding="utf-8")))
    assert stages == {path.stem for path in PIPELINES}


_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
_CALLS = {
    "torch.load",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
    "eval",
    "exec",
    "numpy.load",
    "np.load",
}
_KEYWORDS = {"shell", "trust_remote_code", "allow_pickle"}


def dangers(source: str) -> Iterator[str]:
    """Yield what in a source could run code that came from outside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in _MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{a.name}" for a in node.names}
            yield from sorted(names & _CALLS)
            if (node.module or "").split(".")[0] in _MODULES:
                yield str(node.module)
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func) in _CALLS:
                yield ast.unparse(node.func)
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in _KEYWORDS and not off:
                    yield f"{keyword.arg}={ast.unparse(keyword.value)}"


@pytest.mark.parametrize("path", [*SOURCES, *PIPELINES], ids=relative)
def test_nothing_runs_code_from_outside(path):
    assert list(dangers(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import os\nos.system('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "np.load(x, allow_pickle=True)",
        "eval('1')",
    ],
)
def test_a_planted_danger_is_found(planted):
    assert list(dangers(planted))


def test_what_is_switched_off_by_name_is_no_danger():
    assert not list(
        dangers("AutoModel.from_pretrained(x, trust_remote_code=False)\nsubprocess.run(['ls'], shell=False)")
    )


# ------------------------------------------------------------------------------------------- tests


def modules() -> list[str]:
    """Return the modules of the package that hold code: `breakeven/kv/capture.py`, ..."""
    found = []
    for path in SOURCES:
        if path.name == "__init__.py" or path.is_relative_to(ROOT / "src" / "hydra_plugins"):
            continue
        found.append(path.relative_to(ROOT / "src").as_posix())
    return found


def mirror(module: str) -> str:
    path = Path(module)
    return Path("tests", *path.parent.parts[1:], f"test_{path.name}").as_posix()


def test_every_module_has_its_tests():
    missing = [m for m in modules() if not (ROOT / TESTED_ELSEWHERE.get(m, mirror(m))).is_file()]
    assert missing == [], "each needs its mirror in tests/ or an entry in TESTED_ELSEWHERE"


def test_no_exception_hides_a_mirror():
    assert [m for m in TESTED_ELSEWHERE if (ROOT / mirror(m)).is_file()] == []


def test_no_exception_outlives_its_module():
    assert set(TESTED_ELSEWHERE) <= set(modules())


def test_every_test_file_holds_a_test():
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert len(files) > 20
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert any(isinstance(n, ast.FunctionDef) and n.name.startswith("test") for n in ast.walk(tree)), path
