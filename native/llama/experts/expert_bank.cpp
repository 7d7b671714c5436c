#include "llama/experts/expert_bank.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <regex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ggml-cpp.h>

#include "experts/expert_border.h"
#include "ggml-backend-impl.h"
#include "llama/experts/bank_memory.h"
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
    std::optional<BankMemory> memory;  // none: the weights lie elsewhere
    ExpertBudget budget;
    experts::ExpertProfile known;
    std::optional<std::string> failure;

    ggml_backend_buffer_t buffer = nullptr;  // the model's
    ExpertLayout layout;
    experts::ExpertUse use;                                        // as it was known
    std::vector<std::int32_t> least, most;                         // residents of each layer that there can be
    bool is_streamed = false;                                      // prompts read by way of stages
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
    Settled settled;  // and not told of yet

    static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, ggml_tensor** tensors, int n_tensors);
    static Impl& of(ggml_backend_buffer_t buffer) { return *static_cast<Impl*>(buffer->context); }

    Result<void> load_into(std::span<ggml_tensor*> tensors);
    Result<void> lay_out(std::span<ggml_tensor*> tensors);
    Result<void> watch(const NamedWeights& named);
    void add_layers();
    StreamedWeight streamed_weight(std::size_t tensor) const;
    Result<void> open_stream();
    ggml_backend_buffer_t make_buffer();
    std::byte* at(std::size_t tensor, std::int32_t place) const;
    bool copy(const ggml_tensor* tensor, std::byte* data, std::size_t offset, std::size_t n_bytes, bool inwards);
    void copy_beside(const LayerExperts& layer, std::int32_t device_place, std::int32_t host_place, bool inwards);
    bool advance(Move& move);
    void settle_once();
    void finish_moves();
    bool copy_expert(const LayerExperts& layer, const experts::Relocation& relocation);
    Result<void> move_border(const experts::BorderMove& move);
    Result<void> free_granules(std::size_t n_granules);
    void use_spare();
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
    for (std::size_t i = 0; i < bank.weights.size(); ++i) {
        ggml_backend_tensor_alloc(buffer, bank.weights[i], bank.memory->weight(i));
    }
    return buffer;
}

Result<void> ExpertBank::Impl::load_into(std::span<ggml_tensor*> tensors) {
    if (memory->base() != nullptr) return out_of_memory("the experts' weights come in more than one kind of buffer");
    return lay_out(tensors);
}

