#include "llama/decoding/graph_cache.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/log.h"
#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-graph.h"
#include "llama-memory.h"
#include "llama/decoding/private_member.h"

namespace luce::llama {

struct Scheduler {
    friend constexpr auto member_of(Scheduler);
};
struct LastGraphs {
    friend constexpr auto member_of(LastGraphs);
};
struct ActiveGraph {
    friend constexpr auto member_of(ActiveGraph);
};
struct Backends {
    friend constexpr auto member_of(Backends);
};
struct BufferTypes {
    friend constexpr auto member_of(BufferTypes);
};
struct NeedsReserve {
    friend constexpr auto member_of(NeedsReserve);
};
struct CopyExperts {
    friend constexpr auto member_of(CopyExperts);
};

template struct PrivateMember<Scheduler, &llama_context::sched>;
template struct PrivateMember<LastGraphs, &llama_context::gf_res_prev>;
template struct PrivateMember<ActiveGraph, &llama_context::gf_res_prev_active>;
template struct PrivateMember<Backends, &llama_context::backend_ptrs>;
template struct PrivateMember<BufferTypes, &llama_context::backend_buft>;
template struct PrivateMember<NeedsReserve, &llama_context::sched_need_reserve>;
template struct PrivateMember<CopyExperts, &llama_context::sched_copy_experts>;

namespace {

constexpr std::int32_t kMostTokens = 128;  // of a call whose graph is worth keeping
constexpr std::size_t kMostKnown = 64;     // shapes that are remembered, kept or not
// Of their buffers. The host's are written in part only.
constexpr std::size_t kMostDeviceBytes = std::size_t{128} << 20;
constexpr std::size_t kMostHostBytes = std::size_t{256} << 20;
constexpr int kSpareNodes = 4;  // times those of the graph in a full context

}  // namespace

// What a context has of its own and changes places with it.
struct GraphCache::Lease::Kept {
    ggml_backend_sched_ptr scheduler;
    std::array<llm_graph_result_ptr, 2> graphs;
    llm_graph_result* active = nullptr;
    Bytes bytes;

    void change_places(llama_context& context) {
        std::swap(scheduler, context.*member_of(Scheduler{}));
        std::swap(graphs, context.*member_of(LastGraphs{}));
        std::swap(active, context.*member_of(ActiveGraph{}));
    }
};

struct GraphCache::Known {
    CallShape shape;
    std::uint64_t last_use = 0;  // by number of calls; 0: never
    std::uint64_t use_before = 0;
    std::unique_ptr<Lease::Kept> kept;
};

GraphCache::Lease::Lease(llama_context& context, Kept* kept, bool is_new)
    : context_(context), kept_(kept), is_new_(is_new) {
    if (kept_ != nullptr) kept_->change_places(context_);
}

GraphCache::Lease::Lease(Lease&& other) noexcept
    : context_(other.context_), kept_(std::exchange(other.kept_, nullptr)), is_new_(other.is_new_) {}

GraphCache::Lease::~Lease() {
    if (kept_ != nullptr) kept_->change_places(context_);
}

GraphCache::GraphCache(llama_context& context, std::size_t n_most) : context_(context), n_most_(n_most) {}

GraphCache::~GraphCache() = default;

bool GraphCache::may_keep(const CallShape& shape) { return shape.n_tokens >= 1 && shape.n_tokens <= kMostTokens; }

GraphCache::Lease GraphCache::lease(const CallShape& shape) {
    if (n_most_ == 0 || !may_keep(shape)) return {context_, nullptr};
    if (context_.*member_of(NeedsReserve{})) forget_all();
    ++n_calls_;
    Known& known = know(shape);
    known.use_before = std::exchange(known.last_use, n_calls_);
    bool is_new = known.use_before == 0;
    if (!known.kept && !is_new && make_room(known)) {
        known.kept = create(shape);
        is_new = true;
    }
    return {context_, known.kept.get(), is_new};
}

// Settings were changed that graphs depend on. libllama would notice during the call and drop what stands in then.
void GraphCache::forget_all() {
    context_.synchronize();
    for (const auto& known : known_) known->kept.reset();
    n_bytes_ = {};
    context_.sched_reserve();
}

GraphCache::Known& GraphCache::know(const CallShape& shape) {
    const auto found =
        std::find_if(known_.begin(), known_.end(), [&](const auto& known) { return known->shape == shape; });
    if (found != known_.end()) return **found;
    if (known_.size() >= kMostKnown) {
        // Kept ones are fewer than known ones, so there is one without a graph.
        const auto oldest = std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
            return std::pair(a->kept != nullptr, a->last_use) < std::pair(b->kept != nullptr, b->last_use);
        });
        known_.erase(oldest);
    }
    known_.push_back(std::make_unique<Known>());
    known_.back()->shape = shape;
    return *known_.back();
}

