#include "llama/scoring/query_probe.h"

#include <algorithm>
#include <cassert>

#include <ggml-backend.h>
#include <ggml.h>

#include "base/log.h"
#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-kv-cells.h"

namespace luce::llama {
namespace {

// libllama hands its callback to the scheduler only when it builds a graph; one that is used again has to be told.
void set_callback(llama_context& context, ggml_backend_sched_eval_callback callback, void* user) {
    auto& params = const_cast<llama_cparams&>(context.get_cparams());
    params.cb_eval = callback;
    params.cb_eval_user_data = user;
    ggml_backend_sched_set_eval_callback(context.get_sched(), callback, user);
}

// What is not computed is there before anything is, and stays until the last node that asks for it. Of what was
// computed for another backend the copy looks the same and may be on its way; libllama's indices come from the host,
// and the scheduler waits for copies of such inputs.
bool is_input(const ggml_tensor* tensor) { return tensor->op == GGML_OP_NONE; }

}  // namespace

QueryProbe::QueryProbe(std::int32_t n_lanes) : lanes_(static_cast<std::size_t>(n_lanes)) {}

void QueryProbe::bind(const LayerKeys& keys, const llama_kv_cells& cells) {
    keys_ = keys;
    cells_ = &cells;
}

void QueryProbe::unbind() {
    keys_.storage = nullptr;
    cells_ = nullptr;
}

void QueryProbe::watch(LaneId lane, bool is_watched) {
    Lane& watched = lanes_[index(lane)];
    watched.is_watched = is_watched;
    if (!is_watched) return;
    watched.positions.resize(kNotedQueries);
    watched.values.resize(kNotedQueries * keys_.n_heads * keys_.head_size);
}

void QueryProbe::forget(LaneId lane) { lanes_[index(lane)] = {}; }

void QueryProbe::drop_queries(LaneId lane) { lanes_[index(lane)].n_noted = 0; }

QueryProbe::Queries QueryProbe::queries(LaneId lane) const {
    const Lane& noted = lanes_[index(lane)];
    const auto size = static_cast<std::ptrdiff_t>(keys_.n_heads * keys_.head_size);
    Queries queries;
    queries.positions.reserve(noted.n_noted);
    queries.values.reserve(noted.n_noted * static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < noted.n_noted; ++i) {
        const std::size_t at = (noted.next + kNotedQueries - noted.n_noted + i) % kNotedQueries;
        queries.positions.push_back(noted.positions[at]);
        const auto first = noted.values.begin() + static_cast<std::ptrdiff_t>(at) * size;
        queries.values.insert(queries.values.end(), first, first + size);
    }
    return queries;
}

bool QueryProbe::has(LaneId lane, Position begin, Position end) const {
    const Lane& noted = lanes_[index(lane)];
    const Position n = end - begin;
    if (n <= 0 || n > static_cast<Position>(noted.n_noted)) return n <= 0;
    const auto back = [&noted](Position i) {
        return noted.positions[(noted.next + kNotedQueries - static_cast<std::size_t>(i)) % kNotedQueries];
    };
    return back(1) == end - 1 && back(n) == begin;  // they rise
}

QueryProbe::Watch::Watch(QueryProbe& probe, llama_context& context, std::vector<Sequence> sequences)
    : Watch(std::span(&probe, 1), context, sequences) {}

QueryProbe::Watch::Watch(std::span<QueryProbe> probes, llama_context& context, const std::vector<Sequence>& sequences)
    : probes_(probes), context_(context) {
    for (QueryProbe& probe : probes) {
        assert(probe.is_bound() && probe.sequences_.empty());
        for (const Sequence& sequence : sequences) probe.take_back(sequence.lane, sequence.begin);
        probe.sequences_ = sequences;
        probe.written_.clear();
    }
    set_callback(context_, on_node, this);
}

QueryProbe::Watch::~Watch() {
    set_callback(context_, nullptr, nullptr);
    for (QueryProbe& probe : probes_) probe.sequences_.clear();
}

// Asked of each node before it is computed; where the answer was yes, called again when it has been. The second answer
// is whether the computation goes on.
bool QueryProbe::Watch::on_node(ggml_tensor* node, bool is_question, void* watch) {
    bool is_wanted = false;
    for (QueryProbe& probe : static_cast<Watch*>(watch)->probes_) is_wanted |= probe.on_node(node, is_question);
    return is_wanted || !is_question;
}

// Drafted tokens that were not taken are none of the text.
void QueryProbe::take_back(LaneId id, Position begin) {
    Lane& lane = lanes_[index(id)];
    while (lane.n_noted > 0 && lane.positions[(lane.next + kNotedQueries - 1) % kNotedQueries] >= begin) {
        lane.next = (lane.next + kNotedQueries - 1) % kNotedQueries;
        --lane.n_noted;
    }
}

// Whether the node is to be computed for it; or what has been computed is read.
bool QueryProbe::on_node(ggml_tensor* node, bool is_question) {
    const bool is_written = is_write(node);
    if (!is_written && !is_attention(node)) return false;
    if (is_question && is_written && is_input(node->src[1])) {
        read_cells(node->src[1]);
        return false;
    }
    if (is_question) return true;
    if (is_written) {
        read_cells(node->src[1]);
    } else {
        read_queries(node->src[0]);
    }
    return true;
}

bool QueryProbe::is_write(const ggml_tensor* node) const {
    return node->op == GGML_OP_SET_ROWS && storage_of(node) == keys_.storage;
}

// Later layers that share these keys attend to them as well: only the first one behind the write is the layer's own.
bool QueryProbe::is_attention(const ggml_tensor* node) const {
    return !written_.empty() && node->op == GGML_OP_FLASH_ATTN_EXT && storage_of(node->src[1]) == keys_.storage;
}

void QueryProbe::read_cells(const ggml_tensor* indices) {
    assert(indices->type == GGML_TYPE_I64 && ggml_is_contiguous(indices));
    written_.resize(static_cast<std::size_t>(ggml_nelements(indices)));
    ggml_backend_tensor_get(indices, written_.data(), 0, ggml_nbytes(indices));
}

void QueryProbe::read_queries(const ggml_tensor* queries) {
    if (queries->ne[1] == static_cast<std::int64_t>(written_.size())) {
        for (const Row& row : newest_rows()) take(row, queries);
    } else if (!std::exchange(has_warned_, true)) {
        log_warn("this model's attention does not ask for every token: pages are not chosen by its queries");
    }
    written_.clear();
}

// Of each lane as many as are kept, oldest first.
std::vector<QueryProbe::Row> QueryProbe::newest_rows() const {
    std::vector<Row> rows;
    std::vector<std::size_t> n_of_lane(lanes_.size(), 0);
    for (std::size_t i = written_.size(); i-- > 0;) {
        const auto cell = static_cast<std::uint32_t>(written_[i]);
        const auto sequence = std::find_if(sequences_.begin(), sequences_.end(), [&](const Sequence& candidate) {
            return cells_->seq_has(cell, candidate.id);
        });
        if (sequence == sequences_.end() || ++n_of_lane[index(sequence->lane)] > kNotedQueries) continue;
        rows.push_back({sequence->lane, cells_->pos_get(cell), i});
    }
    std::reverse(rows.begin(), rows.end());
    return rows;
}

// Token by token and in each head by head, or head by head and in each token by token: both are met with.
void QueryProbe::take(const Row& row, const ggml_tensor* queries) {
    Lane& lane = lanes_[index(row.lane)];
    float* out = lane.values.data() + lane.next * keys_.n_heads * keys_.head_size;
    const std::size_t head_bytes = keys_.head_size * sizeof(float);
    const std::size_t begin = row.row * queries->nb[1];
    if (queries->nb[2] == head_bytes) {
        ggml_backend_tensor_get(queries, out, begin, keys_.n_heads * head_bytes);
    } else {
        for (std::size_t head = 0; head < keys_.n_heads; ++head, out += keys_.head_size) {
            ggml_backend_tensor_get(queries, out, begin + head * queries->nb[2], head_bytes);
        }
    }
    lane.positions[lane.next] = row.position;
    lane.next = (lane.next + 1) % kNotedQueries;
    lane.n_noted = std::min(lane.n_noted + 1, kNotedQueries);
}

}  // namespace luce::llama
