#include "llama/experts/expert_bank.h"

#include <algorithm>
#include <charconv>
#include <regex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ggml-cpp.h>

#include "ggml-backend-impl.h"
#include "llama/experts/expert_lookup.h"
#include "llama/experts/expert_stream.h"

namespace luce::llama {
namespace {

using experts::ExpertLayout;
using experts::ExpertTensor;
using experts::kNoExpert;
using experts::LayerExperts;

// "blk.12.ffn_up_exps.weight": 12.
std::int32_t layer_of(std::string_view name) {
    std::int32_t layer = -1;
    const std::size_t begin = std::min(name.find('.'), name.size() - 1) + 1;
    std::from_chars(name.data() + begin, name.data() + name.size(), layer);
    return layer;
}

Error out_of_memory(std::string text) { return {ErrorCode::out_of_memory, std::move(text)}; }

}  // namespace

struct ExpertBank::Impl {
    // While the model is loaded the memory is of a type of its own: llama.cpp tells types apart by their names, and
    // would copy into the device's own without asking. Afterwards it is of the device's type, and computed with there.
    struct BufferType {
        ggml_backend_buffer_type type{};
        Impl* bank = nullptr;
        std::string name;

        static const char* name_of(ggml_backend_buffer_type_t type) {
            return reinterpret_cast<BufferType*>(type)->name.c_str();
        }
    };

    BufferType buffer_type;
    ggml_backend_dev_t device = nullptr;
    std::unique_ptr<SplitMemory> memory;
    std::size_t budget = 0;
    experts::ExpertProfile known;
    std::optional<std::string> failure;

    ggml_backend_buffer_t buffer = nullptr;  // the model's
    std::byte* base = nullptr;
    ExpertLayout layout;
    std::size_t stage_bytes = 0;                                   // of each stage; 0: nothing is streamed
    std::vector<ggml_tensor*> weights;                             // in the order of layout.tensors
    std::vector<std::size_t> layers;                               // of these tensors: indices in layout.layers
    std::unordered_map<const ggml_tensor*, std::size_t> index_of;  // in layout.tensors

    // Who comes is copied first; once calls find it in the free place, who goes takes the place that it has left.
    struct Move {
        experts::Exchange exchange;
        bool has_come = false;
    };

    std::unique_ptr<ExpertTable> table;
    std::vector<ggml_tensor> stored;    // as weights, with all places
    std::vector<ggml_tensor> streamed;  // as stored, seen with a stage in place of the host's part
    std::unique_ptr<ExpertStream> stream;
    ggml_backend_ptr side;  // a stream of its own, beside computations
    std::vector<Move> moves;

    static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, ggml_tensor** tensors, int n_tensors);
    static Impl& of(ggml_backend_buffer_t buffer) { return *static_cast<Impl*>(buffer->context); }

    Result<void> load_into(std::span<ggml_tensor*> tensors);
    Result<void> lay_out(std::span<ggml_tensor*> tensors);
    Result<void> watch(const NamedWeights& named);
    void add_layers();
    Result<void> lay_out_within(const std::vector<ExpertTensor>& all, const experts::ExpertUse& use);
    Result<void> map_parts();
    Result<void> map_stages(const std::vector<SplitMemory::Block>& on_device);
    Result<void> open_stream();
    std::size_t seen_bytes() const;
    ggml_backend_buffer_t make_buffer();
    std::byte* at(std::size_t tensor, std::int32_t place) const;
    bool copy(const ggml_tensor* tensor, std::byte* data, std::size_t offset, std::size_t n_bytes, bool inwards);
    void copy_beside(const LayerExperts& layer, std::int32_t device_place, std::int32_t host_place, bool inwards);
    bool advance(Move& move);
};

