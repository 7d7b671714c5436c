// GgufMetadata over ggml's own GGUF reader, which bounds every count by the file's size and refuses what does not
// parse. Its accessors assert on types, so each access here looks at the type first. Must not know what keys mean.
#include "llama/gguf_check/gguf_metadata.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "ggml.h"
#include "gguf.h"

namespace luce::llama {
namespace {

constexpr size_t kMaxQuoted = 80;
constexpr uint64_t kMappedAlignment = 32;  // ggml asserts it of memory-mapped weights

// While it lives, ggml's last error line is kept: the parser says only there what it did not like.
// ggml's log callback is process-wide: nothing else may load a model at the same time.
class LastErrorLine {
public:
    LastErrorLine() {
        ggml_log_get(&callback_, &user_data_);
        ggml_log_set(&LastErrorLine::keep, this);
    }
    ~LastErrorLine() { ggml_log_set(callback_, user_data_); }
    LastErrorLine(const LastErrorLine&) = delete;
    LastErrorLine& operator=(const LastErrorLine&) = delete;

    // "gguf_init_from_reader: key 'x' ..." without the function's name.
    std::string text() const {
        const size_t colon = line_.find(": ");
        return printable(colon == std::string::npos ? line_ : line_.substr(colon + 2));
    }

private:
    // The first line is the cause, what follows says which stage failed.
    static void keep(ggml_log_level level, const char* text, void* self) {
        auto& line = static_cast<LastErrorLine*>(self)->line_;
        if (level == GGML_LOG_LEVEL_ERROR && line.empty()) {
            line = text;
        }
    }

    ggml_log_callback callback_ = nullptr;
    void* user_data_ = nullptr;
    std::string line_;
};

Result<uint64_t> regular_file_size(const std::string& path) {
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
    return static_cast<uint64_t>(status.st_size);
}

std::vector<TensorInfo> read_tensor_infos(const gguf_context* gguf) {
    std::vector<TensorInfo> infos(static_cast<size_t>(gguf_get_n_tensors(gguf)));
    for (size_t i = 0; i < infos.size(); ++i) {
        const auto id = static_cast<int64_t>(i);
        infos[i].name = gguf_get_tensor_name(gguf, id);
        std::copy_n(gguf_get_tensor_ne(gguf, id), 4, infos[i].ne);
        infos[i].type = gguf_get_tensor_type(gguf, id);
        infos[i].n_bytes = gguf_get_tensor_size(gguf, id);
    }
    return infos;
}

// What an array of 32-bit integers or booleans holds; other element types give nothing.
std::optional<std::vector<int64_t>> integer_array(const gguf_context* gguf, int64_t id) {
    const gguf_type type = gguf_get_arr_type(gguf, id);
    if (type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32 && type != GGUF_TYPE_BOOL) {
        return std::nullopt;
    }
    const void* data = gguf_get_arr_data(gguf, id);
    std::vector<int64_t> values(gguf_get_arr_n(gguf, id));
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = type == GGUF_TYPE_BOOL    ? static_cast<const int8_t*>(data)[i] != 0
                    : type == GGUF_TYPE_INT32 ? static_cast<const int32_t*>(data)[i]
                                              : static_cast<int64_t>(static_cast<const uint32_t*>(data)[i]);
    }
    return values;
}

std::string out_of_range(const std::string& key, const std::string& value, const Range& range) {
    return key + " is " + value + ", must be " + std::to_string(range.min) + " to " + std::to_string(range.max);
}

bool within(int64_t value, const Range& range) {
    return value >= 0 && static_cast<uint64_t>(value) >= range.min && static_cast<uint64_t>(value) <= range.max;
}

}  // namespace

