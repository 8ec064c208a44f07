"""What bench/serve_bench.py measures with: servers that it starts, streams of answers with the time of each event, and
an Engine by hand (hand_loop). Times are seconds of time.monotonic(). One thread."""
import http.client
import json
import pathlib
import selectors
import socket
import subprocess
import time

ADDRESS = "127.0.0.1"
START_SECONDS = 120
QUIET_SECONDS = 600  # a stream in which nothing comes for so long is given up


class Failed(Exception):
    """A server or a stream did not do what it was asked; the text is for people."""


def free_port():
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


class Server:
    """A process that serves on a free port of this machine; its output goes to a file of `folder`."""

    def __init__(self, name, command, folder):
        self.name, self.port = name, free_port()
        self.log = pathlib.Path(folder) / f"{name}.log"
        with open(self.log, "w") as output:
            self.process = subprocess.Popen([*command, "--host", ADDRESS, "--port", str(self.port)], stdout=output,
                                            stderr=output)

    def wait(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.ask("GET", "/health")
                return
            except (OSError, Failed, http.client.HTTPException):
                time.sleep(0.1)
        self.fail("did not start")

    def fail(self, what):
        raise Failed(f"{self.name} {what}; it said: {self.log.read_text(errors='replace')[-400:]}")

    def ask(self, method, path, body=None):
        """The text of one whole answer."""
        connection = http.client.HTTPConnection(ADDRESS, self.port, timeout=600)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise Failed(f"{self.name} answered {answer.status} to {path}: {text[:200]}")
        return text

    def json(self, path, body):
        return json.loads(self.ask("POST", path, body))

    def stop(self):
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Chunks:
    """Takes the body out of an answer whose body comes in chunks, as its bytes come."""

    def __init__(self):
        self.bytes, self.head = b"", None

    def add(self, data):
        """The bytes of the body that are complete now."""
        self.bytes += data
        if self.head is None:
            head, found, rest = self.bytes.partition(b"\r\n\r\n")
            if not found:
                return b""
            self.head, self.bytes = head, rest
        body = b""
        while True:
            size, found, rest = self.bytes.partition(b"\r\n")
            if not found or len(rest) < int(size, 16) + 2:
                return body
            body += rest[:int(size, 16)]
            self.bytes = rest[int(size, 16) + 2:]


class Stream:
    """One request whose answer comes as server-sent events. Bytes are kept with their times and read when all is over:
    the machine's processors are those that the server computes on."""

    def __init__(self, server, path, body=None):
        self.server, self.pieces, self.ended = server, [], False
        data = b"" if body is None else json.dumps(body).encode()
        head = (f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n")
        self.socket = socket.create_connection((ADDRESS, server.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = time.monotonic()
        self.socket.sendall(head.encode() + data)
        self.socket.setblocking(False)

    def take(self):
        """Reads what is there."""
        data = self.socket.recv(1 << 20)
        self.pieces.append((time.monotonic(), data))
        if not data:
            self.close()

    def close(self):
        self.ended = True
        self.socket.close()

    def bytes(self):
        return sum(len(data) for _, data in self.pieces)

    def events(self):
        """(time, object) of each event so far. Throws Failed for an answer that is none."""
        chunks, text, events = Chunks(), b"", []
        for at, data in self.pieces:
            text += chunks.add(data)
            *whole, text = text.split(b"\n\n")
            events += [(at, json.loads(each[5:])) for each in whole
                       if each.startswith(b"data:") and not each.endswith(b"[DONE]")]
        if chunks.head is not None and b" 200 " not in chunks.head.split(b"\r\n")[0]:
            raise Failed(f"{self.server.name} answered {chunks.head[:60]!r} {chunks.bytes[:300]!r}")
        for _, event in events:
            if "error" in event:
                raise Failed(f"{self.server.name}: {event['error']}")
        return events


def follow(streams, until=None):
    """Reads the streams until all have ended, or until() is true after something came."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            if not stream.ended:
                selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(QUIET_SECONDS)
            if not ready:
                raise Failed(f"nothing came for {QUIET_SECONDS} seconds")
            for key, _ in ready:
                number = key.fileobj
                key.data.take()
                if key.data.ended:
                    selector.unregister(number)
            if until is not None and until():
                return


class Answer:
    """What a completion's stream told: its text, when each piece came, when it ended."""

    def __init__(self, stream):
        self.sent, self.times, self.text, self.end, self.cached = stream.sent, [], "", None, 0
        for at, event in stream.events():
            for choice in event.get("choices", []):
                if choice.get("text"):
                    self.times.append(at)
                    self.text += choice["text"]
                if choice.get("finish_reason"):
                    self.end = at
            details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
            self.cached = details.get("cached_tokens", self.cached)

    def first(self):
        """Seconds to the first token."""
        return (self.times[0] if self.times else self.end) - self.sent


class Hand:
    """hand_loop: requests to an Engine of another process, which steps them by hand."""

    def __init__(self, command):
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.head = json.loads(self.line())

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failed("hand_loop ended")
        return line

    def job(self, method, prompts, tokens):
        """{"tokens", "seconds", "reused"}, a list for each prompt."""
        job = {"method": method.written, "budget": method.budget, "prompts": prompts, "tokens": tokens}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