Result<void> ExpertBank::Impl::lay_out(std::span<ggml_tensor*> tensors) {
    std::vector<ExpertTensor> all;
    for (ggml_tensor* tensor : tensors) {
        const std::string name = ggml_get_name(tensor);
        all.push_back({name, layer_of(name), static_cast<std::int32_t>(tensor->ne[2]), tensor->nb[2]});
        index_of[tensor] = weights.size();
        weights.push_back(tensor);
    }
    Result<ExpertLayout> even = experts::lay_out(all, budget.most, memory->memory()->granularity(), {});
    if (!even) return even.error();
    use = experts::ExpertUsage(even.value(), known).values();
    Result<BankLayout> chosen = lay_out_bank(all, budget, memory->memory()->granularity(), use);
    if (!chosen) return chosen.error();
    layout = std::move(chosen.value().experts);
    least = std::move(chosen.value().least);
    most = std::move(chosen.value().most);
    is_streamed = chosen.value().is_streamed;
    add_layers();
    return memory->map(chosen.value().spans, is_streamed ? ExpertStream::kStages : 0);
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

StreamedWeight ExpertBank::Impl::streamed_weight(std::size_t tensor) const {
    const std::size_t offset = layout.parts[tensor].device_bytes;
    const std::size_t n_bytes = ggml_nbytes(&stored[tensor]) + experts::kTailBytes;
    return {.seen = const_cast<ggml_tensor*>(&streamed[tensor]),
            .host = memory->weight(tensor) + offset,
            .offset = offset,
            .n_bytes = n_bytes - std::min(n_bytes, offset),
            .stage = memory->stage(tensor),
            .pieces_end = memory->span(tensor).most_device,
            .piece_bytes = layout.granularity};
}

Result<void> ExpertBank::Impl::open_stream() {
    std::vector<StreamedWeight> all;
    streamed = stored;
    for (std::size_t i = 0; i < stored.size(); ++i) {
        streamed[i].data = memory->seen(i);
        if (!layout.layers[layers[i]].is_whole()) all.push_back(streamed_weight(i));
    }
    Result<std::unique_ptr<ExpertStream>> made = ExpertStream::make(device, all);
    if (!made) return made.error();
    stream = std::move(made).value();
    return {};
}

ggml_backend_buffer_t ExpertBank::Impl::make_buffer() {
    ggml_backend_buffer_i calls{};
    calls.get_base = [](ggml_backend_buffer_t buffer) -> void* { return of(buffer).memory->base(); };
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
    return ggml_backend_buffer_init(&buffer_type.type, calls, this, memory->n_bytes());
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
        SplitMemory& bytes = *memory->memory();
        if (!(inwards ? bytes.write(place, data, n) : bytes.read(data, place, n))) {
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
        const std::size_t to = n_bytes * static_cast<std::size_t>(device_place);
        const std::size_t from = n_bytes * static_cast<std::size_t>(host_place);
        for (std::size_t done = 0, n = 0; done < n_bytes; done += n) {
            n = n_bytes - done;  // but one copy may not cross what is mapped as one
            if (from + done < memory->span(i).most_device) {
                n = std::min(n, layout.granularity - (from + done) % layout.granularity);
            }
            std::byte* host = at(i, host_place) + done;
            if (inwards) {
                ggml_backend_tensor_set_async(side.get(), &stored[i], host, to + done, n);
            } else {
                ggml_backend_tensor_get_async(side.get(), &stored[i], host, to + done, n);
            }
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

void ExpertBank::Impl::settle_once() {
    if (moves.empty()) return;
    ggml_backend_synchronize(side.get());
    for (const Move& move : moves) {
        for (const std::size_t i : layout.layers[move.exchange.layer].tensors) {
            settled.n_bytes += layout.tensors[i].expert_bytes;
        }
    }
    settled.n_exchanges += std::erase_if(moves, [this](Move& move) { return advance(move); });
    table->send(layout);
}

void ExpertBank::Impl::finish_moves() {
    while (!moves.empty()) settle_once();
}

bool ExpertBank::Impl::copy_expert(const LayerExperts& layer, const experts::Relocation& relocation) {
    SplitMemory& bytes = *memory->memory();
    for (const std::size_t i : layer.tensors) {
        std::vector<std::byte> expert(layout.tensors[i].expert_bytes);
        if (!bytes.read(expert.data(), at(i, relocation.from), expert.size())) return false;
        if (!bytes.write(at(i, relocation.to), expert.data(), expert.size())) return false;
    }
    return true;
}

// After an error all is as before.
Result<void> ExpertBank::Impl::move_border(const experts::BorderMove& move) {
    LayerExperts& layer = layout.layers[move.layer];
    const LayerExperts layer_before = layer;
    const std::vector<experts::TensorParts> parts_before = layout.parts;
    const auto relocation = experts::move_border(layout, move, &use[move.layer]);
    Result<void> done;
    if (relocation && !copy_expert(layer, *relocation)) done = out_of_memory("the driver does not copy an expert");
    std::size_t n_moved = 0;
    for (; done && n_moved < layer.tensors.size(); ++n_moved) {
        const std::size_t i = layer.tensors[n_moved];
        done = memory->move_border(i, parts_before[i].device_bytes, layout.parts[i].device_bytes);
    }
    if (!done) {
        for (std::size_t moved = 0; moved + 1 < n_moved; ++moved) {
            const std::size_t i = layer.tensors[moved];
            (void)memory->move_border(i, layout.parts[i].device_bytes, parts_before[i].device_bytes);
        }
        layer = layer_before;
        layout.parts = parts_before;
        return done;
    }
    for (const std::size_t i : layer.tensors) {
        if (stream) stream->set(streamed_weight(i));
    }
    return {};
}

// Until so many are spare.
Result<void> ExpertBank::Impl::free_granules(std::size_t n_granules) {
    const std::size_t n_spare = memory->n_spare();
    if (n_granules <= n_spare) return {};
    const std::size_t n_bytes = (n_granules - n_spare) * layout.granularity;
    for (const experts::BorderMove& move : experts::give_up(layout, n_bytes, least, use)) {
        if (Result<void> moved = move_border(move); !moved) return moved;
    }
    return memory->n_spare() >= n_granules ? Result<void>() : out_of_memory("the experts have no more to lend");
}

void ExpertBank::Impl::use_spare() {
    const std::size_t n_bytes = memory->n_spare() * layout.granularity;
    for (const experts::BorderMove& move : experts::take_back(layout, n_bytes, most, use)) {
        if (const Result<void> moved = move_border(move); !moved) return;
    }
}

ExpertBank::ExpertBank(ggml_backend_dev_t device, std::unique_ptr<SplitMemory> memory, ExpertBudget budget,
                       experts::ExpertProfile known)
    : impl_(std::make_unique<Impl>()) {
    impl_->device = device;
    impl_->memory.emplace(std::move(memory));
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

bool ExpertBank::is_split() const { return impl_->memory.has_value(); }

ExpertBank::~ExpertBank() {
    if (impl_->side) ggml_backend_synchronize(impl_->side.get());
    for (const ggml_tensor* weight : impl_->weights) ExpertLookup::instance().remove(weight);
}

ggml_backend_buffer_type_t ExpertBank::buffer_type() const { return &impl_->buffer_type.type; }
const std::optional<std::string>& ExpertBank::failure() const { return impl_->failure; }
const experts::ExpertProfile& ExpertBank::known() const { return impl_->known; }
const ExpertLayout& ExpertBank::layout() const { return impl_->layout; }
ggml_backend_dev_t ExpertBank::device() const { return impl_->device; }
const std::shared_ptr<SplitMemory>& ExpertBank::memory() const { return impl_->memory->memory(); }

std::int64_t ExpertBank::least_resident() const {
    return std::accumulate(impl_->least.begin(), impl_->least.end(), std::int64_t{0});
}

std::int64_t ExpertBank::most_resident() const {
    return std::accumulate(impl_->most.begin(), impl_->most.end(), std::int64_t{0});
}

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
    if (bank.is_streamed) {
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
    impl_->settle_once();
    return std::exchange(impl_->settled, {});
}

std::size_t ExpertBank::n_lendable() const {
    const Impl& bank = *impl_;
    if (bank.table == nullptr || !is_split()) return 0;
    std::size_t n_bytes = 0;
    for (std::size_t l = 0; l < bank.least.size(); ++l) {
        const LayerExperts& layer = bank.layout.layers[l];
        n_bytes += experts::bytes_on_device(bank.layout, layer, layer.n_resident) -
                   experts::bytes_on_device(bank.layout, layer, bank.least[l]);
    }
    return n_bytes / bank.layout.granularity + bank.memory->n_spare();
}

Result<std::vector<SplitMemory::Block>> ExpertBank::lend(std::size_t n_granules) {
    Impl& bank = *impl_;
    if (n_granules > n_lendable()) return out_of_memory("the experts have no more to lend");
    bank.finish_moves();
    bank.memory->memory()->wait();
    const Result<void> freed = bank.free_granules(n_granules);
    if (!freed) bank.use_spare();
    bank.table->send(bank.layout);
    if (!freed) return freed.error();
    std::vector<SplitMemory::Block>& spare = bank.memory->spare();
    std::vector<SplitMemory::Block> lent(spare.end() - static_cast<std::ptrdiff_t>(n_granules), spare.end());
    spare.resize(spare.size() - n_granules);
    return lent;
}

void ExpertBank::take_back(std::span<const SplitMemory::Block> blocks) {
    Impl& bank = *impl_;
    std::vector<SplitMemory::Block>& spare = bank.memory->spare();
    spare.insert(spare.end(), blocks.begin(), blocks.end());
    bank.finish_moves();
    bank.memory->memory()->wait();
    bank.use_spare();
    bank.table->send(bank.layout);
}

}  // namespace luce::llama
