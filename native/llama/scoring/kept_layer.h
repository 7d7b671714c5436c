// KeptLayer: what calibrating a model's layers has found, kept in a small file so that the next start need not do it
// again. Knows files and bytes; neither models nor what a layer is for.
//
// Little-endian, 64 bytes (kept_layer.cpp): magic, format version, the name that it was kept under, the layer, how well
// it did, CRC-32C of all that. Whatever else is there is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace luce::llama {

struct KeptLayer {
    std::optional<std::int32_t> layer;  // none: no layer was better than guessing
    float mean_reciprocal_rank = 0;     // of that layer
};

// Where programs of this user keep what they can find out again: below $XDG_CACHE_HOME, else below $HOME/.cache. None
// where neither is an absolute path.
std::optional<std::string> calibration_folder(const char* xdg_cache_home, const char* home);

// `name`: 32 hexadecimal digits that stand for all that the finding depends on. None: nothing was kept yet. Errors:
// bad_snapshot (the file is not what was written), io_error.
Result<std::optional<KeptLayer>> read_kept_layer(const std::string& folder, const std::string& name);

// Whole or not at all; makes the folder. Errors: io_error.
Result<void> keep_layer(const std::string& folder, const std::string& name, const KeptLayer& kept);

}  // namespace luce::llama
