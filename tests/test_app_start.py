"""``python app.py`` until a model is loaded: what cannot work is said at once and in plain words."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mars_core
from app import main as app_main
from mars_core.errors import MarsError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may be loaded, and what would be set for the whole test process stays as it is."""

    def load(arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(app_main, "load_from", load)
    monkeypatch.setattr(app_main, "set_up_logging", lambda verbose: None)
    monkeypatch.setattr(app_main.signal, "signal", lambda *_: None)


@pytest.mark.parametrize("port", ["99999", "65536", "-1", "1.5", "http", "", "²", "9" * 5000])
def test_what_is_no_port_is_refused_with_what_is(capsys, port):
    with pytest.raises(SystemExit, match="2"):
        app_main.main([f"--port={port}"])
    assert "from 0 to 65535" in capsys.readouterr().err


def test_a_busy_port_is_found_before_the_model_is_loaded(no_model, capsys, busy_port):
    assert app_main.main(["--port", str(busy_port)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: Port {busy_port} cannot be opened") and "--port" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "..", "a" * 70, "2001:db8::1"])
@pytest.mark.parametrize("port", [[], ["--port", "0"]])
def test_an_address_of_another_machine_is_found_before_the_model_is_loaded(no_model, capsys, host, port):
    assert app_main.main(["--host", host, *port]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {host} is not an address of this machine.")
    assert captured.err.count("\n") == 1


def options(*given: str) -> argparse.Namespace:
    return app_main.build_parser().parse_args(list(given))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model can be had."""

    def load(arguments: object) -> None:
        raise MarsError("The weights are nowhere. Fetch them.")

    monkeypatch.setattr(app_main, "load_from", load)
    monkeypatch.setattr(app_main, "set_up_logging", lambda verbose: None)
    monkeypatch.setattr(app_main.signal, "signal", lambda *_: None)


def test_replay_only_loads_no_model(no_model):
    assert app_main.find_engine(options("--replay-only")) == (None, "")


@pytest.mark.parametrize("more", [["--model", "x"], ["--device", "cpu"], ["--adapter", "x"]])
def test_replay_only_with_a_model_is_refused(no_model, capsys, more):
    assert app_main.main(["--replay-only", *more]) == 2
    assert "--replay-only loads no model" in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--verbose"], ["--port", "0"]])
def test_where_no_model_was_named_and_none_can_be_had_the_page_opens_and_says_so(no_weights, capsys, given):
    engine, trouble = app_main.find_engine(options(*given))
    assert engine is None
    assert "could not be loaded" in trouble and trouble.endswith("The weights are nowhere. Fetch them.")
    printed = capsys.readouterr().err
    assert "error: The weights are nowhere. Fetch them." in printed and "recorded runs" in printed


@pytest.mark.parametrize("given", [["--model", "x"], ["--device", "cuda"], ["--base-from-hub"]])
def test_where_a_model_was_named_and_cannot_be_had_that_is_an_error(no_weights, capsys, given):
    assert app_main.main(given) == 2
    assert capsys.readouterr().err.endswith("error: The weights are nowhere. Fetch them.\n")


def test_what_can_be_opened_stays_as_it_is_and_0_becomes_a_free_port(monkeypatch):
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    port = app_main.open_port(None, 0)
    assert port and app_main.open_port("127.0.0.1", port) == port
    for host in (None, "", "0.0.0.0", "localhost"):
        assert app_main.open_port(host, None) is None
    monkeypatch.setenv("GRADIO_SERVER_NAME", "192.0.2.1")
    with pytest.raises(MarsError, match="192.0.2.1"):
        app_main.open_port(None, None)


def _wait_for_imports(pid: int) -> None:
    """Until the process has begun to load PyTorch, where that can be seen; else a moment."""
    loaded, end = Path(f"/proc/{pid}/maps"), time.monotonic() + 60
    if not loaded.exists():
        time.sleep(0.7)
        return
    while b"torch" not in loaded.read_bytes() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("command", [["app.py"], ["-m", "mars_core", "generate", "hello"]])
def test_control_c_during_the_imports_ends_at_once_and_quietly(command, tmp_path):
    model = ["--model", str(tmp_path / "nothing")]
    process = subprocess.Popen(
        [sys.executable, *command, *model], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _wait_for_imports(process.pid)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    printed = process.communicate(timeout=60)
    assert printed == (b"", b"") and process.returncode in (-signal.SIGINT, 130)
    assert time.monotonic() - sent < 10


def test_the_library_is_imported_without_torch_and_has_all_its_names():
    code = "import sys, mars_core; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    assert all(getattr(mars_core, name).__name__ == name for name in mars_core.__all__)
    assert sorted(mars_core._MODULES) == sorted(mars_core.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        mars_core.nonsense  # noqa: B018