// All of them at once, and nothing else: what is only sized has no memory and comes by another way.
ggml_backend_buffer_t ExpertBank::Impl::allocate(ggml_backend_buffer_type_t type, ggml_tensor** tensors,
                                                 int n_tensors) {
    Impl& bank = *reinterpret_cast<BufferType*>(type)->bank;
    if (Result<void> loaded = bank.load_into({tensors, static_cast<std::size_t>(n_tensors)}); !loaded) {
        bank.failure = loaded.error().text;
        return nullptr;
    }
    ggml_backend_buffer_t buffer = bank.buffer = bank.make_buffer();
    std::size_t offset = 0;
    for (std::size_t i = 0; i < bank.weights.size(); ++i) {
        ggml_backend_tensor_alloc(buffer, bank.weights[i], bank.base + offset);
        offset += bank.layout.parts[i].total_bytes();
    }
    return buffer;
}

Result<void> ExpertBank::Impl::load_into(std::span<ggml_tensor*> tensors) {
    if (base != nullptr) return out_of_memory("the experts' weights come in more than one kind of buffer");
    if (Result<void> done = lay_out(tensors); !done) return done;
    return map_parts();
}

Result<void> ExpertBank::Impl::lay_out(std::span<ggml_tensor*> tensors) {
    std::vector<ExpertTensor> all;
    for (ggml_tensor* tensor : tensors) {
        const std::string name = ggml_get_name(tensor);
        all.push_back({name, layer_of(name), static_cast<std::int32_t>(tensor->ne[2]), tensor->nb[2]});
        index_of[tensor] = weights.size();
        weights.push_back(tensor);
    }
    Result<ExpertLayout> even = experts::lay_out(all, budget, memory->granularity(), {});
    if (!even) return even.error();
    const experts::ExpertUse use = experts::ExpertUsage(even.value(), known).values();
    if (Result<void> done = lay_out_within(all, use); !done) return done;
    add_layers();
    return {};
}

void ExpertBank::Impl::add_layers() {
    layers.resize(layout.tensors.size());
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
        for (const std::size_t i : layout.layers[l].tensors) layers[i] = l;
    }
}

// Weights of another buffer, wherever that is: ids are places.
Result<void> ExpertBank::Impl::watch(const NamedWeights& named) {
    const std::regex banked(kBankedTensors);
    std::vector<ExpertTensor> all;
    for (const auto& [name, tensor] : named) {
        if (!std::regex_search(name, banked)) continue;
        all.push_back({name, layer_of(name), static_cast<std::int32_t>(tensor->ne[2]), tensor->nb[2]});
        weights.push_back(tensor);
    }
    Result<ExpertLayout> found = experts::lay_out(std::move(all), 0, 1, {});
    if (!found) return found.error();
    layout = std::move(found).value();
    add_layers();
    return {};
}

// Stages take a part of the budget, as large as the largest part on the host, which grows with what they take. Where
// they would take more than a quarter there are none: experts on the device are worth more.
Result<void> ExpertBank::Impl::lay_out_within(const std::vector<ExpertTensor>& all, const experts::ExpertUse& use) {
    stage_bytes = 0;
    for (int round = 0; round < 8; ++round) {
        const std::size_t n_stages = ExpertStream::kStages * stage_bytes;
        if (n_stages > budget / 4) break;
        Result<ExpertLayout> chosen = experts::lay_out(all, budget - n_stages, memory->granularity(), use);
        if (!chosen) return chosen.error();
        layout = std::move(chosen).value();
        std::size_t largest = 0;
        for (const experts::TensorParts& part : layout.parts) largest = std::max(largest, part.host_bytes);
        if (largest <= stage_bytes) return {};
        stage_bytes = largest;
    }
    stage_bytes = 0;
    Result<ExpertLayout> chosen = experts::lay_out(all, budget, memory->granularity(), use);
    if (!chosen) return chosen.error();
    layout = std::move(chosen).value();
    return {};
}

// Of the addresses at which prompts see the weights.
std::size_t ExpertBank::Impl::seen_bytes() const {
    return stage_bytes == 0 ? 0 : layout.device_bytes() + stage_bytes * layout.parts.size();
}

