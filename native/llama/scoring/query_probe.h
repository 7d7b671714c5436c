// QueryProbe: takes the queries of one attention layer out of the graph that runs, for the lanes that are watched, and
// keeps the newest of each. In a call without a watched lane there is no trace of it. Must not know keys or scores.
//
// A row of queries is told by the cell that its token's key goes to, never by its place in the batch: libllama cuts
// batches up. So two operations are looked at, in this order: the write of the layer's keys, whose indices are the
// cells, and the attention to them. What they take is read once libllama's scheduler has computed all that goes into
// them and nothing behind them, so that it has not been overwritten: the attention is asked for as a result, which
// stops the computation there, and the write only if its indices are no input of the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/token.h"
#include "llama/scoring/layer_keys.h"

class llama_kv_cells;

namespace luce::llama {

inline constexpr std::size_t kNotedQueries = 32;  // of a lane

class QueryProbe {
public:
    explicit QueryProbe(std::int32_t n_lanes);

    // REQUIRES: no call is watched.
    void bind(const LayerKeys& keys, const llama_kv_cells& cells);
    void unbind();  // what was noted stays

    void watch(LaneId lane, bool is_watched);
    bool is_watched(LaneId lane) const { return lanes_[index(lane)].is_watched; }
    void forget(LaneId lane);                     // nothing is noted of it, and it is not watched
    void drop_queries(LaneId lane);               // nothing is noted of it
    void take_back(LaneId lane, Position begin);  // what was noted from there on is none of its text

    // Oldest first.
    struct Queries {
        std::vector<Position> positions;
        std::vector<float> values;  // query by query, in each head by head, as they go into attention
    };
    Queries queries(LaneId lane) const;

    // Whether the newest are those of all positions from `begin` up to `end`, which is excluded.
    bool has(LaneId lane, Position begin, Position end) const;

    // A sequence of the call, and the watched lane whose text it is, which goes on at `begin`: what was noted from
    // there on was taken back.
    struct Sequence {
        std::int32_t id = 0;
        LaneId lane{};
        Position begin = 0;
    };

    // While it lives what the context computes is looked at, by one probe or by probes of several layers; one at a
    // time. The context's scheduler must be the one that computes (GraphCache::Lease).
    class [[nodiscard]] Watch {
    public:
        Watch(QueryProbe& probe, llama_context& context, std::vector<Sequence> sequences);
        Watch(std::span<QueryProbe> probes, llama_context& context, const std::vector<Sequence>& sequences);
        ~Watch();
        Watch(const Watch&) = delete;
        Watch& operator=(const Watch&) = delete;

    private:
        static bool on_node(ggml_tensor* node, bool is_question, void* watch);

        std::span<QueryProbe> probes_;
        llama_context& context_;
    };

    // Whether a call can be watched at all: between bind() and unbind().
    bool is_bound() const { return cells_ != nullptr; }

private:
    struct Lane {
        bool is_watched = false;
        std::size_t n_noted = 0;
        std::size_t next = 0;  // in a ring
        std::vector<Position> positions;
        std::vector<float> values;
    };
    struct Row {
        LaneId lane{};
        Position position = 0;
        std::size_t row = 0;  // of the queries
    };

    static std::size_t index(LaneId lane) { return static_cast<std::size_t>(lane); }
    bool on_node(ggml_tensor* node, bool is_question);

    bool is_write(const ggml_tensor* node) const;
    bool is_attention(const ggml_tensor* node) const;
    void read_cells(const ggml_tensor* indices);
    void read_queries(const ggml_tensor* queries);
    std::vector<Row> newest_rows() const;
    void take(const Row& row, const ggml_tensor* queries);

    std::vector<Lane> lanes_;
    LayerKeys keys_;
    const llama_kv_cells* cells_ = nullptr;
    std::vector<Sequence> sequences_;    // of the call that is watched
    std::vector<std::int64_t> written_;  // the cells of the tokens under way; empty: their attention has been seen
    bool has_warned_ = false;
};

}  // namespace luce::llama
