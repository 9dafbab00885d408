"""What README.md and the pages in .docs say: snippets run, commands parse, links lead somewhere.

Python blocks are run as they stand, those of a page in one namespace, but for numbers of steps and
draws, which are cut short. ``<!-- not run -->`` above a block says that it is not run.
"""

import importlib.util
import re
import shlex
from pathlib import Path

import matplotlib
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_dgp import cli, snr_sweep
from pyro_dgp.infer.snr import profiler as snr

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
DOCS = ROOT / ".docs"
README = ROOT / "README.md"
PAGES = sorted([README, *DOCS.rglob("*.md"), *(ROOT / "tutorials").glob("*.md")])
BLOCK = re.compile(
    r"^(?P<not_run><!-- not run -->\n+)?```(?P<kind>\S*)\n(?P<text>.*?)^```", re.S | re.M
)
LONG = re.compile(
    r"\b(num_steps=|num_draws=|num_samples=|num_test_samples=|num_inducing=|K=|range\()(\d+)"
)
MOST = {"num_steps=": 2, "num_draws=": 8, "range(": 2}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, kind: str) -> list[str]:
    """The texts of a page's blocks of code that are to be run."""
    found = BLOCK.finditer(page.read_text())
    return [b["text"] for b in found if b["kind"] == kind and not b["not_run"]]


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def shortened(code: str) -> str:
    return LONG.sub(lambda m: f"{m[1]}{min(int(m[2]), MOST.get(m[1], 10))}", code)


class VAE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(3, 2), torch.nn.Linear(1, 3)

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.decoder(z), 0.5).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(x)):
            loc, scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, scale.exp()).to_event(1))


def assumed(page: str) -> dict:
    """What the snippets of a page take for granted."""
    rng = np.random.default_rng(0)
    table = {"X": rng.normal(size=(60, 2)), "X_new": rng.normal(size=(5, 2))}
    table |= {"y": table["X"][:, 0] + rng.normal(size=60), "y_new": rng.normal(size=5)}
    tensors = {k: torch.as_tensor(v, dtype=torch.float32) for k, v in table.items()}
    return {
        ".docs/guide/tables.md": table | {"classes": np.where(table["y"] > 0, "yes", "no")},
        ".docs/likelihoods.md": tensors
        | {
            "counts": torch.poisson(tensors["X"][:, 0].exp()),
            "hours": torch.rand(60) + 0.5,
            "hours_new": torch.ones(5),
        },
        ".docs/extending.md": tensors | {"X": tensors["X"][:, :1]},
        ".docs/profiler.md": {"vae": VAE(), "x": torch.randn(4, 3)},
    }.get(page, {})


@pytest.mark.parametrize("page", [name_of(p) for p in PAGES if blocks(p, "python")])
def test_snippets_run(page, tmp_path, monkeypatch):
    from pyro_dgp.sklearn.base import LatentDGPEstimator

    few = {"num_steps": 2, "num_samples": 20, "num_inducing": 10, "features": None, "pool": False}
    for name, value in few.items():
        monkeypatch.setitem(LatentDGPEstimator.__init__.__kwdefaults__, name, value)
    draws = tuple(8 if value == 1000 else value for value in snr_sweep.__defaults__)
    monkeypatch.setattr(snr_sweep, "__defaults__", draws)
    monkeypatch.setattr(snr, "_BLOCKS", 2)
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)  # as users have it
    namespace = assumed(page) | {"__name__": page}
    for i, code in enumerate(blocks(ROOT / page, "python")):
        exec(compile(shortened(code), f"{page}, block {i + 1}", "exec"), namespace)
    plt.close("all")


def command_lines() -> list[tuple[str, list[str]]]:
    """All commands that are shown, by page, without variables of the environment."""
    found = []
    for page in PAGES:
        lines = [line for text in blocks(page, "sh") for line in text.splitlines()]
        for line in lines:
            words = shlex.split(line, comments=True)
            text = " ".join(shlex.quote(word) for word in words).replace("'&&'", "&&")
            for part in text.split("&&"):
                words = shlex.split(part)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words:
                    found.append((name_of(page), words))
    return found


COMMANDS = command_lines()


def test_there_are_commands():
    assert sum(words[0] == "pyro-dgp" for _, words in COMMANDS) > 15


@pytest.mark.parametrize(
    ("page", "words"), [c for c in COMMANDS if c[1][0] == "pyro-dgp"], ids=lambda v: str(v)[:60]
)
def test_commands_parse(page, words):
    assert callable(cli._parser().parse_args(words[1:]).command)


def test_modules_that_are_run_exist():
    modules = [w[2] for _, w in COMMANDS if w[:2] == ["python", "-m"] and w[2] != "sphinx"]
    assert modules
    assert all(importlib.util.find_spec(module) for module in modules)


def test_tests_that_ci_names_exist():
    named = re.findall(r"\btests/[\w/.]+", (ROOT / ".ci" / "run").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_options_and_commands_in_the_text_exist():
    """``--option`` and ``pyro-dgp command`` in inline code."""
    (commands,) = (a for a in cli._parser()._actions if isinstance(a.choices, dict))
    options = {o for p in commands.choices.values() for a in p._actions for o in a.option_strings}
    for page in PAGES:
        code = "\n".join(re.findall(r"`([^`\n]+)`", prose(page)))
        unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) - options
        unknown |= set(re.findall(r"pyro-dgp ([a-z]+)", code)) - set(commands.choices)
        assert not unknown, name_of(page)


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere():
    for page in PAGES:
        text = prose(page)
        links = re.findall(r"\]\(([^)\s]+)\)", text)
        links += re.findall(r"^```\{include\} (\S+)", page.read_text(), re.M)
        for link in links:
            if re.match(r"https?://", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{name_of(page)}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", target.read_text()), re.M)
                assert anchor in map(slug, headings), f"{name_of(page)}: {link}"


def test_readme_is_a_page():
    lines = README.read_text().splitlines()
    assert len(lines) <= 120
    assert all(len(line) <= 130 for line in lines if not line.startswith("|"))
    # Who sets up a machine runs these.
    assert any(line.startswith("pip install '.[plot]' && pyro-dgp demo") for line in lines)
    assert any(line.startswith("pip install -e '.[test]' && python -m pytest") for line in lines)
