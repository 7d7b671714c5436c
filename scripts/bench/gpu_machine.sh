#!/usr/bin/env bash
# All that is measured on a GPU machine, in one call; it needs no package index there.
#   scripts/bench/gpu_machine.sh LLAMA_CPP_DIR LIBGGML_CUDA_SO [OUT_DIR]
#
# LLAMA_CPP_DIR     llama.cpp's sources, the pinned build
# LIBGGML_CUDA_SO   ggml's CUDA backend as a loadable library, built from the same sources
# OUT_DIR           where the figures go (default build/gpu); the packages of python3 must hold numpy, gguf and pytest
#
# Builds luced with LUCE_BACKEND_DL, measures the noise, runs the daemon's tests with --gpu, and compares decoding and
# streaming with the bare loop on a model of 8 GB.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
[ $# -ge 2 ] || { sed -n '2,10s/^# \?//p' "$0"; exit 64; }
llama=$(realpath "$1") backend=$(realpath "$2") out=$(realpath -m "${3:-build/gpu}")
build=build/gpu-dl
mkdir -p "$out" build/gpu-import/luce
ln -sfn "$PWD/protocol" build/gpu-import/luce/protocol
ln -sfn "$PWD/supervisor" build/gpu-import/luce/supervisor

cmake -G Ninja -S . -B $build -DCMAKE_BUILD_TYPE=Release -DLUCE_BACKEND_DL=ON -DLLAMA_CPP_DIR="$llama" \
    -DLUCE_BUILD_BENCH=ON -DGGML_NATIVE=OFF -DGGML_CPU_ALL_VARIANTS=OFF \
    -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON >"$out/build.txt" 2>&1 &&
    ninja -C $build luced bare_decode luce_text ggml-cpu >>"$out/build.txt" 2>&1 ||
    { tail -30 "$out/build.txt"; exit 1; }

LUCE_DAEMON_BINARY=$PWD/$(find $build -name luced -type f)
LUCE_TEXT_LIBRARY=$PWD/$(find $build -name 'libluce_text.so' | head -1)
bare=$(find $build -name bare_decode -type f)
export LUCE_DAEMON_BINARY LUCE_TEXT_LIBRARY GGML_BACKEND_PATH=$backend PYTHONUNBUFFERED=1
export PYTHONPATH=$PWD/build/gpu-import:$PWD${PYTHONPATH:+:$PYTHONPATH}

{ nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; git rev-parse HEAD; "$LUCE_DAEMON_BINARY" --version; } \
    2>/dev/null | tee "$out/machine.txt"
python3 scripts/make_test_models.py build/test-models
cp scripts/make_test_models.py build/test-models/made-by.py
python3 scripts/bench/noise.py --luced "$LUCE_DAEMON_BINARY" build/test-models/*.gguf models/luce-tiny-Q8_0.gguf |
    tee "$out/noise.md"
python3 -m pytest -q -p no:cacheprovider --gpu tests/daemon >"$out/tests.txt" 2>&1
tail -15 "$out/tests.txt"
python3 scripts/make_test_models.py build/bench-models --shape bench-8b
for program in decode streaming; do
    for type in f16 q8_0; do
        echo "$program, $type KV" | tee -a "$out/$program.md"
        python3 scripts/bench/$program.py --luced "$LUCE_DAEMON_BINARY" --bare "$bare" --threads 8 --gpu-layers 99 \
            --model build/bench-models/bench-8b.gguf --cache-type $type | tee -a "$out/$program.md"
    done
done