Result<void> ExpertBank::Impl::map_parts() {
    Result<std::byte*> reserved = memory->reserve(layout.device_bytes() + layout.host_bytes() + seen_bytes());
    if (!reserved) return reserved.error();
    base = reserved.value();
    std::vector<SplitMemory::Block> on_device;
    std::size_t offset = 0;
    for (const experts::TensorParts& part : layout.parts) {
        for (const bool is_device : {true, false}) {
            const std::size_t n_bytes = is_device ? part.device_bytes : part.host_bytes;
            const Result<SplitMemory::Block> block =
                n_bytes == 0 ? SplitMemory::Block{0} : memory->allocate(n_bytes, is_device);
            if (!block) return block.error();
            if (is_device) on_device.push_back(block.value());
            if (n_bytes == 0) continue;
            if (Result<void> mapped = memory->map(offset, block.value()); !mapped) return mapped;
            offset += n_bytes;
        }
    }
    return stage_bytes == 0 ? Result<void>() : map_stages(on_device);
}

Result<void> ExpertBank::Impl::map_stages(const std::vector<SplitMemory::Block>& on_device) {
    std::vector<SplitMemory::Block> stages;
    while (stages.size() < ExpertStream::kStages) {
        const Result<SplitMemory::Block> block = memory->allocate(stage_bytes, true);
        if (!block) return block.error();
        stages.push_back(block.value());
    }
    std::size_t offset = layout.device_bytes() + layout.host_bytes();
    for (std::size_t i = 0; i < layout.parts.size(); ++i) {
        const experts::TensorParts& part = layout.parts[i];
        if (part.device_bytes > 0) {
            if (Result<void> mapped = memory->map(offset, on_device[i]); !mapped) return mapped;
        }
        offset += part.device_bytes;
        if (Result<void> mapped = memory->map(offset, stages[i % stages.size()]); !mapped) return mapped;
        offset += stage_bytes;
    }
    return {};
}

Result<void> ExpertBank::Impl::open_stream() {
    std::vector<StreamedWeight> all;
    streamed = stored;
    std::byte* seen = base + layout.device_bytes() + layout.host_bytes();
    for (std::size_t i = 0; i < stored.size(); ++i) {
        streamed[i].data = seen;
        const std::size_t offset = layout.parts[i].device_bytes;
        seen += offset + stage_bytes;
        const std::size_t n_bytes = ggml_nbytes(&stored[i]) + experts::kTailBytes;
        if (layout.layers[layers[i]].is_whole() || offset >= n_bytes) continue;
        const auto* host = static_cast<const std::byte*>(stored[i].data) + offset;
        all.push_back({&streamed[i], host, offset, n_bytes - offset, i % ExpertStream::kStages});
    }
    Result<std::unique_ptr<ExpertStream>> made = ExpertStream::make(device, all);
    if (!made) return made.error();
    stream = std::move(made).value();
    return {};
}

ggml_backend_buffer_t ExpertBank::Impl::make_buffer() {
    ggml_backend_buffer_i calls{};
    calls.get_base = [](ggml_backend_buffer_t buffer) -> void* { return of(buffer).base; };
    calls.set_tensor = [](ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data, std::size_t offset,
                          std::size_t n_bytes) {
        auto* bytes = const_cast<std::byte*>(static_cast<const std::byte*>(data));
        of(buffer).copy(tensor, bytes, offset, n_bytes, true);
    };
    calls.get_tensor = [](ggml_backend_buffer_t buffer, const ggml_tensor* tensor, void* data, std::size_t offset,
                          std::size_t n_bytes) {
        of(buffer).copy(tensor, static_cast<std::byte*>(data), offset, n_bytes, false);
    };
    calls.clear = [](ggml_backend_buffer_t, std::uint8_t) {};  // it was mapped as zeros
    return ggml_backend_buffer_init(&buffer_type.type, calls, this,
                                    layout.device_bytes() + layout.host_bytes() + seen_bytes());
}

