#include "llama/experts/elastic_cache.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "ggml-backend-impl.h"
#include "llama/device_copy/device_lines.h"

namespace luce::llama {
namespace {

constexpr std::int32_t kPadding = 256;  // libllama looks at cells by as many
// Behind the last cell that is looked at: kernels read rows by as many values.
constexpr std::size_t kTail_bytes = 4096;

// A buffer has no room for a pointer of ours. An engine has one thread.
std::unordered_map<ggml_backend_buffer_t, ElasticCache*>& placed() {
    static std::unordered_map<ggml_backend_buffer_t, ElasticCache*> all;
    return all;
}

ElasticCache*& under_way() {
    static ElasticCache* cache = nullptr;
    return cache;
}

template <typename N>
N rounded_up(N n, N step) {
    return (n + step - 1) / step * step;
}

}  // namespace

ElasticCache::~ElasticCache() {
    if (!is_placed()) return;
    placed().erase(buffer_);
    forget_pieced(buffer_);
    bank_.take_back(cut(0));
}

// libllama allocates all of a cache's tensors at once, in the device's own type of buffer, which a computation wants to
// see there. So that type allocates in another way meanwhile.
ElasticCache::Placing::Placing(ElasticCache& cache)
    : type_(ggml_backend_dev_buffer_type(cache.device_)), usual_(type_->iface.alloc_buffer_n) {
    cache.usual_ = usual_;
    under_way() = &cache;
    type_->iface.alloc_buffer_n = allocate;
}

ElasticCache::Placing::~Placing() {
    type_->iface.alloc_buffer_n = usual_;
    under_way() = nullptr;
}

ggml_backend_buffer_t ElasticCache::allocate(ggml_backend_buffer_type_t type, ggml_tensor** tensors, int n_tensors) {
    ElasticCache& cache = *under_way();
    const std::span all(tensors, static_cast<std::size_t>(n_tensors));
    if (!cache.takes(all)) {
        type->iface.alloc_buffer_n = cache.usual_;
        ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer_n(type, tensors, n_tensors);
        type->iface.alloc_buffer_n = allocate;
        return buffer;
    }
    if (const Result<void> opened = cache.open(all, type); !opened) {
        log_warn("no memory for the attention cache: " + opened.error().text);
        return nullptr;
    }
    return cache.buffer_;
}

// The first one is that of the layers that see all of a text; windows and states are small.
bool ElasticCache::takes(std::span<ggml_tensor* const> tensors) const {
    const auto is_of_cache = [&](const ggml_tensor* tensor) {
        const std::string_view name = ggml_get_name(tensor);
        const bool is_named = name.starts_with("cache_k_l") || name.starts_with("cache_v_l");
        return is_named && tensor->ne[1] == tensors.front()->ne[1] && tensor->ne[2] == 1;
    };
    return !is_placed() && std::ranges::all_of(tensors, is_of_cache);
}

// The device's own buffer, all but empty, whose addresses are ours.
Result<void> ElasticCache::open(std::span<ggml_tensor* const> tensors, ggml_backend_buffer_type_t type) {
    std::size_t row_bytes = 0, n_bytes = 0;
    n_most_ = static_cast<std::int32_t>(tensors.front()->ne[1]);
    for (const ggml_tensor* tensor : tensors) {
        if (tensor->view_src != nullptr) continue;
        const std::size_t needed = ggml_backend_buft_get_alloc_size(type, tensor) + kTail_bytes;
        columns_.push_back({.row_bytes = tensor->nb[1], .total_bytes = rounded_up(needed, granularity())});
        row_bytes += tensor->nb[1];
        n_bytes += columns_.back().total_bytes;
    }
    const std::size_t n_cells = std::clamp<std::size_t>(step_bytes_ / row_bytes, 1, static_cast<std::size_t>(n_most_));
    n_step_ = rounded_up(static_cast<std::int32_t>(n_cells), kPadding);
    Result<std::byte*> at = bank_.memory()->reserve(n_bytes);
    if (!at) return at.error();
    for (Column& column : columns_) {
        column.at = at.value();
        at.value() += column.total_bytes;
    }
    std::int32_t n_first = std::min(n_step_, n_most_);
    while (n_granules(n_most_) - n_granules(n_first) > bank_.n_lendable())
        n_first = std::min(n_first + n_step_, n_most_);
    std::vector<SplitMemory::Block> blocks;
    while (blocks.size() < n_granules(n_first)) {
        const Result<SplitMemory::Block> block = bank_.memory()->allocate(granularity(), true);
        if (!block) return block.error();
        blocks.push_back(block.value());
    }
    if (Result<void> grown = grow(n_first, std::move(blocks)); !grown) return grown;
    buffer_ = ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alignment(type));
    if (buffer_ == nullptr) return Error{ErrorCode::out_of_memory, "the device has none"};
    placed()[buffer_] = this;
    note_pieced(buffer_);
    buffer_->size = n_bytes;
    buffer_->iface.get_base = [](ggml_backend_buffer_t buffer) -> void* {
        return placed().at(buffer)->columns_.front().at;
    };
    buffer_->iface.clear = [](ggml_backend_buffer_t buffer, std::uint8_t) { placed().at(buffer)->clear(); };  // zeros
    buffer_->iface.init_tensor = nullptr;  // would fill what lies behind a tensor, which is zero or not there
    std::size_t n_placed = 0;
    for (ggml_tensor* tensor : tensors) {
        if (tensor->view_src == nullptr) ggml_backend_tensor_alloc(buffer_, tensor, columns_[n_placed++].at);
    }
    for (ggml_tensor* tensor : tensors) {
        if (tensor->view_src != nullptr) ggml_backend_view_init(tensor);
    }
    log_info("the attention cache has memory for " + std::to_string(n_cells_) + " of " + std::to_string(n_most_) +
             " cells (" + std::to_string(n_mapped_bytes() >> 20) + " MiB); experts have that of the others meanwhile");
    return {};
}

