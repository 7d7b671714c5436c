// Options: luced's command line as data. Checks what needs no model; main acts on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "memory/residency/pinned_ranges.h"

namespace luce::daemon {

inline constexpr std::int32_t kMaxCells = 1 << 28;  // of a pool: more are taken for a slip

enum class KvflashPolicy { automatic, query, draft, lru };

// How much of a prompt is read where no request says.
enum class ReadingChoice { full, automatic, sparse };

enum class SplitModeChoice { none, layer, row, tensor };
enum class FlashAttentionChoice { automatic, on, off };
enum class RopeScalingChoice { none, linear, yarn };
enum class DraftMethod { automatic, none, dflash, mtp };

// Drafted tokens a lane and step where nobody says otherwise: what a block of 16 holds beside the lane's own token.
inline constexpr std::int32_t kDraftMost = 15;

// How a vector is made of a text's tokens; none: the daemon gives tokens, no vectors.
enum class EmbeddingPooling { none, automatic, mean, cls, last, rank };

inline constexpr std::int32_t kUbatch = 512;

struct Options {
    std::string model;
    std::optional<std::int32_t> n_ctx;
    std::optional<std::int32_t> n_pool;
    std::optional<std::int32_t> n_kvflash;  // tokens of a pool that texts need not fit; with `sizes_kvflash` the fewest
    bool sizes_kvflash = false;             // as many as memory and speed allow
    std::int32_t kvflash_tau = 64;
    KvflashPolicy kvflash_policy = KvflashPolicy::automatic;
    std::vector<PositionSpan> kvflash_pins;     // of every text
    std::optional<std::string> kvflash_scorer;  // a GGUF file: a small model that reads the texts beside the target
    std::optional<std::string> kvflash_scorer_cache_type;
    std::optional<std::int32_t> kvflash_layer;  // whose queries `query` goes by; unset: by architecture
    ReadingChoice prefill = ReadingChoice::full;
    std::optional<std::string> prefill_scorer;  // a GGUF file: a small model that says what of a prompt matters
    float prefill_share = 0.2F;
    std::int32_t n_prefill_from = 16384;
    bool repairs_prefill = true;
    std::int32_t n_lanes = 4;
    std::int32_t n_queue = 256;
    std::optional<std::int32_t> n_batch;   // unset: n_ubatch
    std::optional<std::int32_t> n_ubatch;  // unset: kUbatch, or more where a GPU has room (ModelOptions::may_widen)
    std::optional<std::int32_t> n_threads;
    std::optional<std::int32_t> n_gpu_layers;
    std::optional<std::string> devices;
    std::optional<std::string> rpc_workers;       // HOST:PORT by commas
    std::optional<std::string> rpc_worker;        // HOST:PORT to lend this machine's devices at, in place of serving
    std::optional<std::string> rpc_tensor_cache;  // a folder
    SplitModeChoice split_mode = SplitModeChoice::layer;
    std::optional<std::string> tensor_split;
    std::int32_t main_gpu = 0;
    bool cpu_moe = false;
    std::int32_t n_cpu_moe = 0;
    std::int32_t moe_cache_mib = 0;
    std::optional<std::size_t> expert_memory_bytes;
    std::size_t expert_lendable_bytes = 0;  // of that; by the plan of --fit alone
    std::optional<std::string> expert_profile;
    std::optional<std::string> expert_profiles;
    bool keeps_experts_in_place = false;
    std::optional<std::string> tensor_overrides;
    bool no_mmap = false;
    bool mlock = false;
    bool fits = true;  // where nobody says what lies where
    std::optional<std::uint64_t> gpu_memory_bytes;
    std::uint64_t reserve_gpu_bytes = std::uint64_t{512} << 20;
    bool wants_plan = false;
    std::vector<std::uint64_t> plan_gpus;  // free bytes of GPUs that are only thought of
    std::optional<std::uint64_t> plan_host_bytes;
    std::optional<std::string> cache_type_k;
    std::optional<std::string> cache_type_v;
    FlashAttentionChoice flash_attention = FlashAttentionChoice::automatic;
    std::optional<RopeScalingChoice> rope_scaling;
    std::optional<float> rope_scale;
    std::optional<float> rope_freq_base;
    std::optional<float> rope_freq_scale;
    std::optional<std::int32_t> yarn_orig_ctx;
    std::optional<float> yarn_ext_factor;
    std::optional<float> yarn_attn_factor;
    std::optional<float> yarn_beta_slow;
    std::optional<float> yarn_beta_fast;
    std::vector<std::string> kv_overrides;  // KEY=TYPE:VALUE
    EmbeddingPooling embedding = EmbeddingPooling::none;
    std::optional<int> stream_fd;
    bool multiplexed = false;
    std::optional<std::uint64_t> seed;
    LogLevel log_level = LogLevel::info;
    std::int32_t load_timeout_s = 120;
    std::optional<std::string> trace;  // a file for the spans of steps
    std::int32_t n_slots = 256;
    std::optional<std::uint64_t> host_cache_bytes;  // unset: a share of the free memory
    std::optional<std::string> host_cache_type;     // unset: as in the cache
    std::optional<std::string> disk_cache;
    std::uint64_t disk_budget_bytes = std::uint64_t{32} << 30;
    bool reuses_prefixes = true;
    std::optional<std::string> draft;  // a GGUF file: a draft model, or with `mtp` the assistant that has the heads
    bool mtp = false;
    DraftMethod draft_method = DraftMethod::automatic;
    std::optional<std::string> mmproj;         // a GGUF file: what makes rows of images
    std::optional<std::int32_t> n_draft_most;  // 0: never speculate; unset: as each source does best
    bool draft_gate = true;
    bool no_warmup = false;
    bool draft_ngram = true;
    bool draft_answers = true;
    std::optional<std::int32_t> draft_tree;          // nodes a step; 0: no tree
    std::optional<std::uint64_t> spec_memory_bytes;  // most that the states of a rollback may take; unset: a share
    std::optional<std::string> draft_cache_type_k;
    std::optional<std::string> draft_cache_type_v;
    std::optional<std::int32_t> n_draft_gpu_layers;
    std::optional<std::int32_t> n_draft_threads;
    bool dies_with_parent = false;
    bool wants_version = false;
    bool wants_help = false;
    std::vector<std::string> notes;  // of options that do nothing any more: for the log

    // Most tokens of one pass over the weights, and of a call, at the least.
    std::int32_t ubatch() const { return n_ubatch.value_or(kUbatch); }
    std::int32_t call() const { return std::min(ubatch(), n_batch.value_or(ubatch())); }
};

// `arguments`: without the program's name. Errors: bad_args, naming the option and what it takes.
Result<Options> parse_options(std::span<char* const> arguments);

// Tokens that --kv-offload has to have at the least, for a model whose sliding-window layers keep n_window positions of
// each lane. libllama gives windows no more cells than the pool has.
std::int64_t n_least_pool(const Options& options, std::int32_t n_window);

// Whether texts of n_ctx tokens reach as far as --kv-offload-pin does. Errors: bad_args.
Result<void> check_pins_within(const Options& options, std::int32_t n_ctx);

// The text of --help.
std::string help_text();

}  // namespace luce::daemon
