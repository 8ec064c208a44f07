"""The demo's document: the same bytes everywhere, the number in it once and where asked, prose of the length asked."""
import hashlib
import subprocess
import sys


def document(*options):
    return subprocess.run([sys.executable, sys.argv[1], *options], check=True, capture_output=True).stdout.decode()


def main():
    text = document("--number", "7391642")
    assert text == document("--number", "7391642"), "two runs differ"
    assert text.count("7391642") == 1
    assert sum(letter.isdigit() for letter in text) == 7, "the prose has digits of its own"
    assert "{" not in text and "}" not in text, "a slot was left open"
    assert text.endswith("\n\nWhat is the special magic number for brave-otter mentioned in the provided text?\n")
    words = len(document("--words", "1000").split())
    assert 1000 <= words <= 1150, words
    for depth in (0.1, 0.9):
        text = document("--depth", str(depth), "--key", "calm-heron", "--number", "1111111")
        assert "numbers for calm-heron is: 1111111." in text
        assert abs(text.index("1111111") / len(text) - depth) < 0.05
    digest = hashlib.sha256(document().encode()).hexdigest()
    assert digest == DIGEST, f"the default document changed: {digest}"


DIGEST = "026345be6154a6b1552f6cd03c5a2c0dcc2345ec098034f10a6426f7c437bbb2"
main()
