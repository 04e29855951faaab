"""What reaches the console and the files: tails at a bounded rate, a console that never blocks, events, last lines."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from disagg_run.logs import event_log
from disagg_run.running.console import Console
from disagg_run.running.outcome import Failure
from disagg_run.running.report import describe
from disagg_run.running.tails import Tail, Tails, last_lines, plain
from tests.running.launched import until


def test_lines_are_shown_with_their_process_and_an_unfinished_one_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n\ntw")
    shown: list[str] = []
    tails = Tails(shown.append)
    tails.follow("prefill-0", log)
    tails.look()
    assert shown == ["[prefill-0] one"]
    with log.open("ab") as file:
        file.write(b"o\nthree")
    tails.look()
    tails.close()
    assert shown == ["[prefill-0] one", "[prefill-0] two", "[prefill-0] three"]


def test_a_flood_is_left_out_with_a_note_and_its_end_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes((b"y" * 99 + b"\n") * 10_000)
    tail = Tail("p", log)
    lines = tail.lines()
    tail.close()
    assert lines[0] == f"(983,616 bytes are not shown here; all is in {log})"
    assert sum(map(len, lines[1:])) < 16384
    assert lines[-1] == "y" * 99


def test_a_log_that_somebody_emptied_is_followed_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"a first line\n")
    tail = Tail("p", log)
    assert tail.lines() == ["a first line"]
    log.write_bytes(b"new\n")
    assert tail.lines() == ["new"]
    tail.close()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("10%\r50%\r100%\r", "100%"),
        ("bell\x07 and null\x00", "bell and null"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_a_line_is_shown_without_what_would_drive_the_terminal(raw: str, shown: str) -> None:
    assert plain(raw) == shown


def test_the_last_lines_of_a_large_log_are_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"a line\n" * 100_000 + b"last \xff one\n\n")
    lines = last_lines(log)
    assert len(lines) == 20
    assert lines[-1] == "last \ufffd one"
    assert last_lines(tmp_path / "none.log") == ()


def test_a_reader_that_does_not_read_neither_blocks_nor_grows_the_console() -> None:
    out, into = os.pipe()
    console = Console(into, bound=50)
    start = time.monotonic()
    for index in range(10_000):
        console.write(f"{index} " + "x" * 200)
    assert time.monotonic() - start < 2
    console.close(0.01)
    os.set_blocking(out, False)
    data = b""

    def drained() -> bool:
        nonlocal data
        try:
            data += os.read(out, 1 << 20)
        except BlockingIOError:
            return not console.writing
        return False

    until(drained, "the rest")
    lines = data.decode().splitlines()
    assert lines[0].startswith("0 x")
    # What a pipe holds, what was queued, and the note.
    assert len(lines) < 65536 / 200 + 50 + 10
    assert "lines are not shown here" in lines[-1]
    os.close(out)
    os.close(into)


def test_a_reader_that_is_gone_does_not_end_the_console() -> None:
    out, into = os.pipe()
    os.close(out)
    console = Console(into)
    console.write("nobody reads this")
    until(lambda: not console.writing, "the broken pipe")
    console.write("nor this")
    console.close()
    os.close(into)


def test_a_line_is_cut_so_that_one_write_is_whole() -> None:
    out, into = os.pipe()
    console = Console(into, prefix="0| ")
    console.write("é" * 10_000)
    console.close()
    data = os.read(out, 1 << 20)
    assert data.startswith("0| é".encode())
    assert data.decode().endswith(" …\n")
    assert len(data) <= 4096
    os.close(out)
    os.close(into)


def test_events_are_json_lines_and_only_those_that_matter_reach_the_console(tmp_path: Path) -> None:
    shown: list[str] = []
    log, sink = event_log(tmp_path / "e.jsonl", shown.append, pretty=False, rank=2)
    log.debug("agent.started", pid=7)
    log.info("process.started", process="prefill-0")
    sink.close()
    first, second = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert (first["event"], first["level"], first["rank"], first["pid"]) == ("agent.started", "debug", 2, 7)
    assert list(second)[:3] == ["timestamp", "level", "event"]
    assert [json.loads(line) for line in shown] == [second]


def test_on_a_terminal_events_are_lines_for_people() -> None:
    shown: list[str] = []
    log, sink = event_log(None, shown.append, pretty=True)
    log.info("process.started", process="prefill-0")
    sink.close()
    assert "process.started" in shown[0]
    assert not shown[0].startswith("{")


def test_a_full_disk_does_not_stop_what_reports_a_failure() -> None:
    shown: list[str] = []
    log, sink = event_log(Path("/dev/full"), shown.append, pretty=False)
    log.error("run.failed", culprit="decode-0")
    sink.close()
    assert "run.failed" in shown[0]


def test_a_failure_survives_json_and_is_described_with_its_log() -> None:
    failure = Failure(
        rank=2, process="decode-0", message="decode-0 exited", exit_code=11, lines=["x" * 9999, "end"], log="/l/d.log"
    )
    back = Failure.from_data({**json.loads(json.dumps(failure.to_data())), "later": 1})
    assert back.lines == ("x" * 500, "end")
    assert describe(back, Path("/r"))[0] == "disagg-run: error: decode-0 exited (rank 2)"
    assert describe(back, Path("/r"))[-2:] == ["whole log: /l/d.log", "run directory: /r"]
