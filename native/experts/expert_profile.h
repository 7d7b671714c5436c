// ExpertProfile: how often each expert of a model was used, by layer, and its file.
//
// The file, little endian: "LUCEEXPT", u32 version, u32 layers, 32 characters of the model's identity, then for each
// layer i32 its number, u32 experts, f64 decode[experts], f64 prefill[experts]; last u32 CRC-32C of all before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace luce::experts {

struct LayerUse {
    std::int32_t layer = 0;
    std::vector<double> decode;   // [expert] times that a token being answered used it; older ones count less
    std::vector<double> prefill;  // the same for tokens of prompts
};

struct ExpertProfile {
    std::string identity;  // 32 characters
    std::vector<LayerUse> layers;
};

// Where a model's counts are kept: in the file that is named, else in one of its own in the folder, if there is one.
std::optional<std::string> profile_file(const std::optional<std::string>& named,
                                        const std::optional<std::string>& folder, const std::string& identity);

// Errors: no_such_file; bad_args for another model's, and for a file that is no such thing or damaged.
Result<ExpertProfile> read_profile(const std::string& path, const std::string& identity);

// Whole or not at all. Errors: io_error.
Result<void> write_profile(const std::string& path, const ExpertProfile& profile);

}  // namespace luce::experts