std::byte* ExpertBank::Impl::at(std::size_t tensor, std::int32_t place) const {
    return static_cast<std::byte*>(weights[tensor]->data) +
           layout.tensors[tensor].expert_bytes * static_cast<std::size_t>(place);
}

// A range of a tensor as its file has it: expert by expert, from or to their places.
bool ExpertBank::Impl::copy(const ggml_tensor* tensor, std::byte* data, std::size_t offset, std::size_t n_bytes,
                            bool inwards) {
    const std::size_t index = index_of.at(tensor);
    const std::size_t stride = layout.tensors[index].expert_bytes;
    const LayerExperts& layer = layout.layers[layers[index]];
    while (n_bytes > 0) {
        const std::size_t within = offset % stride;
        const std::size_t n = std::min(n_bytes, stride - within);
        std::byte* place = at(index, layer.place_of[offset / stride]) + within;
        if (!(inwards ? memory->write(place, data, n) : memory->read(data, place, n))) {
            failure = "the driver does not copy the experts' weights";
            return false;
        }
        data += n;
        offset += n;
        n_bytes -= n;
    }
    return true;
}

// An expert's weights, between a place on the device and one on the host.
void ExpertBank::Impl::copy_beside(const LayerExperts& layer, std::int32_t device_place, std::int32_t host_place,
                                   bool inwards) {
    for (const std::size_t i : layer.tensors) {
        const std::size_t n_bytes = layout.tensors[i].expert_bytes;
        const std::size_t offset = n_bytes * static_cast<std::size_t>(device_place);
        if (inwards) {
            ggml_backend_tensor_set_async(side.get(), &stored[i], at(i, host_place), offset, n_bytes);
        } else {
            ggml_backend_tensor_get_async(side.get(), &stored[i], at(i, host_place), offset, n_bytes);
        }
    }
}

// What it was waiting for has been copied. Returns whether it is done.
bool ExpertBank::Impl::advance(Move& move) {
    LayerExperts& layer = layout.layers[move.exchange.layer];
    const std::int32_t moved = move.has_come ? move.exchange.goes : move.exchange.comes;
    std::int32_t& place = layer.place_of[static_cast<std::size_t>(moved)];
    const std::int32_t left = std::exchange(place, layer.free_place);
    layer.expert_in[static_cast<std::size_t>(place)] = moved;
    layer.expert_in[static_cast<std::size_t>(left)] = kNoExpert;
    layer.free_place = left;  // on the host until the other one has gone there
    if (std::exchange(move.has_come, true)) return true;
    copy_beside(layer, layer.place_of[static_cast<std::size_t>(move.exchange.goes)], left, false);
    return false;
}

ExpertBank::ExpertBank(ggml_backend_dev_t device, std::unique_ptr<SplitMemory> memory, std::size_t budget,
                       experts::ExpertProfile known)
    : impl_(std::make_unique<Impl>()) {
    impl_->device = device;
    impl_->memory = std::move(memory);
    impl_->budget = budget;
    impl_->known = std::move(known);
    impl_->buffer_type = {*ggml_backend_dev_buffer_type(device), impl_.get(),
                          std::string(ggml_backend_dev_name(device)) + "_Experts"};
    impl_->buffer_type.type.iface.get_name = Impl::BufferType::name_of;
    impl_->buffer_type.type.iface.alloc_buffer_n = Impl::allocate;
}

ExpertBank::ExpertBank(ggml_backend_dev_t device, experts::ExpertProfile known) : impl_(std::make_unique<Impl>()) {
    impl_->device = device;
    impl_->known = std::move(known);
}

bool ExpertBank::is_split() const { return impl_->memory != nullptr; }

ExpertBank::~ExpertBank() {
    if (impl_->side) ggml_backend_synchronize(impl_->side.get());
    for (const ggml_tensor* weight : impl_->weights) ExpertLookup::instance().remove(weight);
}

