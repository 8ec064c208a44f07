# How the scripts end, sourced by them: one line on standard error for what went wrong, exit status 2 where the user can
# mend it, 130 after Ctrl-C. A command that was not expected to fail is named; a script that was called has said why.
set -Eeuo pipefail

die() { echo "error: $*" >&2; exit 2; }

# --help: what stands at the top of the script that reads this.
if [[ ${1:-} == --help ]]; then
  sed -n '2,/^[^#]\|^$/s/^# \?//p' "${BASH_SOURCE[0]%/*}/${0##*/}"
  exit 0
fi

unexpected() {
  local status=$?
  [[ $status -eq 2 || $status -eq 130 ]] || echo "error: ${0##*/} stopped: '${BASH_COMMAND%%$'\n'*}' failed with $status" >&2
  exit "$status"
}
trap unexpected ERR
trap 'trap - ERR; echo "error: ${0##*/} was interrupted" >&2; exit 130' INT

# need TOOL...: all of them must be installed.
need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || die "'$tool' is not installed; scripts/install-packages installs what is needed"
  done
}

# usage TEXT: what may be typed.
usage() { die "usage: $*"; }

# The folder of downloads and built dependencies, made where it is missing.
cache_folder() {
  local folder=${GLIMPSE_CACHE:-${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}}
  [[ -n $folder ]] || die "none of GLIMPSE_CACHE, XDG_CACHE_HOME and HOME is set; set GLIMPSE_CACHE to a folder for downloads"
  [[ -n ${GLIMPSE_CACHE:-} ]] || folder=$folder/glimpse
  mkdir -p "$folder" 2>/dev/null && [[ -w $folder ]] ||
    die "cannot write to the folder '$folder'; set GLIMPSE_CACHE to one for downloads"
  echo "$folder"
}

# fetching WHAT LOG COMMAND...: runs pip or apt, which say much; on failure the last that it said in one line.
fetching() {
  local what=$1 log=$2
  shift 2
  "$@" >"$log" 2>&1 && return
  [[ $? -ne 130 ]] || exit 130
  die "could not get $what; is there a connection? $(grep -v '^\s*$' "$log" | grep -i -E 'error|could not|failed' | tail -1 | cut -c1-200 || true)"
}
