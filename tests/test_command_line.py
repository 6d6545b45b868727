"""``python -m mars_core generate`` as a user runs it."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mars_core import terminal
from mars_core.__main__ import main
from mars_core.prompts import chat_prompt_ids
from tests.scripted import always, saying, scripted_loaded
from tests.tiny import tiny_loaded, tiny_model, tiny_tokenizer

ROOT = Path(__file__).parent.parent
KEYS = {
    "text", "num_tokens", "num_forwards", "tokens_per_forward", "finish_reason", "prefill_s", "decode_s",
    "tokens_per_s", "mode", "threshold", "block_size", "model", "device", "dtype",
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny-blk4"
    tiny_model().save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def command(checkpoint: Path, *arguments: str) -> list[str]:
    model = ["--model", str(checkpoint), "--device", "cpu", "--dtype", "float32"]
    return [sys.executable, "-m", "mars_core", "generate", *arguments, *model]


def start(checkpoint: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(checkpoint, *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch):
    """Run the command here, on a given model."""

    def run(*arguments: str, loaded: Any = None) -> int:
        chosen = loaded or tiny_loaded()
        monkeypatch.setattr(terminal, "load_from", lambda arguments, block_size: chosen)
        # what would be set for the whole test process stays as it is
        monkeypatch.setattr("mars_core.__main__.set_up_logging", lambda verbose: None)
        return main(["generate", *arguments])

    return run


def test_the_last_line_is_json_with_all_figures(checkpoint):
    done = start(checkpoint, "hello", "--json", "--max-new-tokens", "9", "--threshold", "0.1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report.keys() >= KEYS
    assert (report["mode"], report["threshold"], report["block_size"]) == ("mars", 0.1, 4)
    assert report["tokens_per_forward"] == report["num_tokens"] / report["num_forwards"]
    assert (report["device"], report["dtype"]) == ("cpu", "float32")
    assert "\x1b" not in done.stdout


def test_a_directory_that_is_no_model_is_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mars_core.options.tame_malloc", lambda: None)
    monkeypatch.setattr("mars_core.__main__.set_up_logging", lambda verbose: None)
    assert main(["generate", "hello", "--model", str(tmp_path / "nothing")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_control_c_ends_the_answer_and_still_reports(checkpoint):
    process = subprocess.Popen(
        command(checkpoint, "hello", "--json", "--max-new-tokens", "400", "--mode", "ar"),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    report = json.loads((first + rest).decode().splitlines()[-1])
    assert b"Traceback" not in errors and b"KeyboardInterrupt" not in errors
    if report["finish_reason"] == "cancelled":  # a fast machine may have been done
        assert process.returncode == 130 and report["num_tokens"] < 400


@pytest.mark.parametrize(
    "arguments",
    [
        ["--threshold", "nan", "hello"],
        ["--threshold", "-1", "hello"],
        ["--block-size", "0", "hello"],
        ["--max-new-tokens", "0", "hello"],
        ["--temperature", "99", "hello"],
        ["--stop", "", "hello"],
        ["--max-drafts", "-1", "hello"],
        ["--proposer", "lookup", "hello"],
        [""],
        ["  \u200b "],
        ["--raw", ""],
        ["--max-new-tokens", "100000", "hello"],
        ["half \ud83e"],
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(in_process, capsys, arguments):
    assert in_process(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1


def test_an_unknown_option_is_refused(in_process, capsys):
    with pytest.raises(SystemExit, match="2"):
        in_process("hello", "--thresold", "0.5")
    assert "--thresold" in capsys.readouterr().err


def test_without_json_the_figures_stand_in_one_line_behind_the_answer(in_process, capsys):
    assert in_process("hello", "--max-new-tokens", "8", loaded=scripted_loaded(always())) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("[8 tokens in 2 forwards: 4.00 tok/fwd")


def test_the_prompt_may_come_from_standard_input(in_process, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", (tmp_path / "prompt").open("w+"))
    sys.stdin.write("hello")
    sys.stdin.seek(0)
    assert in_process("-", "--json", "--max-new-tokens", "4") == 0
    from_stdin = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert in_process("hello", "--json", "--max-new-tokens", "4") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["text"] == from_stdin["text"]


@pytest.mark.parametrize("proposer", ["masks", "lookup", "both"])
def test_with_tau_one_and_verify_the_text_is_ars_whoever_proposes(
    in_process, capsys, monkeypatch, tmp_path, proposer
):
    monkeypatch.setenv("MARS_CACHE_DIR", str(tmp_path))  # what forwards cost is noted there
    common = ["hello hello hello", "--json", "--max-new-tokens", "20"]
    assert in_process(*common, "--mode", "ar") == 0
    plain = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert in_process(*common, "--threshold", "1", "--verify", "--proposer", proposer) == 0
    verified = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (verified["text"], verified["num_tokens"]) == (plain["text"], plain["num_tokens"])
    assert list((tmp_path / "costs").iterdir())


@pytest.mark.parametrize(
    "of_checkpoint, option, most",
    [(False, [], 4), (True, [], 5), (False, ["--last-mask"], 5), (True, ["--no-last-mask"], 4)],
)
def test_the_last_mask_is_as_the_model_says_unless_an_option_does(
    in_process, capsys, of_checkpoint, option, most
):
    loaded = scripted_loaded(always(), last_mask=of_checkpoint)
    assert in_process("hello", "--json", "--max-new-tokens", "20", *option, loaded=loaded) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["tokens_per_forward"] == most


@pytest.mark.parametrize("option", [["--proposer", "guess"], ["--layout", "round"], ["--max-drafts", "x"]])
def test_a_choice_that_there_is_not_is_refused(in_process, capsys, option):
    with pytest.raises(SystemExit, match="2"):
        in_process("hello", *option)
    assert option[0] in capsys.readouterr().err


def test_raw_continues_the_text_as_it_is(in_process, capsys):
    assert in_process("ab", "--raw", "--json", "--max-new-tokens", "2") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["num_prompt_tokens"] == 2


def test_line_separators_in_the_answer_do_not_cut_the_json(in_process, capsys):
    ids = [*tiny_tokenizer()("\u2028\x85é🤗")["input_ids"], 258]
    prompt = len(chat_prompt_ids(tiny_tokenizer(), [{"role": "user", "content": "x"}]))
    assert in_process("x", "--json", loaded=scripted_loaded(saying(ids, start=prompt))) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["text"] == "\u2028\x85é🤗"


def test_an_output_that_knows_no_such_character_does_not_end_the_answer(checkpoint):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = start(checkpoint, "hello", "--max-new-tokens", "20", env=environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "\\u03c4 = 0.9" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's redirections")
@pytest.mark.parametrize(
    "redirection, message",
    [(">&-", "Standard output is closed"), ("> /dev/full", "No space left"), ("<&-", "Standard input is")],
)
def test_a_closed_or_full_stream_is_one_line(checkpoint, redirection, message):
    if "/dev/full" in redirection and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    prompt = "-" if "<" in redirection else "hello"
    line = f"{shlex.join(command(checkpoint, prompt, '--max-new-tokens', '4'))} {redirection}"
    done = subprocess.run(
        line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (1, 2) and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("note: ", "WARNING "))]
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_control_c_while_loading_is_quiet(monkeypatch, capsys):
    def load(arguments: Any, block_size: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(terminal, "load_from", load)
    monkeypatch.setattr("mars_core.__main__.set_up_logging", lambda verbose: None)
    assert main(["generate", "hello"]) == 130
    assert capsys.readouterr() == ("", "")


@functools.cache
def _answer_in_a_terminal(checkpoint: Path, threshold: str) -> str:
    import pty

    parent, child = pty.openpty()
    process = subprocess.Popen(
        command(checkpoint, "hello", "--max-new-tokens", "12", "--threshold", threshold),
        cwd=ROOT, stdout=child, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(child)
    shown, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            shown += os.read(parent, 4096)
        except OSError:  # the other end is closed
            break
    os.close(parent)
    assert process.wait(30) == 0
    return shown.decode(errors="replace")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_in_a_terminal_the_tokens_of_one_forward_share_a_colour(checkpoint):
    shown = _answer_in_a_terminal(checkpoint, "0.0")
    assert all(colour in shown for colour in terminal.GROUP_COLOURS)
    assert shown.count(terminal.RESET) == sum(map(shown.count, terminal.GROUP_COLOURS))


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_tokens_that_came_one_at_a_time_are_plain(checkpoint):
    assert "\x1b" not in _answer_in_a_terminal(checkpoint, "1")
