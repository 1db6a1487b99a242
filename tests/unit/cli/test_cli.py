"""The command line: exit codes, what goes where, what is loaded when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

from pyhangtrace.cli.arguments import duration
from pyhangtrace.cli.main import main
from pyhangtrace.model.codec import pack
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.recording import Metric, Recording
from tests.unit.render import recorded, sample


def run(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    program = code or "import sys; from pyhangtrace.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("attach", "report", "demo", "doctor", "schema", "completion", "man"):
        assert f"\n  {name} " in shown


def test_help_loads_nothing_heavy() -> None:
    done = run(
        "--help",
        code="import sys; from pyhangtrace.cli.main import main; main(); "
        "print([m for m in ('numpy', 'msgspec', 'rich', 'textual', 'bcc', 'pynvml') if m in sys.modules])",
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["attach"], 2),
        (["attach", "abc"], 2),
        (["attach", "0"], 2),
        (["attach", "-d", "-1", "1"], 2),
        (["attach", "-d", "nan", "1"], 2),
        (["attach", "1", "-o", "x.svg"], 2),
        (["attach", "1", "-o", "/nowhere/x.json"], 2),
        (["memory"], 2),
        (["memory", "x"], 2),
        (["memory", "1", "-d", "nan"], 2),
        (["memory", "1", "--exact", "--budget", "0"], 2),
        (["memory", "1", "--budget", "5"], 2),
        (["memory", "-p", "x"], 2),
        (["memory", "1", "-o", "x.html"], 2),
        (["memory", "1", "-o", "/nowhere/x.json"], 2),
        (["memory", "2147483646"], 5),
        (["memory", "-p", "2147483646"], 5),
        (["nonsense"], 2),
        (["report", "/nowhere/x.hang"], 2),
        (["demo", "nonsense"], 2),
        (["attach", "2147483646"], 5),
    ],
)
def test_failures_have_their_code_and_one_sentence(arguments: list[str], code: int) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_commands_may_be_shortened_while_unambiguous(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sch"]) == 0
    assert json.loads(capsys.readouterr().out)["$ref"] == "#/$defs/Report"
    assert main(["d"]) == 2  # demo or doctor


def test_an_internal_error_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> object:
        raise RuntimeError("boom")

    monkeypatch.setattr("pyhangtrace.model.codec.report_schema", broken)
    assert main(["schema"]) == 70
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "internal error: RuntimeError: boom" in captured.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_HANGTRACE_COMPLETE" in capsys.readouterr().out


def test_manual_page_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(".TH HANGTRACE 1")
    for word in (r"\-\-no\-bpf", r"\-\-exit\-code", ".SH OVERHEAD", ".SH EXIT STATUS"):
        assert word in page


def test_report_renders_a_bundle_again_byte_for_byte(tmp_path: Path) -> None:
    bundle = tmp_path / "x.hang"
    bundle.write_bytes(pack(sample.result().evidence))
    first, second = run("report", str(bundle), "--json"), run("report", str(bundle), "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["schema"] == "hangtrace.report/1"
    assert first.stdout == second.stdout


def test_a_damaged_bundle_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "x.hang"
    bundle.write_bytes(pack(sample.result().evidence)[:-20])
    done = run("report", str(bundle))
    assert (done.returncode, done.stdout) == (2, "")
    assert "not an evidence bundle" in done.stderr


def ended_reader(*arguments: str) -> tuple[int, str]:
    command = f"import sys; from pyhangtrace.cli.main import main; sys.exit(main({list(arguments)!r}))"
    with subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("arguments", [["--help"], ["attach", "--help"], ["schema"]])
def test_a_closed_pipe_ends_every_command_as_by_its_signal(arguments: list[str]) -> None:
    assert ended_reader(*arguments) == (141, "")


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("made", [sample.result().evidence, recorded.recording()], ids=["attach", "record"])
def test_output_into_a_closed_pipe_ends_as_by_its_signal(
    tmp_path: Path, made: Evidence | Recording, options: list[str]
) -> None:
    bundle = tmp_path / "x.hang"
    bundle.write_bytes(pack(made))
    # Not 1: that means a hang.
    assert ended_reader("report", str(bundle), *options) == (141, "")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_cannot_be_written_is_said(tmp_path: Path, options: list[str]) -> None:
    bundle = tmp_path / "case.hang"
    bundle.write_bytes(pack(sample.result().evidence))
    command = [sys.executable, "-m", "pyhangtrace", "report", str(bundle), *options]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, "cannot write to standard output" in done.stderr) == (74, True)
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, "no standard output" in done.stderr) == (74, True)


@pytest.mark.parametrize("made", [sample.result().evidence, recorded.recording()], ids=["attach", "record"])
def test_a_file_that_cannot_be_written_takes_no_other_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: Evidence | Recording
) -> None:
    bundle, folder, good = tmp_path / "x.hang", tmp_path / "is_a_folder.txt", tmp_path / "good.txt"
    bundle.write_bytes(pack(made))
    folder.mkdir()
    assert main(["report", str(bundle), "-o", str(folder), "-o", str(good)]) == 74
    shown = capsys.readouterr()
    assert shown.out == good.read_text() != ""
    assert f"cannot write '{folder}': Is a directory" in shown.err
    assert main(["report", str(bundle), "-o", str(good)]) == 0
    assert capsys.readouterr().out == ""


def test_a_difference_that_no_output_shows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "x.hang"
    bundle.write_bytes(pack(recorded.recording()))
    nobody = str((1 << 22) + 1)
    for outputs in ([], ["-o", str(tmp_path / "a.txt"), "-o", str(tmp_path / "a.trace.json")]):
        assert main(["record", nobody, "--diff", str(bundle), *outputs]) == 2
        assert "--diff shows nothing" in capsys.readouterr().err
    # With one that does it goes on to look for the process.
    assert main(["record", nobody, "--diff", str(bundle), "-o", str(tmp_path / "a.folded")]) == 5


def test_an_empty_file_of_stacks_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, folded = tmp_path / "x.hang", tmp_path / "x.folded"
    nothing = replace(recorded.recording(Metric.FUTEX), threads=(), words=())
    for made, said in ((nothing, True), (recorded.recording(), False)):
        bundle.write_bytes(pack(made))
        assert main(["report", str(bundle), "-o", str(folded), "-o", str(tmp_path / "x.txt")]) == 0
        errors = capsys.readouterr().err
        assert (f"{folded} has no stacks: there was no futex wait" in errors) is said
        assert "x.txt has no" not in errors
        assert (folded.read_text() == "") is said


def test_memory_says_that_its_output_cannot_be_written() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pyhangtrace", "memory", str(os.getpid()), "-d", "0"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, "cannot write to standard output" in done.stderr) == (74, True)


def test_memory_writes_what_it_can(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    folder, good = tmp_path / "is_a_folder.txt", tmp_path / "good.txt"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as target:
        arguments = ["memory", str(target.pid), "-d", "0", "-o", str(folder), "-o", str(good)]
        code = main(arguments)
        target.kill()
    shown = capsysbinary.readouterr()
    assert code == 74
    assert shown.out == good.read_bytes() != b""
    assert b"is_a_folder.txt': Is a directory" in shown.err


def test_an_answer_about_memory_is_saved_and_shown_again(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    bundle, page = tmp_path / "m.hang", tmp_path / "m.txt"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as target:
        arguments = ["memory", str(target.pid), "-d", "0", "-o", str(bundle), "-o", str(page), "--json"]
        code = main(arguments)
        target.kill()
    first = capsysbinary.readouterr().out
    assert main(["report", str(bundle)]) == code
    assert capsysbinary.readouterr().out == page.read_bytes() != b""
    assert main(["report", str(bundle), "--json"]) == code
    assert capsysbinary.readouterr().out == first
    assert main(["report", str(bundle), "--exit-code"]) == 2
    assert main(["report", str(bundle), "-o", str(tmp_path / "m.html")]) == 2


def test_doctor_answers_with_a_fix_for_each_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert {"extension", "root", "bcc", "nvml"} <= {answer["source"] for answer in answers}
    assert all(answer["reason"] for answer in answers)
    assert main(["doctor"]) == 0
    assert "extension" in capsys.readouterr().out


def test_bash_completes_commands_kinds_and_files(tmp_path: Path) -> None:
    command = tmp_path / "hangtrace"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pyhangtrace.cli.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    script = f"""
        PATH={tmp_path}:$PATH
        source <(hangtrace completion bash)
        complete_words() {{
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _hangtrace_completion hangtrace 2>/dev/null
            echo "${{COMPREPLY[*]}}"
        }}
        complete_words hangtrace at
        complete_words hangtrace demo mut
        complete_words hangtrace attach --exi
        COMP_WORDS="hangtrace report sav" COMP_CWORD=2 _HANGTRACE_COMPLETE=bash_complete hangtrace
    """
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    # `file` makes the script ask bash to complete a file name.
    assert done.stdout.splitlines() == ["attach", "mutex-cycle", "--exit-code", "file,sav"], done.stderr


@pytest.mark.root
def test_doctor_knows_a_pid_namespace_from_the_host(in_pid_namespace: tuple[str, ...]) -> None:
    program = "from pyhangtrace.cli.main import main; main(['doctor', '--json'])"
    done = subprocess.run(
        [*in_pid_namespace, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers = {answer["source"]: answer for answer in json.loads(done.stdout)}
    assert answers["containers"]["state"] == "refused"
    assert "--pid=host" in answers["containers"]["fix"]


def test_a_poor_locale_is_no_failure(tmp_path: Path) -> None:
    bundle = tmp_path / "x.hang"
    bundle.write_bytes(pack(sample.result().evidence))
    output = os.fsencode(tmp_path) + b"/caf\xe9\xe2\x80\xa6.txt"
    program = "import sys; from pyhangtrace.cli.entry import start; sys.exit(start())"
    done = subprocess.run(
        [sys.executable, "-c", program, "report", str(bundle), "-o", output],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u2026.txt" in done.stderr
    assert Path(os.fsdecode(output)).exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("500ms", 0.5),
        (".5 s", 0.5),
        ("1d", 86400.0),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert duration(None, None, text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 week", "nan", "inf", "1e3", "0x10", "1,5m", "٣s", "1m30s"]
)
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no length of time"):
        duration(None, None, text)


@pytest.mark.parametrize("option", ["--stall", "--rate-limit"])
def test_watch_refuses_a_time_that_makes_no_sense(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("0", "100ms", "30d"):
        assert main(["watch", "1", option, value, "-o", str(tmp_path)]) == 2
        assert "is not between" in capsys.readouterr().err
