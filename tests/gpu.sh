#!/usr/bin/env bash
# gpu.sh [BUILD_FOLDER]: on a machine with a GPU, builds shoal with CUDA and runs everything that needs one;
#   prints one table: tests, sanitizers, goldens and law on the GPU, CPU = GPU, speed.
# gpu.sh --prebuilt FOLDER: the same with what gpu_bundle.sh packed, where nothing can be built.
# gpu.sh --emulated BUILD_FOLDER: tries the flow of this script on the tests' emulated GPU; proves nothing else.
# GPU_QUICK=1 leaves out what takes minutes: law, sanitizers but memcheck, the 8b model's speed.
# GPU_PARTS="ops models goldens law sanitizers speed" names the parts to run; GPU_WORK is the folder for files
#   (so that parts can run beside each other); GPU_ROW_S ends a row that takes longer (default 900 s).
# Exit status: 0 all passed; 1 something failed; 77 no GPU here.
# shellcheck disable=SC2317 # functions are called through row
set -u
cd "$(dirname "$0")/.." || exit 1
how=build build=build/gpu
case ${1:-} in
--prebuilt | --emulated)
    how=${1#--} build=${2:?a folder}
    ;;
-*)
    sed -n '2,9s/^# //p' "$0" >&2
    exit 2
    ;;
?*) build=$1 ;;
esac
quick=${GPU_QUICK:-0} failed=0
parts=${GPU_PARTS:-ops models goldens law sanitizers speed} row_s=${GPU_ROW_S:-900}
if [ "$how" != emulated ] && ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "gpu.sh: no GPU here (nvidia-smi lists none): nothing was run" >&2
    exit 77
fi
if [ "$how" = build ]; then
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHOAL_CUDA=ON \
        -DSHOAL_CUDA_ARCHITECTURES="${SHOAL_CUDA_ARCHITECTURES:-80;86;89;90}" || exit 1
    cmake --build "$build" || exit 1
fi
case $how in
build) bin=$build tests=$build/tests/cuda compare=$build/tests/e2e/compare_logits ;;
prebuilt)
    bin=$build/bin tests=$build/bin compare=$build/bin/compare_logits
    # shellcheck disable=SC1091 # of the bundle
    . "$build/env.sh" || exit 1
    ;;
emulated)
    bin=$build/tests/cuda tests=$build/tests/cuda compare=$build/tests/e2e/compare_logits quick=1
    ;;
esac
work=$(realpath -m "${GPU_WORK:-build/gpu-work}")
table=$work/table
mkdir -p "$work/bin"
: >"$table"
shoal=$(realpath "$bin/shoal")
[ "$how" = emulated ] && shoal=$(realpath "$bin/shoal_emulated")
# golden.py and law.py start a program: these two run shoal on the GPU. Goldens take the second,
# which computes as the CPU does, because their bounds are those of f32.
for flags in "" --exact-across-devices; do
    cat >"$work/bin/shoal-cuda$flags" <<END
#!/usr/bin/env bash
case \$1 in
generate | score) exec "$shoal" "\$@" --device cuda $flags ;;
*) exec "$shoal" "\$@" ;;
esac
END
    chmod +x "$work/bin/shoal-cuda$flags"
done

line()
{
    printf '%-52s %-7s %5s  %s\n' "$@" | tee -a "$table"
}

# limited COMMAND...: runs it in a process group of its own, which is killed after row_s seconds
# (status 124), because a kernel that never ends would hold up all later rows
limited()
{
    local pid watch status=0
    set -m
    "$@" &
    pid=$!
    # shellcheck disable=SC2016 # the inner shell expands; a plain subshell would keep this script's output open
    bash -c 'sleep "$1" && kill -KILL -- "-$2"' - "$row_s" "$pid" >/dev/null 2>&1 &
    watch=$!
    set +m
    wait "$pid" || status=$?
    kill -KILL -- -"$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    [ "$status" -ne 137 ] || status=124
    return "$status"
}

# row NAME COMMAND...: runs it, notes how it ended and its last line; its output stays beside the table
row()
{
    local name=$1 start=$SECONDS result=passed status=0
    local log=$work/${name//[ \/=,]/_}.log
    shift
    limited "$@" >"$log" 2>&1 || status=$?
    [ "$status" -ne 124 ] || echo "not over after $row_s s" >>"$log"
    case $status in
    0) ;;
    77) result=skipped ;;
    *) result=FAILED failed=1 ;;
    esac
    line "$name" "$result" "$((SECONDS - start)) s" "$(grep -v '^$' "$log" | tail -n 1 | cut -c1-100)"
}

# rows_of DEVICE RANKS MODEL FLAGS...: the file of a run
rows_of()
{
    local device=$1 ranks=$2 model=$3 launch=()
    shift 3
    [ "$ranks" -gt 1 ] && launch=(tests/mpirun.sh "$ranks")
    "${launch[@]}" "$shoal" generate --model "$work/$model.h5" --no-journal --quiet --device "$device" \
        --input "tests/golden/models/${model%@*}/prompts.jsonl" --output "$work/$device-$ranks.jsonl" \
        --max-tokens "$([ "$how" = emulated ] && echo 3 || echo 24)" "$@"
}

