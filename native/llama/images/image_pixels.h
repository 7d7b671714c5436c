// An image's file becomes pixels. The file may be anybody's: its format, its sizes and what it unpacks to are checked
// before memory is taken for them. Knows no model.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/image.h"

namespace luce::llama {

inline constexpr std::int64_t kMaxImagePixels = std::int64_t{40} << 20;
inline constexpr std::int32_t kMaxImageSide = 1 << 15;

struct ImagePixels {
    std::int32_t width = 0;
    std::int32_t height = 0;
    std::vector<std::uint8_t> rgb;  // 3 a pixel, row by row
};

// PNG, JPEG, GIF (its first picture) and BMP. Errors: bad_image, out_of_memory.
Result<ImagePixels> read_pixels(std::string_view file);

}  // namespace luce::llama
