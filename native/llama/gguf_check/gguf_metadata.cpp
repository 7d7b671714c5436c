// GgufMetadata over ggml's own GGUF reader, which bounds every count by the file's size and refuses what does not
// parse. Its accessors assert on types, so each access here looks at the type first. Must not know what keys mean.
#include "llama/gguf_check/gguf_metadata.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "gguf.h"
#include "llama/gguf_check/error_line.h"

namespace luce::llama {
namespace {

Result<void> check_is_file(const std::string& path) {
    struct stat status{};
    if (stat(path.c_str(), &status) != 0) {
        return start_failed("cannot open model " + path + ": " + std::strerror(errno));
    }
    if (S_ISDIR(status.st_mode)) {
        return start_failed("model " + path + " is a directory, not a GGUF file");
    }
    if (!S_ISREG(status.st_mode)) {
        return start_failed("model " + path + " is not a regular file");
    }
    if (status.st_size == 0) {
        return start_failed("model " + path + " is empty");
    }
    return {};
}

}  // namespace

void GgufMetadata::Free::operator()(gguf_context* gguf) const { gguf_free(gguf); }

Result<GgufMetadata> GgufMetadata::open(const std::string& path) {
    if (Result<void> checked = check_is_file(path); !checked) {
        return checked.error();
    }
    const FirstErrorLine error(false);
    errno = 0;
    std::unique_ptr<gguf_context, Free> gguf(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
    if (!gguf) {
        const std::string system = errno == EACCES ? std::strerror(errno) : "";
        return start_failed("cannot read model " + path + ": " + (system.empty() ? error.text() : system));
    }
    return GgufMetadata(std::move(gguf));
}

std::string GgufMetadata::full(std::string_view key) const {
    return key.starts_with('.') ? architecture_ + std::string(key) : std::string(key);
}

int64_t GgufMetadata::find(std::string_view key) const { return gguf_find_key(gguf_.get(), full(key).c_str()); }

bool GgufMetadata::has(std::string_view key) const { return find(key) >= 0; }

bool GgufMetadata::is_array(std::string_view key) const {
    const int64_t id = find(key);
    return id >= 0 && gguf_get_kv_type(gguf_.get(), id) == GGUF_TYPE_ARRAY;
}

size_t GgufMetadata::array_length(std::string_view key) const {
    return is_array(key) ? gguf_get_arr_n(gguf_.get(), find(key)) : 0;
}

bool GgufMetadata::is_type(int64_t id, const std::string& name, int type) {
    const gguf_type found = gguf_get_kv_type(gguf_.get(), id);
    if (found != type) {
        refuse(name + " has type " + gguf_type_name(found) + ", must be " +
               gguf_type_name(static_cast<gguf_type>(type)));
    }
    return found == type;
}

uint32_t GgufMetadata::count(std::string_view key, Range range, uint32_t fallback) {
    const int64_t id = find(key);
    if (id < 0 || !is_type(id, full(key), GGUF_TYPE_UINT32)) {
        return fallback;
    }
    const uint32_t value = gguf_get_val_u32(gguf_.get(), id);
    if (value < range.min || value > range.max) {
        refuse(full(key) + " is " + std::to_string(value) + ", must be " + std::to_string(range.min) + " to " +
               std::to_string(range.max));
        return fallback;
    }
    return value;
}

std::string GgufMetadata::text(std::string_view key, std::string_view fallback) {
    const int64_t id = find(key);
    if (id < 0 || !is_type(id, full(key), GGUF_TYPE_STRING)) {
        return std::string(fallback);
    }
    return gguf_get_val_str(gguf_.get(), id);
}

std::vector<std::string_view> GgufMetadata::strings(std::string_view key) {
    std::vector<std::string_view> result;
    const int64_t id = find(key);
    if (!is_array(key) || gguf_get_arr_type(gguf_.get(), id) != GGUF_TYPE_STRING) {
        refuse(full(key) + " must be an array of strings");
        return result;
    }
    result.resize(gguf_get_arr_n(gguf_.get(), id));
    for (size_t i = 0; i < result.size(); ++i) {
        result[i] = gguf_get_arr_str(gguf_.get(), id, i);
    }
    return result;
}

std::vector<uint32_t> GgufMetadata::numbers(std::string_view key) const {
    const gguf_type type = is_array(key) ? gguf_get_arr_type(gguf_.get(), find(key)) : GGUF_TYPE_COUNT;
    if (type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) return {};
    const auto* data = static_cast<const uint32_t*>(gguf_get_arr_data(gguf_.get(), find(key)));
    return {data, data + array_length(key)};
}

void GgufMetadata::require(std::string_view key) {
    if (!has(key)) {
        refuse("model has no " + full(key));
    }
}

void GgufMetadata::require_array_of(std::string_view key, std::span<const int> types) {
    const int64_t id = find(key);
    if (id < 0) {
        return;
    }
    const gguf_type found = is_array(key) ? gguf_get_arr_type(gguf_.get(), id) : GGUF_TYPE_COUNT;
    if (std::find(types.begin(), types.end(), found) == types.end()) {
        refuse(full(key) + " must be an array of " + gguf_type_name(static_cast<gguf_type>(types.front())));
    }
}

void GgufMetadata::refuse(std::string text) {
    if (!refusal_) {
        refusal_ = std::move(text);
    }
}

bool GgufMetadata::has_tensor(const std::string& name) const {
    return gguf_find_tensor(gguf_.get(), name.c_str()) >= 0;
}

}  // namespace luce::llama