std::string printable(std::string_view raw) {
    std::string text(raw.substr(0, kMaxQuoted * 2));
    while (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    for (char& c : text) {
        c = c < ' ' || c > '~' ? '?' : c;
    }
    if (text.size() > kMaxQuoted * 2 - 1) {
        text += "...";
    }
    return text;
}

void GgufMetadata::Free::operator()(gguf_context* gguf) const { gguf_free(gguf); }

GgufMetadata::GgufMetadata(std::unique_ptr<gguf_context, Free> gguf)
    : gguf_(std::move(gguf)), tensors_(read_tensor_infos(gguf_.get())) {}

Result<GgufMetadata> GgufMetadata::open(const std::string& path) {
    const Result<uint64_t> size = regular_file_size(path);
    if (!size) {
        return size.error();
    }
    LastErrorLine last_error;
    errno = 0;
    std::unique_ptr<gguf_context, Free> gguf(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
    if (!gguf) {
        const std::string system = errno == EACCES ? std::strerror(errno) : "";
        return start_failed("cannot read model " + path + ": " + (system.empty() ? last_error.text() : system));
    }
    GgufMetadata metadata(std::move(gguf));
    if (auto error = metadata.check_data_size(path, size.value())) {
        return *std::move(error);
    }
    return metadata;
}

std::optional<Error> GgufMetadata::check_data_size(const std::string& path, uint64_t file_size) const {
    const uint64_t start = gguf_get_data_offset(gguf_.get());
    if (!tensors_.empty() && start % kMappedAlignment != 0) {
        return start_failed("model " + path + ": general.alignment is " +
                            std::to_string(gguf_get_alignment(gguf_.get())) + " and the tensors begin at " +
                            std::to_string(start) + ", which is no multiple of " + std::to_string(kMappedAlignment));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
        const uint64_t offset = gguf_get_tensor_offset(gguf_.get(), static_cast<int64_t>(i));
        // Differences, not sums: sums of a hostile file's numbers may wrap.
        if (start > file_size || offset > file_size - start || tensors_[i].n_bytes > file_size - start - offset) {
            return start_failed("model " + path + " is truncated: tensor " + printable(tensors_[i].name) +
                                " ends behind the file's end at " + std::to_string(file_size));
        }
    }
    return std::nullopt;
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
    if (!within(value, range)) {
        refuse(out_of_range(full(key), std::to_string(value), range));
        return fallback;
    }
    return value;
}

uint32_t GgufMetadata::short_count(std::string_view key, Range range, uint32_t fallback) {
    const int64_t id = find(key);
    if (id < 0 || !is_type(id, full(key), GGUF_TYPE_UINT16)) {
        return fallback;
    }
    const uint32_t value = gguf_get_val_u16(gguf_.get(), id);
    if (!within(value, range)) {
        refuse(out_of_range(full(key), std::to_string(value), range));
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

std::vector<uint32_t> GgufMetadata::per_layer(std::string_view key, Range range, size_t n_layers, uint32_t fallback) {
    if (!is_array(key)) {
        return std::vector<uint32_t>(n_layers, count(key, range, fallback));
    }
    const std::string name = full(key);
    const auto values = integer_array(gguf_.get(), find(key));
    std::vector<uint32_t> result(n_layers, fallback);
    if (!values) {
        refuse(name + " holds " + gguf_type_name(gguf_get_arr_type(gguf_.get(), find(key))) + ", must hold integers");
    } else if (values->size() != n_layers) {
        refuse(name + " has " + std::to_string(values->size()) + " values for " + std::to_string(n_layers) + " layers");
    } else {
        for (size_t i = 0; i < n_layers; ++i) {
            if (!within((*values)[i], range)) {
                refuse(out_of_range(name + "[" + std::to_string(i) + "]", std::to_string((*values)[i]), range));
                return std::vector<uint32_t>(n_layers, fallback);
            }
            result[i] = static_cast<uint32_t>((*values)[i]);
        }
    }
    return result;
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

void GgufMetadata::require_finite_numbers() {
    for (int64_t id = 0; id < gguf_get_n_kv(gguf_.get()); ++id) {
        const std::string name = gguf_get_key(gguf_.get(), id);
        const gguf_type type = gguf_get_kv_type(gguf_.get(), id);
        if (!name.starts_with(architecture_ + ".")) {
            continue;
        }
        if (type == GGUF_TYPE_FLOAT32 && !std::isfinite(gguf_get_val_f32(gguf_.get(), id))) {
            refuse(printable(name) + " is " + std::to_string(gguf_get_val_f32(gguf_.get(), id)) + ", must be finite");
        }
        if (type == GGUF_TYPE_ARRAY && gguf_get_arr_type(gguf_.get(), id) == GGUF_TYPE_FLOAT32) {
            const auto* values = static_cast<const float*>(gguf_get_arr_data(gguf_.get(), id));
            // Infinite limits are meant (a clamp that never clamps); not-a-number never is.
            if (std::any_of(values, values + gguf_get_arr_n(gguf_.get(), id), [](float v) { return std::isnan(v); })) {
                refuse(printable(name) + " holds a value that is not a number");
            }
        }
    }
}

void GgufMetadata::refuse(std::string text) {
    if (!refusal_) {
        refusal_ = std::move(text);
    }
}

const TensorInfo* GgufMetadata::tensor(std::string_view name) const {
    const auto found =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& info) { return info.name == name; });
    return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace luce::llama
