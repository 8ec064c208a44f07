"""How the Python scripts end: one line on standard error for what went wrong, exit status 2, and 130 after Ctrl-C."""
import argparse
import os
import subprocess
import sys
import zipfile


class Parser(argparse.ArgumentParser):
    """argparse, whose errors are a line."""

    def error(self, message):
        fail(f"{message}; see {self.prog} --help")


def fail(text):
    print(f"error: {' '.join(str(text).split())}", file=sys.stderr)
    sys.exit(2)


def need(*modules):
    """Imports packages that a plain Python may not have."""
    import importlib
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            fail(f"this Python has no package '{module}'; run it as $(scripts/python-env) {sys.argv[0]}")


def run(main):
    """Runs main() and turns what users and machines do wrong into a line; a bug keeps its traceback."""
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nerror: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python still flushes at its end
        fail("standard output was closed by its reader")
    except OSError as error:
        fail(f"'{error.filename}': {error.strerror}" if error.filename else error.strerror or error)
    except subprocess.CalledProcessError as error:
        fail(f"'{error.cmd[0] if isinstance(error.cmd, (list, tuple)) else error.cmd}' failed with {error.returncode}")
    except (UnicodeDecodeError, zipfile.BadZipFile) as error:
        fail(error)
