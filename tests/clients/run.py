"""Starts `glimpse serve` on a free port of 127.0.0.1 and runs the tests of this folder against it.

    run.py PROGRAM MODEL TOOLS_MODEL

A second server has TOOLS_MODEL, whose chat template has tools. The server says where it listens once the model is loaded. The tests find all they need in the environment (support.py). In
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


def run_tests(url, tools_url, program, model):
    for name in list(os.environ):  # a client asks this server alone, directly, and reports to nobody
        if re.match(r"OPENAI_|LANGCHAIN_|LANGSMITH_|(ALL|HTTPS?)_PROXY$", name, re.I):
            del os.environ[name]
    os.environ.update(GLIMPSE_CLIENTS_URL=url, GLIMPSE_CLIENTS_TOOLS_URL=tools_url, GLIMPSE_CLIENTS_KEY=KEY,
                      GLIMPSE_CLIENTS_PROGRAM=program, GLIMPSE_CLIENTS_FILE=model)
    tests = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent), pattern="test_*.py")
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(tests)
    return result.wasSuccessful() and result.testsRun > 0


def start(log, program, model):
    # Four at a time, so that the streams of a test share the engine's steps.
    command = [program, "serve", "-m", model, "--port", "0", "--api-key", KEY, "--parallel", "4", "--ctx-size", "4096"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLIMPSE_ARG_")}
    with open(log, "w") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def run(folder, program, models):
    logs = [folder / f"server-{i}.log" for i in range(len(models))]
    servers = []
    try:
        for log, model in zip(logs, models):
            servers.append(start(log, program, model))
        passed = run_tests(*[address_of(server, log) for server, log in zip(servers, logs)], program, models[0])
        for server, log in zip(servers, logs):
            server.terminate()
            if server.wait(SECONDS) != 0:
                sys.exit(f"error: the server ended with {server.returncode}:\n{log.read_text()}")
    finally:
        for server in servers:
            if server.poll() is None:
                server.kill()
                server.wait()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(pathlib.Path(folder), sys.argv[1], sys.argv[2:])