# same MODEL[@FORMAT] FLAGS...: rows of the GPU are those of the CPU
same()
{
    local model=$1
    shift
    rows_of cpu 1 "$model" "$@" && rows_of cuda 1 "$model" --exact-across-devices "$@" &&
        cmp "$work/cpu-1.jsonl" "$work/cuda-1.jsonl" && sha256sum <"$work/cuda-1.jsonl"
}

# shared MODEL RANKS FLAGS...: ranks that share this GPU write the rows of one
shared()
{
    local model=$1 ranks=$2
    shift 2
    rows_of cuda 1 "$model" && rows_of cuda "$ranks" "$model" "$@" &&
        cmp "$work/cuda-1.jsonl" "$work/cuda-$ranks.jsonl" && sha256sum <"$work/cuda-1.jsonl"
}

# replayed MODEL: rows of steps that are replayed as graphs are those of launches one by one
replayed()
{
    rows_of cuda 1 "$1" --no-device-graphs && mv "$work/cuda-1.jsonl" "$work/alone.jsonl" &&
        rows_of cuda 1 "$1" && cmp "$work/alone.jsonl" "$work/cuda-1.jsonl" && sha256sum <"$work/cuda-1.jsonl"
}

# linked MODEL RANKS FLAGS...: ranks with a GPU each, over NCCL, with sums as parts and steps in halves
linked()
{
    SHOAL_EMULATED=devices=$2 shared "$@" --device-comm nccl --device-overlap 2 --device-parts 1
}

sanitize()
{
    compute-sanitizer --tool "$1" --error-exitcode 1 "$shoal" generate --model "$work/qwen3-moe-mixed.h5" \
        --input tests/golden/models/qwen3-moe-mixed/prompts.jsonl --no-journal --quiet --device cuda \
        --output "$work/sanitized.jsonl" --max-tokens 3
}

# --- parts -------------------------------------------------------------------------------------------

part_ops()
{
    local kernels=$tests/kernels_gpu suite
    [ "$how" = emulated ] && kernels=$tests/kernels_emulated
    [ "$how" = emulated ] || row "the driver, NCCL, one launch" "$tests/open_device"
    for suite in tests/cuda/kernels/test_*.c; do
        suite=$(basename "$suite" .c)
        [ "$how" != emulated ] && [ "$suite" = test_launches ] && continue # it asks the emulated driver
        row "kernels against the reference: ${suite#test_}" "$kernels" "${suite#test_}"
    done
}

part_models()
{
    local models="smollm-tied qwen3-moe-mixed mixtral" formats="int8 int4 fp8 mxfp4" n_gpus=2 model format
    [ "$how" = emulated ] || n_gpus=$(nvidia-smi -L | grep -c GPU)
    [ "$how" = emulated ] && models=smollm-tied formats=int8
    for model in $models; do
        row "convert $model" "$shoal" convert "tests/golden/models/$model/hf" "$work/$model.h5"
        row "CPU = GPU $model" same "$model"
        row "CPU = GPU $model, 2 tokens a step" same "$model" --chunk 2
        for format in $formats; do
            row "quantize $model $format" "$shoal" quantize "$work/$model.h5" "$work/$model@$format.h5" \
                --format "$format"
            row "CPU = GPU $model $format" same "$model@$format"
        done
        row "graphs = launches one by one, $model" replayed "$model"
        row "2 ranks share the GPU, $model, tp 2" shared "$model" 2 --tp 2
        [ "$how" = emulated ] || row "4 ranks share the GPU, $model, dp 2 pp 2" shared "$model" 4 --dp 2 --pp 2
        if [ "$n_gpus" -gt 1 ]; then
            row "NCCL between 2 GPUs, $model, tp 2" linked "$model" 2 --tp 2
            row "NCCL between 2 GPUs, $model, pp 2" linked "$model" 2 --pp 2
        else
            line "NCCL between 2 GPUs, $model" skipped "0 s" "one GPU here"
        fi
    done
}

part_goldens()
{
    local model
    [ "$how" = emulated ] && return
    for model in llama-gqa mixtral qwen3-moe deepseek-v2 glm4-moe gpt-oss qwen2-moe; do
        row "golden $model" python3 tests/e2e/golden.py "$work/bin/shoal-cuda--exact-across-devices" \
            "$compare" "$work/golden" "$model"
    done
}

part_law()
{
    # weights stream on CPUs only
    [ "$quick" = 1 ] || row "law: runs over layouts, batches, chunks" python3 tests/e2e/law.py \
        "$work/bin/shoal-cuda" "$work/law" --models dense,mixtral --only weights=resident --jobs 2
}

part_sanitizers()
{
    local model=qwen3-moe-mixed tool
    if [ "$how" = emulated ] || ! command -v compute-sanitizer >/dev/null; then
        line compute-sanitizer skipped "0 s" "not here"
        return
    fi
    [ -e "$work/$model.h5" ] ||
        row "convert $model" "$shoal" convert "tests/golden/models/$model/hf" "$work/$model.h5"
    row "compute-sanitizer memcheck" sanitize memcheck
    for tool in racecheck initcheck synccheck; do
        [ "$quick" = 1 ] || row "compute-sanitizer $tool" sanitize "$tool"
    done
}

