// PoolLimit: how many of a pool's cells should have memory, where that serves something else while they are not used.
// More are there at once when a call needs them; they go a step at a time when calls have not needed them for long, so
// that turns of a conversation do not make them come and go. Pure.
#pragma once

#include <cstdint>
#include <optional>

namespace luce::memory {

class PoolLimit {
public:
    // Calls in a row that need fewer before a step of them goes; then another one each so many.
    static constexpr int kCalm = 256;
    static constexpr int kBetween = 16;

    // With so many more at least, in steps.
    static std::int32_t grown(std::int32_t n_now, std::int32_t n_more, std::int32_t n_step, std::int32_t n_most);

    // A call needs so many cells, with those of the lanes that run; there are n_now. How many there should be, if
    // fewer: a step beside what is needed stays.
    std::optional<std::int32_t> note_call(std::int32_t n_needed, std::int32_t n_now, std::int32_t n_step);

private:
    int n_calm_ = 0;
};

}  // namespace luce::memory
