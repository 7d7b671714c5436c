#include "llama/images/image_pixels.h"

#include <array>
#include <new>
#include <string>

#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_ONLY_GIF
#define STBI_ONLY_BMP
#define STBI_NO_STDIO
#define STBI_MAX_DIMENSIONS (1 << 15)
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb/stb_image.h>

namespace luce::llama {
namespace {

constexpr std::size_t kPngHeaderBytes = 8 + 8 + 13 + 4;
constexpr std::size_t kChunkFrameBytes = 12;  // length, type and checksum
constexpr int kAdam7Passes = 7;

Error bad_image(std::string text) { return {ErrorCode::bad_image, std::move(text)}; }

bool is_png(std::string_view file) { return file.starts_with("\x89PNG\r\n\x1a\n"); }

bool is_known(std::string_view file) {
    return is_png(file) || file.starts_with("\xff\xd8\xff") || file.starts_with("GIF87a") ||
           file.starts_with("GIF89a") || file.starts_with("BM");
}

std::uint32_t big_endian(std::string_view bytes) {
    std::uint32_t value = 0;
    for (const char byte : bytes.substr(0, 4)) value = value << 8 | static_cast<std::uint8_t>(byte);
    return value;
}

// Of all rows of a PNG as they are packed, at most: interlaced ones are packed in seven pictures, whose rows have a
// byte in front and may be rounded up.
std::size_t unpacked_png_bytes(std::string_view file, std::size_t width, std::size_t height) {
    constexpr std::array<std::size_t, 7> kSamples = {1, 0, 3, 1, 2, 0, 4};  // by colour type
    const auto depth = static_cast<std::uint8_t>(file[24]);
    const auto type = static_cast<std::uint8_t>(file[25]);
    const std::size_t n_samples = type < kSamples.size() ? kSamples[type] : 4;
    const std::size_t row_bytes = (width * n_samples * depth + 7) / 8;
    return height * (row_bytes + 1) + kAdam7Passes * (height + row_bytes + 2) + height * kAdam7Passes;
}

// stb_image takes as much memory as the packed rows unpack to, whatever the sizes in the header say: a file of some
// kilobytes may be of gigabytes. So they are unpacked into a buffer of the right size first, which has to hold them.
Result<void> check_png(std::string_view file, std::size_t width, std::size_t height) {
    if (file.size() < kPngHeaderBytes) return bad_image("the PNG file is cut off");
    std::string packed;
    std::size_t at = 8;
    while (file.size() - at >= kChunkFrameBytes) {
        const std::size_t n_bytes = big_endian(file.substr(at));
        if (n_bytes > file.size() - at - kChunkFrameBytes) return bad_image("the PNG file is cut off");
        if (file.substr(at + 4, 4) == "IDAT") packed += file.substr(at + 8, n_bytes);
        at += n_bytes + kChunkFrameBytes;
        if (file.substr(at - n_bytes - 8, 4) == "IEND") break;
    }
    std::vector<char> rows(unpacked_png_bytes(file, width, height));
    const int n_rows = stbi_zlib_decode_buffer(rows.data(), static_cast<int>(rows.size()), packed.data(),
                                               static_cast<int>(packed.size()));
    if (n_rows < 0) return bad_image("the PNG file is damaged, or unpacks to more than its size says");
    return {};
}

Result<ImagePixels> decode(std::string_view file) {
    const auto* bytes = reinterpret_cast<const stbi_uc*>(file.data());
    const auto n_bytes = static_cast<int>(file.size());
    int width = 0, height = 0, n_channels = 0;
    if (stbi_info_from_memory(bytes, n_bytes, &width, &height, &n_channels) == 0) {
        return bad_image("the image cannot be read: " + std::string(stbi_failure_reason()));
    }
    if (width < 1 || height < 1) return bad_image("the image has no pixels");
    if (width > kMaxImageSide || height > kMaxImageSide || std::int64_t{width} * height > kMaxImagePixels) {
        return bad_image("the image has " + std::to_string(width) + "x" + std::to_string(height) +
                         " pixels, more than are read (" + std::to_string(kMaxImagePixels >> 20) + " Mi, and " +
                         std::to_string(kMaxImageSide) + " a side)");
    }
    if (is_png(file)) {
        const auto checked = check_png(file, static_cast<std::size_t>(width), static_cast<std::size_t>(height));
        if (!checked) return checked.error();
    }
    stbi_uc* rgb = stbi_load_from_memory(bytes, n_bytes, &width, &height, &n_channels, 3);
    if (rgb == nullptr) return bad_image("the image cannot be read: " + std::string(stbi_failure_reason()));
    ImagePixels pixels{width, height, {}};
    try {
        pixels.rgb.assign(rgb,
                          rgb + std::size_t{3} * static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
    } catch (...) {
        stbi_image_free(rgb);
        throw;
    }
    stbi_image_free(rgb);
    return pixels;
}

}  // namespace

Result<ImagePixels> read_pixels(std::string_view file) try {
    if (file.size() > engine::kMaxImageBytes) {
        return bad_image("the image has more than " + std::to_string(engine::kMaxImageBytes >> 20) + " MiB");
    }
    if (!is_known(file)) return bad_image("the image is no PNG, JPEG, GIF or BMP file");
    return decode(file);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "no memory for the image's pixels"};
}

}  // namespace luce::llama
