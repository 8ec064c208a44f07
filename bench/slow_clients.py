#!/usr/bin/env python3
"""Whether `glimpse serve` answers others while many connections send a byte a second, and cuts those in time.

    bench/slow_clients.py MODEL.gguf [--connections 1100] [--open-ms 1] [--streams 0] [--json FILE]

The program is build/release/glimpse, with its default limits. Each connection begins a request and sends a byte of it
a second; another process asks for /health meanwhile, each time on a connection of its own. --streams so many answers
are generated beside that. The exit status is 1 where an answer takes longer than 50 ms, or a connection is not told 408
and closed within 11 s of its first byte.
"""
import json
import multiprocessing
import pathlib
import resource
import selectors
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import one_line  # noqa: E402
from serve_streams import ADDRESS, Failed, Server  # noqa: E402

OTHERS = 64  # descriptors beside the connections
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 1000
HEADER_SECONDS, LATE_SECONDS = 10, 1  # --header-timeout, and what a busy machine may add
HEALTH_MS = 50
PAUSE_SECONDS = 0.02  # between two questions for /health
PATIENCE_SECONDS = 60


def ask_health(port, stop, pipe):
    """Another process: the milliseconds of each answer, from before the connection to its last byte."""
    times = []
    while not stop.is_set():
        start = time.perf_counter()
        with socket.create_connection((ADDRESS, port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            text = b""
            while part := connection.recv(4096):
                text += part
        times.append(1000 * (time.perf_counter() - start))
        if not text.startswith(b"HTTP/1.1 200 "):
            times[-1] = float("inf")
        time.sleep(PAUSE_SECONDS)
    pipe.send(times)


def generate(server, stop):
    body = {"prompt": "The river was high", "max_tokens": 256, "ignore_eos": True}
    while not stop.is_set():
        server.json("/v1/completions", body)


class Slow:
    """A connection that sends a byte a second."""

    def __init__(self, port):
        self.first = time.monotonic()
        self.socket = socket.socket()
        self.socket.connect((ADDRESS, port))
        self.socket.setblocking(False)
        self.sent, self.text, self.seconds = 0, b"", None
        self.send()

    def send(self):
        try:
            self.socket.send(REQUEST[self.sent:self.sent + 1])
        except OSError:  # what it was told says why
            pass
        self.sent += 1

    def read(self):
        """True at the end."""
        try:
            part = self.socket.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        self.text += part
        if part:
            return False
        self.seconds = time.monotonic() - self.first
        self.socket.close()
        return True


def drive(port, count, open_seconds):
    """Opens the connections and sends their bytes until the server has closed all."""
    selector, slow, left = selectors.DefaultSelector(), [], 0
    begin, most_open = time.monotonic(), 0
    while len(slow) < count or left > 0:
        now = time.monotonic()
        if now - begin > PATIENCE_SECONDS + count * open_seconds:
            break
        while len(slow) < count and now - begin >= len(slow) * open_seconds:
            each = Slow(port)
            selector.register(each.socket, selectors.EVENT_READ, each)
            slow.append(each)
            left += 1
        most_open = max(most_open, left)
        for each in slow:
            if each.seconds is None and now - each.first >= each.sent:
                each.send()
        for key, _ in selector.select(0.001):
            number = key.fd
            if key.data.read():
                selector.unregister(number)
                left -= 1
    return slow, most_open


def measure(arguments, server):
    stop = multiprocessing.Event()
    pipe, far = multiprocessing.Pipe()
    asker = multiprocessing.Process(target=ask_health, args=(server.port, stop, far), daemon=True)
    streams = [threading.Thread(target=generate, args=(server, stop), daemon=True) for _ in range(arguments.streams)]
    for each in (asker, *streams):
        each.start()
    slow, most_open = drive(server.port, arguments.connections, arguments.open_ms / 1000)
    stop.set()
    if not pipe.poll(PATIENCE_SECONDS):
        raise Failed("the process that asks for /health says nothing")
    health = sorted(pipe.recv())
    for each in (asker, *streams):
        each.join()
    cut = sorted(each.seconds for each in slow if each.seconds is not None)
    told = sum(each.text.startswith(b"HTTP/1.1 408 ") for each in slow)
    if not health or not cut:
        raise Failed("no answer came, or no connection was cut")
    return {"connections": len(slow), "most_open": most_open, "streams": arguments.streams, "answers": len(health),
            "health_ms": statistics.median(health), "health_ms_p99": health[len(health) * 99 // 100],
            "health_ms_most": health[-1], "cut": len(cut), "told_408": told, "cut_s_first": cut[0],
            "cut_s": statistics.median(cut), "cut_s_last": cut[-1]}


def holds(row):
    return (row["told_408"] == row["cut"] == row["connections"] and row["health_ms_most"] <= HEALTH_MS and
            HEADER_SECONDS <= row["cut_s_first"] and row["cut_s_last"] <= HEADER_SECONDS + LATE_SECONDS)


def main():
    parser = one_line.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("--connections", type=int, default=1100, help="that send a byte a second (default: 1100)")
    parser.add_argument("--open-ms", type=float, default=1, help="from one connection to the next (default: 1)")
    parser.add_argument("--streams", type=int, default=0, help="answers that are generated meanwhile (default: 0)")
    parser.add_argument("--json", type=pathlib.Path, help="the row that was measured")
    arguments = parser.parse_args()
    if not 1 <= arguments.connections <= 1900:
        one_line.fail(f"--connections {arguments.connections}; give 1 to 1900: the server's limit is 2048")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < arguments.connections + OTHERS:
        one_line.fail(f"--connections {arguments.connections}; the system lets a process open {hard} files, {OTHERS} "
                      "of them for others; give fewer, or raise that limit (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends with this program
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [str(ROOT / "build/release/glimpse"), "serve", "-m", str(arguments.model)]
            server = Server("glimpse", command, folder)
            try:
                server.wait()
                row = measure(arguments, server)
            finally:
                server.stop()
    except Failed as error:
        one_line.fail(error)
    row = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
    print(json.dumps(row))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(row) + "\n")
    if not holds(row):
        sys.exit(1)


if __name__ == "__main__":
    one_line.run(main)
