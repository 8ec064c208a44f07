"""Every script ends in one line when it fails: bad usage, no folder for downloads, no tool, no network, Ctrl-C.

    $(scripts/python-env) tests/tools/check_scripts.py ROOT
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
SCRIPTS = ROOT / "scripts"
complaints = []


def environment(**changes):
    kept = {key: value for key, value in os.environ.items()
            if not key.startswith(("GLIMPSE_", "XDG_", "PIP_")) and not key.lower().endswith("_proxy")}
    for key, value in changes.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = str(value)
    return kept


def judge(name, status, error, wanted, part):
    lines = [line for line in error.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if status != wanted or len(errors) != 1 or lines[-1] != errors[0] or part not in errors[0]:
        complaints.append(f"{name}: exit status {status}, not {wanted}, or not one line with '{part}':\n{error}")
    if re.search(r"Traceback|unbound variable|: line \d+: ", error):
        complaints.append(f"{name}: a trace of the script's own:\n{error}")


def expect(words, part, env=None, stdout=subprocess.DEVNULL, notes=False):
    name = " ".join(str(word) for word in words)
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=stdout,
                          stderr=subprocess.PIPE, text=True, env=env or environment())
    judge(name, done.returncode, done.stderr, 2, part)
    if not notes and len(done.stderr.splitlines()) != 1:
        complaints.append(f"{name}: more than one line:\n{done.stderr}")


def bad_usage():
    for words, part in ((["build"], "usage: "), (["build", "fast"], "unknown preset 'fast'"),
                        (["build-deps"], "usage: "), (["build-deps", "fast"], "unknown flavour 'fast'"),
                        (["build-llama-server", "x"], "usage: "), (["fetch-model", "x"], "usage: "), (["python-env", "x", "y"], "usage: "),
                        (["python-env", "/no/such"], "'/no/such'"),
                        (["test-clients", "x", "y"], "usage: "), (["test-clients", "/no/such"], "'/no/such'"),
                        (["install-packages", "--all"], "usage: "), (["format", "--chek"], "usage: "),
                        (["lint", "x"], "usage: "), (["make-page-picture", "x"], "usage: "), (["test", "--al"], "usage: "),
                        (["bench", "a", "b"], "usage: "),
                        (["bench", "/nonexistent.gguf"], "is no file"), (["demo", "--modl", "x"], "--modl"),
                        (["demo", "x"], "unrecognized"), (["measure"], "name a benchmark"),
                        (["measure", "nothing"], "no benchmark 'nothing'"), (["measure", "--threads", "x"], "--threads"),
                        (["make-demo-document", "--words", "x"], "--words"),
                        (["make-demo-document", "--words", "-4"], "--words"),
                        (["make-demo-document", "--depth", "nan"], "--depth")):
        expect([SCRIPTS / words[0], *words[1:]], part)
    for script in ("make-test-models.py", "convert-seer-gates.py", "make-tables.py"):
        expect([sys.executable, SCRIPTS / script, "--frobnicate"], "--help")
    expect([sys.executable, SCRIPTS / "make-test-models.py", "/dev/null/folder"], "/dev/null/folder")
    expect(["python3", "-S", "-E", SCRIPTS / "convert-seer-gates.py"], "scripts/python-env")
    for words, part in ((["--only", "x"], "no case 'x'"), (["--rounds", "0"], "--rounds 0"),
                        (["--document", "9"], "--document 9")):
        expect([sys.executable, ROOT / "bench/serve_bench.py", "model", "text", *words], part)
    expect([sys.executable, ROOT / "bench/slow_clients.py", "model", "--connections", "0"], "--connections 0")
    with open("/dev/full", "w") as full:
        expect([SCRIPTS / "make-demo-document"], "No space left", stdout=full)
    read, write = os.pipe()
    os.close(read)
    expect([SCRIPTS / "make-demo-document"], "closed by its reader", stdout=write)
    os.close(write)


def helps(path):
    """--help of each script is what stands at its top; without tools, so that nothing runs where it is not known."""
    for script in sorted(SCRIPTS.iterdir()):
        if not os.access(script, os.X_OK) or not script.read_text().startswith("#!/usr/bin/env bash\n"):
            continue
        done = subprocess.run([script, "--help"], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=environment(PATH=path))
        top = script.read_text().splitlines()[1].removeprefix("# ")
        if done.returncode or done.stderr or not done.stdout.startswith(top) or "scripts/" not in done.stdout:
            complaints.append(f"{script.name} --help: exit status {done.returncode}:\n{done.stdout}{done.stderr}")


def installed_by_sudo(folder):
    """The build that sudo hands back to its user knows the folder of downloads."""
    path = folder / "sudo-bin"
    path.mkdir()
    (path / "sudo").write_text('#!/bin/sh\necho "error: sudo $*" >&2\nexit 2\n')
    (path / "sudo").chmod(0o755)
    if os.geteuid() != 0:
        return
    expect([SCRIPTS / "install"], "-u somebody env GLIMPSE_CACHE=/a/cache scripts/build release glimpse",
           environment(PATH=f"{path}:{os.environ['PATH']}", SUDO_USER="somebody", GLIMPSE_CACHE="/a/cache",
                       DESTDIR=folder / "stage"))


def no_arm64_packages(folder):
    path = folder / "arm64-bin"
    path.mkdir()
    for name, text in (("dpkg-query", 'for word; do case "$word" in -*) ;; *) echo "$word installed" ;; esac; done'),
                       ("apt-get", "echo 'Reading'; echo 'E: Failed to fetch http://127.0.0.1:9/x' >&2; exit 100")):
        (path / name).write_text(f"#!/bin/sh\n{text}\n")
        (path / name).chmod(0o755)
    expect([SCRIPTS / "test-arm64"], "is there a connection? E: Failed to fetch",
           environment(PATH=f"{path}:{os.environ['PATH']}", GLIMPSE_CACHE=folder / "arm64"))


def no_cache():
    for words in (["fetch-model"], ["python-env"], ["build-deps", "release"]):
        expect([SCRIPTS / words[0], *words[1:]], "GLIMPSE_CACHE", environment(HOME=None))
        expect([SCRIPTS / words[0], *words[1:]], "cannot write to the folder '/dev/null/x'",
               environment(GLIMPSE_CACHE="/dev/null/x"))


def few_tools(folder):
    """What a script needs to say how it ends, and nothing that builds, fetches or installs."""
    path = folder / "bin"
    path.mkdir()
    for tool in ("bash", "dirname", "mkdir", "cat", "cut", "grep", "sed"):
        (path / tool).symlink_to(shutil.which(tool))
    return path


def no_tool(folder, path):
    for script in ("install", "test-arm64"):
        expect([SCRIPTS / script, "x"], "usage: ", environment(PATH=path))
    for words in (["fetch-model"], ["python-env"], ["build-deps", "release"]):
        expect([SCRIPTS / words[0], *words[1:]], "is not installed",
               environment(PATH=path, GLIMPSE_CACHE=folder / "cache"))
    for option, package in (("--tests", "clang-tidy"), ("--browser", "chromium"), ("--arm64", "qemu-user")):
        expect([SCRIPTS / "install-packages", option], package, environment(PATH=path))


def no_network(folder):
    expect([SCRIPTS / "fetch-model"], "is there a connection?",
           environment(GLIMPSE_CACHE=folder / "nothing", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES=0),
           notes=True)


def interrupted(folder):
    """Ctrl-C while a registry does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = environment(GLIMPSE_CACHE=folder / "stopped", PIP_RETRIES=0,
                          PIP_INDEX_URL=f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        run = subprocess.Popen([SCRIPTS / "fetch-model"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
        connection, _ = server.accept()
        os.killpg(run.pid, signal.SIGINT)
        error = run.communicate()[1]
        connection.close()
        judge("fetch-model, interrupted", run.returncode, error, 130, "interrupted")


def bad_gates(folder):
    convert = [sys.executable, SCRIPTS / "convert-seer-gates.py"]
    gates = folder / "gates"
    expect([*convert, folder / "nowhere", folder / "out"], "No such file")
    gates.mkdir()
    config = gates / "config.json"
    for text, part in (("{", "config.json"), ("[]", "no JSON object"), ("{}", "num_attention_heads"),
                       ('{"num_attention_heads": "x"}', "num_attention_heads")):
        config.write_text(text)
        expect([*convert, gates, folder / "out"], part)
    config.write_text('{"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2, '
                      '"num_hidden_layers": 1, "hidden_size": 64}')
    expect([*convert, gates, folder / "out"], "neither attn_gate_weights.pth nor")
    for name, data in (("model.safetensors", b"\x08\0\0\0\0\0\0\0[1,2,3] "), ("model.safetensors", b"\2"),
                       ("attn_gate_weights.pth", b"no archive"), ("attn_gate_weights.pth", b"")):
        (gates / name).write_bytes(data)
        expect([*convert, gates, folder / "out"], name)


def main():
    bad_usage()
    no_cache()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = few_tools(folder)
        helps(path)
        no_tool(folder, path)
        no_network(folder)
        installed_by_sudo(folder)
        no_arm64_packages(folder)
        interrupted(folder)
        bad_gates(folder)
    print("\n".join(complaints) or "every script ends in one line")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
