// GraphCache: keeps the computation graphs of a context's usual calls. libllama keeps the graph of the last call alone
// and builds it anew for a call of another shape, which costs a small model half a step: plain and speculative steps
// that take turns, or a draft model's injections and drafts, would pay it each time. Here each of the shapes that come
// again has a scheduler and graphs of its own, which the context works with during such a call.
//
// Calls of many tokens stay with the context's own scheduler: building a graph is little beside computing them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

struct ggml_cgraph;
struct llama_context;

namespace luce::llama {

// Plain steps and those of all widths of one lane, or some of them with a lane more or less.
inline constexpr std::size_t kMostGraphs = 16;

// What decides whether two calls can have the same graph.
struct CallShape {
    std::int32_t n_tokens = 0;
    std::int32_t n_outputs = 0;    // tokens whose logits are wanted
    std::int32_t n_sequences = 1;  // that the tokens belong to, the same number each; 1 where it is not known
    std::uint64_t variant = 0;     // what else the caller knows: which lanes, embeddings instead of tokens, …
    bool operator==(const CallShape&) const = default;
};

class GraphCache {
public:
    // Keeps the graphs of so many shapes. The context must outlive it.
    GraphCache(llama_context& context, std::size_t n_most);
    ~GraphCache();
    GraphCache(const GraphCache&) = delete;
    GraphCache& operator=(const GraphCache&) = delete;

    // While it lives the context computes with the shape's graph; one at a time.
    class [[nodiscard]] Lease {
    public:
        ~Lease();
        Lease(Lease&& other) noexcept;
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;

        // The call's graph is made, or made to be kept: it takes longer than such calls do.
        bool is_new() const { return is_new_; }

    private:
        friend class GraphCache;
        struct Kept;
        Lease(llama_context& context, Kept* kept, bool is_new = false);
        llama_context& context_;
        Kept* kept_;  // none: the context's own
        bool is_new_;
    };

    // Whether a call's graph is worth keeping.
    static bool may_keep(const CallShape& shape);

    // For one call of this shape, waiting for its results included. Where there is no memory for another graph, the
    // context's own is used (which is logged once).
    Lease lease(const CallShape& shape);

private:
    struct Known;  // a shape that was asked for
    struct Bytes {
        std::size_t device = 0;
        std::size_t host = 0;
    };

    void forget_all();
    Known& know(const CallShape& shape);
    bool make_room(const Known& newcomer);
    std::unique_ptr<Lease::Kept> create(const CallShape& shape);
    void make_graph(const CallShape& shape, ggml_cgraph& full);

    llama_context& context_;
    std::size_t n_most_;
    Bytes n_bytes_;  // of all that are kept
    std::uint64_t n_calls_ = 0;
    std::vector<std::unique_ptr<Known>> known_;
};

}  // namespace luce::llama
