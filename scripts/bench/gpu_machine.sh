#!/usr/bin/env bash
# All that is measured on a GPU machine; it needs no package index there.
#   scripts/bench/gpu_machine.sh LLAMA_CPP_DIR LIBGGML_CUDA_SO OUT_DIR STEP...
#
# LLAMA_CPP_DIR     llama.cpp's sources, the pinned build
# LIBGGML_CUDA_SO   ggml's CUDA backend as a loadable library, built from the same sources
# OUT_DIR           where the figures go; the packages of python3 must hold numpy, gguf, rich and pytest (rows: none)
# STEP              any of, in the order that is wanted:
#   build           luced with LUCE_BACKEND_DL, and what it is compared with: the bare loop, llama.cpp's own programs
#   rows            the rows of decode/rows.py that $ROWS names (decode,prefill), with the options in $ROW_OPTIONS, of
#                   each of $MODELS, or of a random model of 8 GB (made here)
#   gate            speculation with a drafter that is never right against plain decoding, on the model of 8 GB
#   prefix          an agent's session against the bare loop and llama-server; $MODELS or the same
#   real            the cells $CELLS of scripts/bench/real for $REAL_MODELS (smollm qwen), whose files lie in
#                   $XDG_CACHE_HOME/luce-daemon/models; on the GPU, or with REAL_PLACE=cpu on 8 threads of the CPU
#   tests           the daemon's tests with --gpu (PYTEST_ADDOPTS="-n 8" where pytest-xdist is installed)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
[ $# -ge 4 ] || { sed -n '2,16s/^# \?//p' "$0"; exit 64; }
llama=$(realpath "$1") backend=$(realpath "$2") out=$(realpath -m "$3")
shift 3
build=build/gpu-dl
model=build/bench-models/bench-8b.gguf
mkdir -p "$out" build/gpu-import/luce
ln -sfn "$PWD/protocol" build/gpu-import/luce/protocol
ln -sfn "$PWD/supervisor" build/gpu-import/luce/supervisor

luced=$PWD/$build/bin/luced programs=$build/bin
server=$programs/llama-server
export LUCE_DAEMON_BINARY=$luced LUCE_TEXT_LIBRARY=$PWD/$build/native/llama/text/libluce_text.so
export GGML_BACKEND_PATH=$backend PYTHONUNBUFFERED=1
export PYTHONPATH=$PWD/build/gpu-import:$PWD${PYTHONPATH:+:$PYTHONPATH}

build() {
    cmake -G Ninja -S . -B $build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON \
        -DGGML_F16C=ON -DGGML_BMI2=ON -DLUCE_BACKEND_DL=ON -DLLAMA_CPP_DIR="$llama" -DLUCE_BUILD_BENCH=ON \
        -DGGML_CPU_ALL_VARIANTS=OFF >"$out/build.txt" 2>&1 &&
        ninja -C $build luced luce_text ggml-cpu bare llama-bench llama-batched-bench llama-perplexity \
            llama-server >>"$out/build.txt" 2>&1 || { tail -30 "$out/build.txt"; exit 1; }
    { nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; "$luced" --version; } 2>/dev/null |
        tee "$out/machine.txt"
}

models() {
    [ -e build/test-models/made-by.py ] && return
    python3 scripts/make_test_models.py build/test-models
    cp scripts/make_test_models.py build/test-models/made-by.py
    python3 scripts/make_test_models.py build/bench-models --shape bench-8b
}

rows() {
    for one in ${MODELS:-$model}; do
        # shellcheck disable=SC2086
        python3 scripts/bench/decode/rows.py --luced "$luced" --bare $programs/bare --model "$one" --threads 8 \
            --llama-bench $programs/llama-bench --llama-batched-bench $programs/llama-batched-bench --gpu-layers 99 --ubatch 0 \
            --rows "${ROWS:-decode,prefill}" ${ROW_OPTIONS:-} --json "$out/rows-$(basename "$one" .gguf).json" |
            tee -a "$out/rows.md"
    done
}

prefix() {
    for one in ${MODELS:-$model}; do
        python3 scripts/bench/memory/prefix.py --luced "$luced" --bare $programs/bare --vs "$server" --threads 8 \
            --gpu-layers 99 --models "$one" --cache-type f16 --json "$out/prefix-$(basename "$one" .gguf).json" |
            tee -a "$out/prefix.txt"
    done
}

gate() {
    python3 scripts/make_test_models.py build/bench-models --shape bench-8b-dflash
    python3 scripts/bench/speculation/speculation.py --luced "$luced" --model $model --threads 8 --gpu-layers 99 --cache-type f16 \
        --draft build/bench-models/bench-8b-dflash.gguf --only gate --sets code --prompts 4 --tokens 400 \
        --pairs 3 --lanes 1 2 4 --json "$out/gate.json" | tee "$out/gate.txt"
}

real() {
    local layers=99
    [ "${REAL_PLACE:-gpu}" = gpu ] || layers=0
    # shellcheck disable=SC2086
    python3 -m scripts.bench.real ${CELLS:-all} --models ${REAL_MODELS:-smollm qwen} --luced "$luced" --vs "$server" \
        --threads 8 --gpu-layers $layers ${REAL_OPTIONS:-} --out "$out" 2>&1 | tee -a "$out/real-${REAL_PLACE:-gpu}.txt"
}

tests() {
    python3 -m pytest -q -p no:cacheprovider --gpu tests/daemon 2>&1 | tee "$out/tests.txt" | tail -15
}

for step in "$@"; do
    [ "$step" = build ] || [ -x "$luced" ] || exit 1
    [ "$step" = build ] || [ "$step" = real ] || [ "$step${MODELS:+given}" = rowsgiven ] || models || exit 1
    case $step in
        build | rows | prefix | real | tests | gate) $step ;;
        *) echo "no step $step" >&2; exit 64 ;;
    esac
done
