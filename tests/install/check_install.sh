#!/usr/bin/env bash
# Installs the build to a temporary prefix, builds examples/ against it, and runs the program on a small model.
# Usage: check_install.sh BUILD_FOLDER SOURCE_FOLDER MODEL
set -euo pipefail
build=$(realpath "$1") source=$(realpath "$2") model=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "error: $*" >&2; exit 1; }

# Staged by DESTDIR and moved from there, as a packager does: the package must not know where it was built or staged.
DESTDIR=$scratch/stage cmake --install "$build" --prefix /opt/glimpse >"$scratch/install.log"
mv "$scratch/stage/opt/glimpse" "$scratch/moved"
moved=$scratch/moved
[[ -z $(find "$scratch/stage" -type f) ]] || fail "files were installed outside the prefix"
deps=$(sed -n 's/^GLIMPSE_DEPS:[A-Z]*=//p' "$build/CMakeCache.txt")
for path in "$build" "$source/" "$scratch/stage" "$deps"; do
  found=$(find "$moved" -name '*.cmake' -o -name '*.h' -o -name '*.pc' | xargs grep -lF -- "$path" || true)
  [[ -z $found ]] || fail "'$path' is in $found"
done
"$moved/bin/glimpse" --version | grep -q '^glimpse ' || fail "the installed program does not run"

cmake -S "$source/examples" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$moved" -DCMAKE_BUILD_TYPE=Release
cmake --build "$scratch/build"
for i in $(seq 1 20); do echo "Line $i of a document about rivers, ships and coal."; done >"$scratch/document.txt"
"$scratch/build/ask" "$model" "$scratch/document.txt" "Who signed for the coal?" tidal 64 | tee "$scratch/output"
grep -q '^full: ' "$scratch/output" || fail "no dense answer"
grep -q '^tidal: ' "$scratch/output" || fail "no sparse answer"
[[ $(grep -c 'read 100.0 %' "$scratch/output") -eq 1 ]] || fail "dense attention alone reads all"

code=0
"$scratch/build/ask" /no-such-model "$scratch/document.txt" "Who?" 2>"$scratch/errors" || code=$?
[[ $code -eq 2 ]] || fail "a missing model ends with $code"
grep -q '^error: .*no-such-model' "$scratch/errors" || fail "a missing model is not named"

# Code that may go into a shared library.
cat >"$scratch/shared.cc" <<'CODE'
#include <glimpse/policies/policy.h>
extern "C" int policies() { return static_cast<int>(glimpse::policies::registry().size()); }
CODE
${CXX:-c++} -std=c++20 -shared -fPIC -I"$moved/include" "$scratch/shared.cc" -o "$scratch/shared.so" \
  -Wl,--whole-archive "$moved"/lib*/glimpse/libglimpse_policies.a "$moved"/lib*/glimpse/libglimpse_kernels.a \
  -Wl,--no-whole-archive
