"""Starts `glimpse serve` on a free port of 127.0.0.1 and runs the tests of this folder against it.

    run.py PROGRAM MODEL

The server says where it listens once the model is loaded. The tests find URL and key in the environment (support.py). In
the end SIGTERM stops the server, and it must end with 0.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

KEY = "a-key-of-the-tests"
SECONDS = 60  # to load the model, and to end


def address_of(server, log):
    """Where the server listens, by its log; ends the tests where it does not come up."""
    end = time.monotonic() + SECONDS
    while server.poll() is None and time.monotonic() < end:
        found = re.search(r"serving at (http://127\.0\.0\.1:\d+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    sys.exit(f"error: the server did not start:\n{log.read_text()}")


def run_tests(url):
    for name in list(os.environ):  # a client asks this server alone, directly, and reports to nobody
        if re.match(r"OPENAI_|LANGCHAIN_|LANGSMITH_|(ALL|HTTPS?)_PROXY$", name, re.I):
            del os.environ[name]
    os.environ.update(GLIMPSE_CLIENTS_URL=url, GLIMPSE_CLIENTS_KEY=KEY)
    tests = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent), pattern="test_*.py")
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(tests)
    return result.wasSuccessful() and result.testsRun > 0


def run(log, program, model):
    # Four at a time, so that the streams of a test share the engine's steps.
    command = [program, "serve", "-m", model, "--port", "0", "--api-key", KEY, "--parallel", "4", "--ctx-size", "4096"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLIMPSE_ARG_")}
    with open(log, "w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        passed = run_tests(address_of(server, log))
        server.terminate()
        if server.wait(SECONDS) != 0:
            sys.exit(f"error: the server ended with {server.returncode}:\n{log.read_text()}")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(pathlib.Path(folder) / "server.log", sys.argv[1], sys.argv[2])
