// ExpertStream: prompts read nearly all experts, those on the host too. While the device computes with one weight, the
// host's part of the next ones is copied into stages on the device, over a stream of its own. A weight is seen for such
// calls at other addresses: its part on the device once more, and behind it a stage in place of the host's part.
//
// It stands between the scheduler and the device's backend: a call's graph is computed in pieces, and between two of
// them the device is told what to wait for. The host waits for nothing.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ggml-cpp.h>

#include "base/result.h"

namespace luce::llama {

// A weight as prompts read it.
struct StreamedWeight {
    ggml_tensor* seen = nullptr;      // at the addresses with the stage
    const std::byte* host = nullptr;  // the part to copy, to `offset` of `seen`
    std::size_t offset = 0;
    std::size_t n_bytes = 0;  // with what kernels may read behind the weight: a stage holds another one's bytes there
    std::size_t stage = 0;
    // Up to here it is copied by so many bytes: one copy may not cross what is mapped as one.
    std::size_t pieces_end = 0;
    std::size_t piece_bytes = 0;
};

class ExpertStream {
public:
    static constexpr std::size_t kStages = 3;  // one is read, one is there, one is on its way
    // Tokens of a call from which on it reads nearly all experts; below, the device reads those that it needs.
    static constexpr std::int64_t kFrom = 64;

    // Errors: out_of_memory.
    static Result<std::unique_ptr<ExpertStream>> make(ggml_backend_dev_t device,
                                                      const std::vector<StreamedWeight>& weights);
    ~ExpertStream();

    // Another part of it is the host's than before. Nothing may be running.
    void set(const StreamedWeight& weight);

    ExpertStream(const ExpertStream&) = delete;
    ExpertStream& operator=(const ExpertStream&) = delete;

    // From now on the backend's graphs are computed so, for as long as both live.
    void attach(ggml_backend_t backend);

private:
    ExpertStream() = default;
    static ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph);
    ggml_status compute_in_pieces(ggml_backend_t backend, ggml_cgraph* graph,
                                  ggml_status (*whole)(ggml_backend_t, ggml_cgraph*));
    void fill(const StreamedWeight& weight);

    std::unordered_map<const ggml_tensor*, StreamedWeight> weights_;  // by what is seen
    ggml_backend_ptr side_;
    std::array<ggml_backend_event_ptr, kStages> filled_;
    std::array<ggml_backend_event_ptr, kStages> read_;
    std::array<bool, kStages> was_read_{};
};

}  // namespace luce::llama
