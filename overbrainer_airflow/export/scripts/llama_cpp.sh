#!/bin/sh
# Fetching a pinned llama.cpp release into a cache that several jobs share.
#
#   $OVERBRAINER_CACHE/llama.cpp/<tag>/source/    the source tree, with convert_hf_to_gguf.py
#   $OVERBRAINER_CACHE/llama.cpp/<tag>/<asset>/   the programs of a platform
#   $OVERBRAINER_CACHE/llama.cpp/<tag>/.fetch.*   an archive on its way, one directory a job
#
# A directory appears under its final name by one rename, complete and checked, so a job that
# finds it may use it, and of two jobs that fetch at once the later one keeps the earlier one's.

say() {
    printf 'export: %s\n' "$*"
}

fail() {
    say "$*" >&2
    exit 1
}

# llama_cpp_asset: prints the name of this platform's programs.
llama_cpp_asset() {
    case "$(uname -sm)" in
        'Linux x86_64') echo ubuntu-x64 ;;
        'Linux aarch64' | 'Linux arm64') echo ubuntu-arm64 ;;
        'Darwin arm64') echo macos-arm64 ;;
        *) return 1 ;;
    esac
}

# llama_cpp_sha256 ASSET: prints the pinned digest, nothing when the release has none.
llama_cpp_sha256() {
    case "$1" in
        ubuntu-x64) echo "${OVERBRAINER_LLAMA_CPP_UBUNTU_X64_SHA256:-}" ;;
        ubuntu-arm64) echo "${OVERBRAINER_LLAMA_CPP_UBUNTU_ARM64_SHA256:-}" ;;
        macos-arm64) echo "${OVERBRAINER_LLAMA_CPP_MACOS_ARM64_SHA256:-}" ;;
    esac
}

# llama_cpp_fetch URL SHA256 TOP DIR: makes DIR from the directory TOP of the archive at URL.
llama_cpp_fetch() {
    [ -d "$4" ] && return 0
    mkdir -p "${4%/*}" || fail "cannot write the cache ${4%/*}: check its owner and free space"
    fetching=$(mktemp -d "${4%/*}/.fetch.XXXXXX") ||
        fail "cannot write the cache ${4%/*}: check its owner and free space"
    say "fetches $1"
    fetch_status=0
    python3 - "$1" "$2" "$3" "$4" "$fetching" <<'PYTHON' || fetch_status=$?
import errno, hashlib, http.client, os, sys, tarfile, urllib.request

url, wanted, top, final, work = sys.argv[1:]
archive = os.path.join(work, "archive.tar.gz")
digest = hashlib.sha256()


def stop(text):
    print("export: " + text, file=sys.stderr)
    sys.exit(1)


try:
    with urllib.request.urlopen(url, timeout=60) as source, open(archive, "wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
except (OSError, ValueError, http.client.HTTPException) as error:
    if getattr(error, "errno", None) == errno.ENOSPC:
        stop(f"the disk of {work} is full: make room and export again")
    stop(f"cannot fetch {url}: {error}; a mirror can be named with [overbrainer] llama_cpp_release")
if digest.hexdigest() != wanted:
    stop(
        f"{url} is not the pinned release: its SHA-256 is {digest.hexdigest()}, "
        f"expected {wanted}; nothing of it was unpacked"
    )
try:
    with tarfile.open(archive) as tar:
        # Python before 3.10.12 and 3.11.4 has no filters; the digest has vouched for the content.
        tar.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
except (OSError, tarfile.TarError) as error:
    if getattr(error, "errno", None) == errno.ENOSPC:
        stop(f"the disk of {work} is full: make room and export again")
    stop(f"cannot unpack {url}: {error}")
if not os.path.isdir(os.path.join(work, top)):
    stop(f"{url} does not hold the directory {top}")
try:
    os.rename(os.path.join(work, top), final)
except OSError as error:
    if not os.path.isdir(final):  # otherwise another job was first, with the same content
        stop(f"cannot rename {work}/{top} to {final}: {error.strerror}")
PYTHON
    rm -rf "$fetching"
    fetching=
    [ "$fetch_status" = 0 ] || exit 1
}

# llama_cpp_ready: sets llama_cpp_source and llama_cpp_bin, fetching what the cache lacks.
llama_cpp_ready() {
    llama_cpp_platform=$(llama_cpp_asset) ||
        fail "llama.cpp has no programs for $(uname -sm): export on Linux (x86-64, arm64) or macOS (arm64)"
    llama_cpp_digest=$(llama_cpp_sha256 "$llama_cpp_platform")
    [ -n "$llama_cpp_digest" ] ||
        fail "llama.cpp $OVERBRAINER_LLAMA_CPP is not pinned for $llama_cpp_platform: add its SHA-256 to the release file"
    llama_cpp_dir=$OVERBRAINER_CACHE/llama.cpp/$OVERBRAINER_LLAMA_CPP
    llama_cpp_source=$llama_cpp_dir/source
    llama_cpp_bin=$llama_cpp_dir/$llama_cpp_platform
    # What a killed job left of its fetch; a living one is never that old.
    [ ! -d "$llama_cpp_dir" ] ||
        find "$llama_cpp_dir" -maxdepth 1 -name '.fetch.*' -mtime +1 -exec rm -rf {} +
    llama_cpp_fetch \
        "$OVERBRAINER_LLAMA_CPP_URL/archive/refs/tags/$OVERBRAINER_LLAMA_CPP.tar.gz" \
        "$OVERBRAINER_LLAMA_CPP_SOURCE_SHA256" \
        "llama.cpp-$OVERBRAINER_LLAMA_CPP" "$llama_cpp_source"
    llama_cpp_fetch \
        "$OVERBRAINER_LLAMA_CPP_URL/releases/download/$OVERBRAINER_LLAMA_CPP/llama-$OVERBRAINER_LLAMA_CPP-bin-$llama_cpp_platform.tar.gz" \
        "$llama_cpp_digest" \
        "llama-$OVERBRAINER_LLAMA_CPP" "$llama_cpp_bin"
    # Prebuilt programs look for their libraries beside themselves only here and there.
    LD_LIBRARY_PATH=$llama_cpp_bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
}
