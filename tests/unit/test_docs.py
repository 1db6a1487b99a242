"""What the README and the pages under docs/ promise is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from pyhangtrace.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
README = (ROOT / "README.md").read_text()


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None and not command.hidden}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in link]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_names_every_command_and_no_other() -> None:
    named = re.findall(r"^\| `hangtrace ([a-z]+)", README, re.MULTILINE)
    assert sorted(named) == sorted(commands())


def test_readme_names_every_option_of_attach_and_no_other() -> None:
    table = README.split("Options of `attach`:")[1].split("\n\n")[1]
    named = {option for row in table.splitlines() for option in re.findall(r"`(-[-a-z]+)", row.split("|")[1])}
    ours = {
        option
        for parameter in commands()["attach"].params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    }
    assert named == ours


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    defined = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE))
    assert named <= defined


def test_advice_names_commands_that_exist() -> None:
    sources = (ROOT / "pyhangtrace").rglob("*.py")
    named = {name for path in sources for name in re.findall(r"hangtrace ([a-z]+)", path.read_text())}
    assert named - {"import"} <= set(commands())