# --- speed -------------------------------------------------------------------------------------------

# bench MODEL WHAT ROWS SHAPES FLAGS...: a rate of shoal bench, and its share of the GPU's peak
bench()
{
    local model=$1 what=$2 rows=$3 shapes=$4 json=$work/bench.json
    shift 4
    # shellcheck disable=SC2086 # lists of flags and shapes
    "$shoal" bench --model "$work/$model.h5" --device cuda --quiet --json "$json" $once "$@" || return 1
    if [ "$how" != emulated ] && [ -x "$tests/peaks" ]; then
        # shellcheck disable=SC2086
        "$tests/peaks" "$rows" $shapes >"$work/peaks.json" || return 1
    else
        echo '{"copy_gbs":0,"chain_tflops":0}' >"$work/peaks.json"
    fi
    python3 tests/gpu_models.py --ratio "$what" "$json" "$work/peaks.json"
}

# prefill MODEL SHAPES FLAGS...: a prompt of `long` tokens in one step
prefill()
{
    local model=$1 shapes=$2
    shift 2
    bench "$model" prefill "$long" "$shapes" --prompt-lengths "$long" --output-lengths 1 --step-tokens "$long" \
        --max-model-len $((long + 64)) "$@"
}

# decode MODEL SHAPES SEQUENCES FLAGS...: answers to prompts of 16 tokens
decode()
{
    local model=$1 shapes=$2 n=$3
    shift 3
    bench "$model" decode 64 "$shapes" --prompt-lengths 16 --output-lengths $((n > 1 ? long / 64 : long / 32)) \
        --concurrency "$n" "$@"
}

# attention ROWS HEADS KV_HEADS HEAD_DIM: a prompt's attention, beside torch's where there is one
attention()
{
    local program=$tests/attention_speed
    [ "$how" = emulated ] && program=$tests/attention_speed_emulated
    "$program" "$@" "$(python3 tests/gpu_models.py --sdpa "$1" "$2" "$4" 2>/dev/null || echo 0)"
}

# made MODEL FORMAT...: a model of random weights, also in other formats
made()
{
    local model=$1 format
    shift
    row "random weights $model" python3 tests/gpu_models.py "$work" "$model"
    row "convert $model" "$shoal" convert "$work/$model" "$work/$model.h5"
    for format; do
        row "quantize $model $format" "$shoal" quantize "$work/$model.h5" "$work/$model@$format.h5" \
            --format "$format"
    done
}

part_speed()
{
    # outputs x inputs of a layer's linears: q, k and v; o; gate and up; down. The MoE's chosen
    # experts count as one dense FFN.
    local -A shapes=([tiny]="" [1b]="2560x2048 2048x2048 11264x2048 2048x5632"
        [8b]="6144x4096 4096x4096 28672x4096 4096x14336" [8b-8]="6144x4096 4096x4096 28672x4096 4096x14336"
        [moe]="2560x2048 2048x2048 16384x2048 2048x8192")
    local once="--repetitions 3 --warmup 1" models=${GPU_MODELS:-1b 8b moe} formats="int8 int4" long=4096
    local width model format file
    [ "$quick" = 1 ] && models=${GPU_MODELS:-1b moe}
    [ "$how" = emulated ] && models=tiny formats="" long=128 once="--repetitions 1 --warmup 0"
    for width in 64 128; do
        row "attention, prefill $long, 32 heads of $width" attention "$long" 32 8 "$width"
    done
    for model in $models; do
        if [ "$model" = moe ]; then
            made moe
            row "prefill $long, 64 experts of 1024, 8 chosen" prefill moe "${shapes[moe]}"
            continue
        fi
        # shellcheck disable=SC2086 # a list
        made "$model" $formats
        for format in bf16 $formats; do
            file=$model@$format
            [ "$format" = bf16 ] && file=$model
            row "decode, batch 1, $model $format" decode "$file" "${shapes[$model]}" 1
            row "decode, batch 64, $model $format" decode "$file" "${shapes[$model]}" $((long / 64))
            row "prefill $long, $model $format" prefill "$file" "${shapes[$model]}"
        done
        row "decode, batch 1, $model, --no-device-graphs" decode "$model" "${shapes[$model]}" 1 --no-device-graphs
        for format in --fast-reductions --exact-across-devices; do
            row "prefill $long, $model, $format" prefill "$model" "${shapes[$model]}" "$format"
        done
    done
}

{
    [ "$how" = emulated ] && echo "EMULATED: this tries the script; no GPU was touched"
    [ "$how" = emulated ] || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    "$shoal" --version
    ldd --version | head -n 1
} | tee -a "$table"
for part in $parts; do "part_$part"; done
printf '\nthe table stands in %s, each row'"'"'s output beside it\n' "$table"
exit $failed
