#include "llama/experts/expert_stream.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

namespace luce::llama {
namespace {

struct Attached {
    ExpertStream* stream = nullptr;
    ggml_status (*whole)(ggml_backend_t, ggml_cgraph*) = nullptr;
};

// All that is copied of a weight lies within it: its values as bytes, and those behind them.
ggml_tensor as_bytes(const StreamedWeight& weight) {
    ggml_tensor bytes = *weight.seen;
    const std::size_t n = weight.offset + weight.n_bytes;
    bytes.type = GGML_TYPE_I8;
    std::fill_n(bytes.ne, GGML_MAX_DIMS, 1);
    std::fill_n(bytes.nb, GGML_MAX_DIMS, n);
    bytes.ne[0] = static_cast<std::int64_t>(n);
    bytes.nb[0] = 1;
    return bytes;
}

// A backend has no room for a pointer of ours. An engine has one thread.
std::unordered_map<ggml_backend_t, Attached>& attached() {
    static std::unordered_map<ggml_backend_t, Attached> all;
    return all;
}

}  // namespace

Result<std::unique_ptr<ExpertStream>> ExpertStream::make(ggml_backend_dev_t device,
                                                         const std::vector<StreamedWeight>& weights) {
    std::unique_ptr<ExpertStream> made(new ExpertStream());
    for (const StreamedWeight& weight : weights) made->set(weight);
    made->side_.reset(ggml_backend_dev_init(device, nullptr));
    bool is_complete = made->side_ != nullptr;
    for (auto* events : {&made->filled_, &made->read_}) {
        for (ggml_backend_event_ptr& event : *events) {
            event.reset(ggml_backend_event_new(device));
            is_complete = is_complete && event;
        }
    }
    if (!is_complete)
        return Error{ErrorCode::out_of_memory, "the device has no stream for experts beside computations"};
    return made;
}

void ExpertStream::set(const StreamedWeight& weight) {
    if (weight.n_bytes == 0) {
        weights_.erase(weight.seen);
    } else {
        weights_[weight.seen] = weight;
    }
}

ExpertStream::~ExpertStream() {
    if (side_) ggml_backend_synchronize(side_.get());
    for (auto& [backend, one] : attached()) {
        if (one.stream == this) one.stream = nullptr;
    }
}

void ExpertStream::attach(ggml_backend_t backend) {
    Attached& one = attached()[backend];
    if (backend->iface.graph_compute != compute) one.whole = std::exchange(backend->iface.graph_compute, compute);
    one.stream = this;
}

ggml_status ExpertStream::compute(ggml_backend_t backend, ggml_cgraph* graph) {
    const Attached& one = attached().at(backend);
    return one.stream ? one.stream->compute_in_pieces(backend, graph, one.whole) : one.whole(backend, graph);
}

// The stage may still be read by what was computed last with it.
void ExpertStream::fill(const StreamedWeight& weight) {
    if (was_read_[weight.stage]) ggml_backend_event_wait(side_.get(), read_[weight.stage].get());
    ggml_tensor bytes = as_bytes(weight);
    for (std::size_t done = 0, n = 0; done < weight.n_bytes; done += n) {
        const std::size_t at = weight.offset + done;
        n = at < weight.pieces_end ? weight.piece_bytes : weight.n_bytes - done;
        ggml_backend_tensor_set_async(side_.get(), &bytes, weight.host + done, at, std::min(n, weight.n_bytes - done));
    }
    ggml_backend_event_record(filled_[weight.stage].get(), side_.get());
}

ggml_status ExpertStream::compute_in_pieces(ggml_backend_t backend, ggml_cgraph* graph,
                                            ggml_status (*whole)(ggml_backend_t, ggml_cgraph*)) {
    std::vector<std::pair<int, const StreamedWeight*>> reads;
    for (int i = 0; i < graph->n_nodes; ++i) {
        if (graph->nodes[i]->op != GGML_OP_MUL_MAT_ID) continue;
        if (graph->nodes[i]->ne[2] < kFrom) break;  // calls that write answers are not held up by the search
        const auto known = weights_.find(graph->nodes[i]->src[0]);
        if (known != weights_.end()) reads.emplace_back(i, &known->second);
    }
    if (reads.empty()) return whole(backend, graph);
    const auto compute_piece = [&](int begin, int end) {
        if (begin == end) return GGML_STATUS_SUCCESS;
        ggml_cgraph piece = ggml_graph_view(graph, begin, end);
        return whole(backend, &piece);
    };
    int done = 0;
    std::size_t n_filled = 0;
    for (std::size_t i = 0; i < reads.size(); ++i) {
        const auto is_free = [&](std::size_t stage) {
            return std::ranges::none_of(std::span(reads).subspan(i, n_filled - i),
                                        [stage](const auto& read) { return read.second->stage == stage; });
        };
        while (n_filled < reads.size() && is_free(reads[n_filled].second->stage)) fill(*reads[n_filled++].second);
        const auto [node, weight] = reads[i];
        if (const ggml_status status = compute_piece(done, node); status != GGML_STATUS_SUCCESS) return status;
        ggml_backend_event_wait(backend, filled_[weight->stage].get());
        if (const ggml_status status = compute_piece(node, node + 1); status != GGML_STATUS_SUCCESS) return status;
        ggml_backend_event_record(read_[weight->stage].get(), backend);
        was_read_[weight->stage] = true;
        done = node + 1;
    }
    return compute_piece(done, graph->n_nodes);
}

}  // namespace luce::llama