ggml_backend_buffer_type_t ExpertBank::buffer_type() const { return &impl_->buffer_type.type; }
const std::optional<std::string>& ExpertBank::failure() const { return impl_->failure; }
const experts::ExpertProfile& ExpertBank::known() const { return impl_->known; }
const ExpertLayout& ExpertBank::layout() const { return impl_->layout; }

ExpertTable* ExpertBank::table() { return impl_->table.get(); }

Result<void> ExpertBank::open(const NamedWeights& weights, std::int32_t n_tokens, std::int32_t n_used) {
    Impl& bank = *impl_;
    if (bank.failure) return out_of_memory(*bank.failure);
    if (!is_split()) {
        if (Result<void> watched = bank.watch(weights); !watched) return watched;
    }
    if (bank.buffer != nullptr) bank.buffer->buft = ggml_backend_dev_buffer_type(bank.device);
    if (bank.layout.n_resident() == bank.layout.n_experts()) return {};
    if (is_split()) {
        bank.side.reset(ggml_backend_dev_init(bank.device, nullptr));
        if (!bank.side) return out_of_memory("the device has no memory for a stream beside computations");
    }
    Result<std::unique_ptr<ExpertTable>> table = ExpertTable::make(bank.device, bank.layout, n_tokens, n_used);
    if (!table) return table.error();
    bank.table = std::move(table).value();
    for (std::size_t i = 0; i < bank.weights.size(); ++i) {
        bank.stored.push_back(*bank.weights[i]);
        const std::size_t n_places = bank.layout.layers[bank.layers[i]].expert_in.size();
        bank.stored[i].ne[2] = static_cast<std::int64_t>(n_places);
        bank.stored[i].nb[3] = bank.stored[i].nb[2] * n_places;
    }
    if (bank.stage_bytes > 0) {
        if (Result<void> opened = bank.open_stream(); !opened) return opened;
    }
    for (std::size_t i = 0; i < bank.weights.size(); ++i) {
        if (bank.layout.layers[bank.layers[i]].is_whole()) continue;
        ggml_tensor* streamed = bank.stream ? &bank.streamed[i] : nullptr;
        ExpertLookup::instance().add(bank.weights[i], {bank.table.get(), bank.layers[i], &bank.stored[i], streamed});
    }
    return {};
}

void ExpertBank::attach(ggml_backend_sched_t scheduler) {
    if (!impl_->stream) return;
    for (int i = 0; i < ggml_backend_sched_get_n_backends(scheduler); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(scheduler, i);
        if (ggml_backend_get_device(backend) == impl_->device) impl_->stream->attach(backend);
    }
}

bool ExpertBank::is_moving(std::size_t layer) const {
    const auto& moves = impl_->moves;
    return std::any_of(moves.begin(), moves.end(), [&](const auto& move) { return move.exchange.layer == layer; });
}

void ExpertBank::start(const experts::Exchange& exchange) {
    const LayerExperts& layer = impl_->layout.layers[exchange.layer];
    const std::int32_t from = layer.place_of[static_cast<std::size_t>(exchange.comes)];
    impl_->copy_beside(layer, layer.free_place, from, true);
    impl_->moves.push_back({exchange});
}

ExpertBank::Settled ExpertBank::settle() {
    Impl& bank = *impl_;
    Settled settled;
    if (bank.moves.empty()) return settled;
    ggml_backend_synchronize(bank.side.get());
    for (const Impl::Move& move : bank.moves) {
        for (const std::size_t i : bank.layout.layers[move.exchange.layer].tensors) {
            settled.n_bytes += bank.layout.tensors[i].expert_bytes;
        }
    }
    settled.n_exchanges = std::erase_if(bank.moves, [&bank](Impl::Move& move) { return bank.advance(move); });
    bank.table->send(bank.layout);
    return settled;
}

}  // namespace luce::llama
