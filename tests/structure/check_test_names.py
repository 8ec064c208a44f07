"""Names of tests are words: none ends with a number or shows the bytes of its parameter.

    python3 tests/structure/check_test_names.py CTEST BUILD_FOLDER
"""
import re
import subprocess
import sys

BAD = re.compile(r"-byte object|GetParam\(\) =|0x[0-9a-f]{6}|/\d+$|/case_\d+$")
WORST = ["Cases/A.B/16-byte object <00-02>", "Cases/A.B/x  # GetParam() = 3", "Cases/A.B/0", "A.B/0x560adea4d7c9"]


def main():
    listed = subprocess.run([sys.argv[1], "--test-dir", sys.argv[2], "-N"], check=True, stdout=subprocess.PIPE, text=True)
    names = re.findall(r"^ +Test +#\d+: (.*)$", listed.stdout, re.M)
    wrong = [name for name in names if BAD.search(name.strip())]
    if not all(BAD.search(name) for name in WORST):
        sys.exit("the check overlooks bad names")
    if len(names) < 100:
        sys.exit(f"{len(names)} tests are listed: {listed.stdout[-2000:]}")
    print("\n".join(wrong) or f"{len(names)} names are words")
    sys.exit(bool(wrong))


main()