// Whether a further graph may be kept. The one unused longest goes if the newcomer was used since, twice counting now
// (LRU-2; O'Neil et al., 1993): shapes that come by once, or more of them in turn than fit, displace nothing.
bool GraphCache::make_room(const Known& newcomer) {
    std::size_t n_kept = 0;
    Known* oldest = nullptr;
    for (const auto& known : known_) {
        if (!known->kept) continue;
        ++n_kept;
        if (oldest == nullptr || known->last_use < oldest->last_use) oldest = known.get();
    }
    const bool has_bytes = n_bytes_.device < kMostDeviceBytes && n_bytes_.host < kMostHostBytes;
    if (n_kept < n_most_ && has_bytes) return true;
    if (oldest == nullptr || newcomer.use_before <= oldest->last_use) return false;
    context_.synchronize();
    n_bytes_.device -= oldest->kept->bytes.device;
    n_bytes_.host -= oldest->kept->bytes.host;
    oldest->kept.reset();
    return true;
}

// libllama would make it as large as a prompt's in the widest batch: megabytes, which have to be written page by page
// in the midst of an answer. REQUIRES: the context computes with what is to be kept.
void GraphCache::make_graph(const CallShape& shape, ggml_cgraph& full) {
    const std::int64_t n_most = context_.graph_max_nodes(static_cast<std::uint32_t>(shape.n_tokens));
    const std::int64_t n_nodes = std::min<std::int64_t>(n_most, kSpareNodes * ggml_graph_n_nodes(&full));
    (context_.*member_of(LastGraphs{}))[shape.n_outputs > 0 ? 1 : 0] = std::make_unique<llm_graph_result>(n_nodes);
}

// With buffers for a context that is full, so that no later call can fail for want of memory.
std::unique_ptr<GraphCache::Lease::Kept> GraphCache::create(const CallShape& shape) {
    auto& backends = context_.*member_of(Backends{});
    auto& buffer_types = context_.*member_of(BufferTypes{});
    const auto n_tokens = static_cast<std::uint32_t>(shape.n_tokens);
    auto kept = std::make_unique<Lease::Kept>();
    kept->scheduler.reset(ggml_backend_sched_new(backends.data(), buffer_types.data(),
                                                 static_cast<int>(backends.size()), context_.graph_max_nodes(n_tokens),
                                                 false, context_.get_cparams().op_offload));
    ggml_backend_sched_set_copy_callback(kept->scheduler.get(), member_of(CopyExperts{}), &context_);
    bool has_room = false;
    try {
        const auto n_sequences = static_cast<std::uint32_t>(std::max(shape.n_sequences, 1));
        const auto n_outputs = static_cast<std::uint32_t>(std::max(shape.n_outputs, 1));
        const llama_memory_context_ptr memory = context_.get_memory()->init_full();
        const Lease lease(context_, kept.get());
        ggml_cgraph* graph = memory ? context_.graph_reserve(n_tokens, n_sequences, n_outputs, memory.get()) : nullptr;
        has_room = graph != nullptr;
        if (has_room) make_graph(shape, *graph);
    } catch (const std::exception&) {
        has_room = false;
    }
    if (!has_room) {
        log_warn("no memory to keep the graph of a call of " + std::to_string(shape.n_tokens) +
                 " tokens: such calls are slower");
        n_most_ = 0;
        for (const auto& known : known_) n_most_ += known->kept ? 1 : 0;
        return nullptr;
    }
    for (ggml_backend_t backend : backends) {
        const ggml_backend_dev_t device = ggml_backend_get_device(backend);
        const bool is_host = device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        std::size_t& n = is_host ? kept->bytes.host : kept->bytes.device;
        n += ggml_backend_sched_get_buffer_size(kept->scheduler.get(), backend);
    }
    n_bytes_.device += kept->bytes.device;
    n_bytes_.host += kept->bytes.host;
    return kept;
}

}  // namespace luce::llama
