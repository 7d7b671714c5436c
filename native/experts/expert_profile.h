// ExpertProfile: how often each expert of a model was used, by layer, and its file.
//
// The file, little endian: "LUCEEXPT", u32 version, u32 layers, 32 characters of the model's identity, then for each
// layer i32 its number, u32 experts, f64 decode[experts], f64 prefill[experts]; last u32 CRC-32C of all before it.
#pragma once

#include <cstdint>
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

// Errors: no_such_file; bad_args for a file that is no such thing or damaged, and with an identity for another model's.
Result<ExpertProfile> read_profile(const std::string& path);
Result<ExpertProfile> read_profile(const std::string& path, const std::string& identity);

// Whole or not at all. Errors: io_error.
Result<void> write_profile(const std::string& path, const ExpertProfile& profile);

}  // namespace luce::experts