std::size_t ElasticCache::n_granules(const Column& column, std::int32_t n_cells) const {
    if (n_cells == 0) return 0;
    if (n_cells == n_most_) return column.total_bytes / granularity();
    const std::size_t n_bytes = static_cast<std::size_t>(n_cells) * column.row_bytes + kTail_bytes;
    return std::min(rounded_up(n_bytes, granularity()), column.total_bytes) / granularity();
}

std::size_t ElasticCache::n_granules(std::int32_t n_cells) const {
    std::size_t n = 0;
    for (const Column& column : columns_) n += n_granules(column, n_cells);
    return n;
}

std::size_t ElasticCache::n_mapped_bytes() const {
    std::size_t n = 0;
    for (const Column& column : columns_) n += column.blocks.size() * granularity();
    return n;
}

Result<void> ElasticCache::resize(std::int32_t n_cells) {
    if (n_cells < n_cells_) {
        bank_.memory()->wait();
        bank_.take_back(cut(n_cells));
        return {};
    }
    Result<std::vector<SplitMemory::Block>> lent = bank_.lend(n_granules(n_cells) - n_granules(n_cells_));
    if (!lent) return lent.error();
    return grow(n_cells, std::move(lent).value());
}

// After an error the blocks are the bank's again.
Result<void> ElasticCache::grow(std::int32_t n_cells, std::vector<SplitMemory::Block> blocks) {
    SplitMemory& memory = *bank_.memory();
    const std::int32_t n_before = n_cells_;
    Result<void> done;
    for (Column& column : columns_) {
        std::byte* begin = column.at + column.blocks.size() * granularity();
        std::byte* next = begin;
        while (done && column.blocks.size() < n_granules(column, n_cells)) {
            done = memory.map(next, blocks.back());
            if (!done) break;
            column.blocks.push_back(blocks.back());
            blocks.pop_back();
            next += granularity();
        }
        if (done && next > begin && !memory.clear(begin, static_cast<std::size_t>(next - begin))) {
            done = Error{ErrorCode::out_of_memory, "the driver does not clear memory"};
        }
    }
    if (done) {
        n_cells_ = n_cells;
        return {};
    }
    const std::vector<SplitMemory::Block> taken = cut(n_before);
    blocks.insert(blocks.end(), taken.begin(), taken.end());
    bank_.take_back(blocks);
    return done;
}

// To so many cells: what lay behind the others.
std::vector<SplitMemory::Block> ElasticCache::cut(std::int32_t n_cells) {
    std::vector<SplitMemory::Block> blocks;
    for (Column& column : columns_) {
        while (column.blocks.size() > n_granules(column, n_cells)) {
            bank_.memory()->unmap(column.at + (column.blocks.size() - 1) * granularity());
            blocks.push_back(column.blocks.back());
            column.blocks.pop_back();
        }
    }
    n_cells_ = n_cells;
    return blocks;
}

void ElasticCache::clear() {
    for (const Column& column : columns_) bank_.memory()->clear(column.at, column.blocks.size() * granularity());
}

}  // namespace luce::llama
