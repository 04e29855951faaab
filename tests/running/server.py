"""A small real server for tests of running: serves, forwards, misbehaves as told. Standard library only.

SIGUSR1 makes it exit with 0, SIGUSR2 with 1; after SIGHUP it takes connections and answers nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--join-port", type=int, help="opened at the start, before the HTTP port")
    parser.add_argument("--model", default="toy")
    parser.add_argument("--forward", nargs="*", default=[], help="base URLs of workers: be a router")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before the HTTP port opens")
    parser.add_argument("--unready", action="store_true", help="answer 503 for ever")
    parser.add_argument("--gets", type=int, default=1 << 30, help="answer 503 after so many GETs")
    parser.add_argument("--fail-streams", action="store_true", help="break off streamed answers")
    parser.add_argument("--exit-after", type=float)
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--core", help="have a process of one's own, its pid in this file, without which one is broken")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--daemon", help="daemonize a child that writes its pid to this file")
    parser.add_argument("--flood", type=float, default=0.0, help="MB/s written to stdout")
    parser.add_argument("--say", default="")
    return parser.parse_args()


WEDGED = threading.Event()
CORES: list[subprocess.Popen[bytes]] = []


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True
    asked: argparse.Namespace


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _gate(self) -> None:
        if WEDGED.is_set():
            threading.Event().wait()

    def _json(self, status: int, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._gate()
        self.server.asked.gets -= 1
        if self.server.asked.gets < 0:
            self._json(503, {"status": "overloaded"})
        elif CORES and CORES[0].poll() is not None:
            self._json(503, {"status": "broken"})
        elif self.path == "/v1/models":
            self._json(200, {"data": [{"id": self.server.asked.model}]})
        elif self.server.asked.unready:
            self._json(503, {"status": "loading"})
        else:
            self._json(200, {"status": "ok"})

    def do_POST(self) -> None:
        self._gate()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for base in self.server.asked.forward:
            import urllib.request  # a router alone needs it

            try:
                request = urllib.request.Request(base + self.path, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answer.read()
            except OSError as error:
                self._json(502, {"error": str(error)})
                return
        asked = json.loads(body)
        if asked.get("stream"):
            self._stream(int(asked["max_tokens"]))
        else:
            self._json(200, {"choices": [{"text": "word " * int(asked["max_tokens"])}]})

    def _stream(self, tokens: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for index in range(tokens):
            self.wfile.write(f"data: {json.dumps({'choices': [{'text': f'w{index} '}]})}\n\n".encode())
            if self.server.asked.fail_streams:
                self.close_connection = True
                return
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


def flood(rate: float) -> None:
    block = (b"x" * 127 + b"\n") * 1024
    due = time.monotonic()
    while True:
        os.write(1, block)
        due += len(block) / (rate * 1e6)
        time.sleep(max(0.0, due - time.monotonic()))


def daemonize(pid_file: str) -> None:
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(pid_file, "w") as file:
        file.write(str(os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def leave(code: int) -> None:
    print(f"leaving with {code}", flush=True)
    os._exit(code)


def main() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: leave(0))
    signal.signal(signal.SIGUSR2, lambda *_: leave(1))
    signal.signal(signal.SIGHUP, lambda *_: WEDGED.set())
    asked = options()
    print(asked.say or f"server {os.getpid()} starts", flush=True)
    if asked.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if asked.daemon:
        daemonize(asked.daemon)
    if asked.core:
        CORES.append(subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]))
        with open(asked.core, "w") as file:
            file.write(str(CORES[0].pid))
    host = os.environ["DISAGG_RUN_NODE_ADDRESS"]
    if asked.join_port:
        joining = socket.create_server((host, asked.join_port))
        threading.Thread(target=lambda: [joining.accept() for _ in iter(int, 1)], daemon=True).start()
    if asked.flood:
        threading.Thread(target=flood, args=(asked.flood,), daemon=True).start()
    if asked.exit_after is not None:
        timer = threading.Timer(asked.exit_after, leave, [asked.code])
        timer.daemon = True
        timer.start()
    time.sleep(asked.delay)
    if asked.port is None:
        threading.Event().wait()
    server = Server((host, asked.port), Handler)
    server.asked = asked
    server.serve_forever()


if __name__ == "__main__":
    main()
