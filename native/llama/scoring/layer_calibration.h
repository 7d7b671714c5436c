// LayerCalibration: by which attention layer's queries a model finds what its text holds. Measured on the model itself
// with texts of random tokens, so it needs no language: a passage is begun once more at the end, and a layer that
// retrieves gives the page with the rest of it a high score. One text draws from the whole vocabulary, where a single
// token tells the page; one from a few tokens that stand on every page, where only their order does.
//
// All is computed on an empty lane, which is empty again afterwards. The same model, KV types and pool give the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/model/model.h"

namespace luce::llama {

// To be raised when the texts, the trials or the rule that chooses change.
inline constexpr std::int32_t kCalibrationVersion = 1;

struct LayerRank {
    std::int32_t layer = 0;
    double mean_reciprocal_rank = 0;  // of the right page, over all trials; 1: always first
};

struct LayerCalibration {
    std::optional<LayerRank> best;  // none: no layer is better than guessing
    std::vector<LayerRank> ranks;   // of all that were tried, ascending by layer
    double seconds = 0;
};

struct CalibrationLimits {
    double most_s = 20;                                       // that it may take
    std::function<bool()> is_stopped = [] { return false; };  // asked before each computation
    std::function<void(std::size_t)> on_start = [](auto) {};  // told how many tokens are to be computed
};

// Of these layers those that are tried: all if they are few, else as many of the later two thirds, the last one among
// them.
std::vector<std::int32_t> layers_to_try(std::span<const std::int32_t> layers);

// Which is the best of them: the later one of equals; none where chance could have brought it. `n_others`: pages that
// the right one was ranked among.
std::optional<LayerRank> best_of(std::span<const LayerRank> ranks, std::size_t n_others, std::size_t n_trials);

// Pages of a text, in a pool with so many free cells; 0: too few to tell anything.
std::size_t n_calibration_pages(std::int32_t n_free_cells);

// REQUIRES: nothing is computed or kept yet. Errors: unsupported (this model's pages cannot be scored; no room), busy
// (it was stopped, or would take too long), or the computation's.
Result<LayerCalibration> calibrate_layers(const Model& model, LlamaKvDevice& device, std::int32_t n_lanes,
                                          const Clock& clock, const CalibrationLimits& limits);

}  // namespace luce::llama
