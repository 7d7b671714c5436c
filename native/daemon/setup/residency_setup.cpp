#include "daemon/setup/residency_setup.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/log.h"
#include "daemon/setup/host_memory.h"

namespace luce::daemon {
namespace {

// Bytes of the host's memory for texts: what the pool does not hold of the longest one lies there.
Result<std::size_t> host_budget(const Options& options, std::int32_t n_ctx, std::size_t row_bytes) {
    const std::size_t n_whole = row_bytes * static_cast<std::size_t>(n_ctx);
    const std::size_t given = options.host_cache_bytes.value_or(default_host_cache_bytes());
    if (given >= n_whole) return given;
    if (options.host_cache_bytes || n_whole > available_bytes() / 4 * 3) {
        return Error{ErrorCode::bad_args, "--kv-offload: a text of --ctx " + std::to_string(n_ctx) + " tokens takes " +
                                              std::to_string(n_whole) +
                                              " bytes of the host's memory; give --host-cache as much, or a smaller "
                                              "--ctx"};
    }
    return n_whole + n_whole / 4;
}

// Whether every lane's window and a call fit the cells that libllama gives windows beside a pool of this size.
Result<void> check_windows(const Options& options, const memory::DeviceTraits& traits) {
    const std::int64_t n_least = n_least_pool(options, traits.n_window);
    if (*options.n_kvflash >= n_least) return {};
    return Error{ErrorCode::bad_args, "--kv-offload " + std::to_string(*options.n_kvflash) +
                                          " is too small for this model: " + std::to_string(options.n_lanes) +
                                          " lanes with a sliding window of " + std::to_string(traits.n_window) +
                                          " tokens and slices of --ubatch " + std::to_string(options.ubatch()) +
                                          " need at least " + std::to_string(n_least) +
                                          "; fewer --lanes or a smaller --ubatch need less"};
}

}  // namespace

Result<std::int32_t> size_pool(const Options& options, std::int32_t n_ctx, std::int32_t n_least,
                               std::vector<memory::PoolDevice> devices, std::uint64_t weights_a_token) {
    memory::PoolQuestion question;
    question.n_least = n_least;
    question.n_ctx = n_ctx;
    question.n_lanes = options.n_lanes;
    question.weights_a_token = weights_a_token;
    for (const memory::PoolDevice& device : devices) question.rows_a_token += device.a_token;
    const Result<std::size_t> for_texts = host_budget(options, n_ctx, question.rows_a_token);
    if (!for_texts) return for_texts.error();
    const HostMemory host = host_memory();
    for (memory::PoolDevice& device : devices) {
        if (device.is_host && host.limit) {
            device.total = std::min(device.total, host.limit->limit);
            device.limited_by = host.limit->file;
        }
        // What is mapped is in memory as long as nothing else needs it; a pool must not push it out.
        if (device.is_host) device.free = host.available;
        if (device.is_host) device.free -= std::min(device.free, device.mapped);
        device.reserve = memory::pool_reserve(device.total);
        if (device.is_host || device.shares_host) device.reserve += for_texts.value();
    }
    question.devices = std::move(devices);
    const Result<memory::PoolChoice> choice = memory::choose_pool(question);
    if (!choice) return choice.error();
    for (const std::string& line : memory::tell_pool(question, choice.value())) log_info(line);
    return choice.value().n;
}

std::optional<std::int32_t> least_pool(const Options& options, const memory::DeviceTraits& traits) {
    if (!options.n_kvflash) return std::nullopt;
    return static_cast<std::int32_t>(n_least_pool(options, traits.n_window));
}

Result<void> bound_residency(const Options& options, std::int32_t n_ctx, const memory::DeviceTraits& traits,
                             memory::MemoryConfig& config) {
    if (!options.n_kvflash) return {};
    if (traits.refusal) return Error{ErrorCode::start_failed, "--kv-offload: " + *traits.refusal};
    if (traits.row_bytes == 0) {
        return Error{ErrorCode::start_failed,
                     "--kv-offload: this model (" + traits.kind + ") has no attention cache; its memory does not grow"};
    }
    if (Result<void> checked = check_windows(options, traits); !checked) return checked;
    if (Result<void> checked = check_pins_within(options, n_ctx); !checked) return checked;
    memory::ResidencyConfig residency;
    residency.pins = options.kvflash_pins;
    residency.rules.tau = options.kvflash_tau;
    residency.n_least = memory::least_cells(residency.rules, options.ubatch());
    config.residency = residency;
    if (std::int64_t{*options.n_kvflash} >= std::int64_t{n_ctx} * options.n_lanes) {
        log_info("--kv-offload " + std::to_string(*options.n_kvflash) + ": " + std::to_string(options.n_lanes) +
                 " lanes' texts of --ctx " + std::to_string(n_ctx) + " tokens fit, and nothing has to leave the pool");
    }
    const Result<std::size_t> budget = host_budget(options, n_ctx, traits.row_bytes);
    if (!budget) return budget.error();
    if (budget.value() > config.host_budget) {
        log_info("--host-cache is " + std::to_string(budget.value()) + " bytes, so that a text of --ctx " +
                 std::to_string(n_ctx) + " tokens has room");
    }
    config.host_budget = std::max(config.host_budget, budget.value());
    return {};
}

}  // namespace luce::daemon
