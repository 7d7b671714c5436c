#include "llama/kv_cache/row_packer.h"

#include <array>
#include <cstring>
#include <string_view>

#include "llama-kv-cache.h"
#include "llama/decoding/private_member.h"
#include "llama/kv_cache/three_bits.h"

namespace luce::llama {

struct PackedLayers {
    friend constexpr auto member_of(PackedLayers);
};
struct KeyRotation {
    friend constexpr auto member_of(KeyRotation);
};
struct ValueRotation {
    friend constexpr auto member_of(ValueRotation);
};

template struct PrivateMember<PackedLayers, &llama_kv_cache::layers>;
template struct PrivateMember<KeyRotation, &llama_kv_cache::n_rot_k>;
template struct PrivateMember<ValueRotation, &llama_kv_cache::n_rot_v>;

namespace {

constexpr std::string_view kThreeBits = "tq3";
constexpr std::array kTypes = {GGML_TYPE_Q8_0, GGML_TYPE_Q5_1, GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0};

}  // namespace

Result<void> check_packed_type(const std::string& name) {
    std::string known(kThreeBits);
    if (name == kThreeBits) return {};
    for (const ggml_type type : kTypes) {
        if (name == ggml_type_name(type)) return {};
        known.append(", ").append(ggml_type_name(type));
    }
    return Error{ErrorCode::bad_args, "--host-cache-type '" + name + "' is unknown; choose one of " + known};
}

RowPacker::RowPacker(const llama_kv_cache& cache, const std::string& type) : has_three_bits_(type == kThreeBits) {
    for (const ggml_type known : kTypes) {
        if (type == ggml_type_name(known)) type_ = known;
    }
    for (const auto& layer : cache.*member_of(PackedLayers{})) {
        add(layer.k, cache.*member_of(KeyRotation{}) > 0);
        if (layer.v != nullptr) add(layer.v, cache.*member_of(ValueRotation{}) > 0);
    }
}

// None where its blocks do not divide a row.
std::size_t RowPacker::packed_bytes(std::size_t n_numbers) const {
    if (has_three_bits_) {
        return n_numbers % kThreeBitBlock == 0 ? n_numbers / kThreeBitBlock * kThreeBitBlock_bytes : SIZE_MAX;
    }
    const auto block = static_cast<std::size_t>(ggml_blck_size(type_));
    return n_numbers % block == 0 ? ggml_row_size(type_, static_cast<std::int64_t>(n_numbers)) : SIZE_MAX;
}

void RowPacker::add(const ggml_tensor* tensor, bool is_rotated) {
    Column column{.type = tensor->type,
                  .n_numbers = static_cast<std::size_t>(tensor->ne[0]),
                  .is_rotated = is_rotated,
                  .raw_bytes = tensor->nb[1],
                  .raw_offset = raw_bytes_,
                  .packed_offset = packed_bytes_};
    const std::size_t fewer_bytes = packed_bytes(column.n_numbers);
    column.is_packed = fewer_bytes < column.raw_bytes;
    column.packed_bytes = column.is_packed ? fewer_bytes : column.raw_bytes;
    raw_bytes_ += column.raw_bytes;
    packed_bytes_ += column.packed_bytes;
    columns_.push_back(column);
}

void RowPacker::pack(std::size_t tensor, const std::uint8_t* raw, std::size_t n_rows, std::uint8_t* packed) const {
    const Column& column = columns_[tensor];
    raw += n_rows * column.raw_offset;
    packed += n_rows * column.packed_offset;
    if (!column.is_packed) {
        std::memcpy(packed, raw, n_rows * column.raw_bytes);
        return;
    }
    const auto n = static_cast<std::int64_t>(column.n_numbers);
    const ggml_to_float_t to_float = ggml_get_type_traits(column.type)->to_float;
    std::vector<float> numbers(column.n_numbers);
    for (std::size_t row = 0; row < n_rows; ++row, raw += column.raw_bytes, packed += column.packed_bytes) {
        if (column.type == GGML_TYPE_F32) {
            std::memcpy(numbers.data(), raw, column.raw_bytes);
        } else {
            to_float(raw, numbers.data(), n);
        }
        if (has_three_bits_) {
            to_three_bits(numbers, column.is_rotated, packed);
        } else {
            ggml_get_type_traits(type_)->from_float_ref(numbers.data(), packed, n);
        }
    }
}

void RowPacker::unpack(std::size_t tensor, const std::uint8_t* packed, std::size_t n_rows, std::uint8_t* raw) const {
    const Column& column = columns_[tensor];
    raw += n_rows * column.raw_offset;
    packed += n_rows * column.packed_offset;
    if (!column.is_packed) {
        std::memcpy(raw, packed, n_rows * column.raw_bytes);
        return;
    }
    const auto n = static_cast<std::int64_t>(column.n_numbers);
    const ggml_from_float_t from_float = ggml_get_type_traits(column.type)->from_float_ref;
    std::vector<float> numbers(column.n_numbers);
    for (std::size_t row = 0; row < n_rows; ++row, raw += column.raw_bytes, packed += column.packed_bytes) {
        if (has_three_bits_) {
            from_three_bits(packed, column.is_rotated, numbers);
        } else {
            ggml_get_type_traits(type_)->to_float(packed, numbers.data(), n);
        }
        if (column.type == GGML_TYPE_F32) {
            std::memcpy(raw, numbers.data(), column.raw_bytes);
        } else {
            from_float(numbers.data(), raw, n);
        }
    }
}

void RowPacker::append_first(std::span<const std::uint8_t> packed, std::size_t n_rows, std::size_t n,
                             memory::Bytes& out) const {
    for (const Column& column : columns_) {
        const auto kept = packed.subspan(n_rows * column.packed_offset, n * column.packed_bytes);
        out.insert(out.end(), kept.begin(), kept.end());
    }
}

}  // namespace luce::llama
