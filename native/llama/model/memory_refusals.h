// MemoryRefusals: whether computations of a context were refused memory, for who can give it more.
#pragma once

#include <utility>

namespace luce::llama {

class MemoryRefusals {
public:
    void note() { has_new_ = true; }

    // An allocation threw in the middle of ggml's work: the context cannot be let go of any more, since ggml's CPU
    // backend would free its work buffer twice.
    void note_torn() { has_new_ = is_torn_ = true; }

    bool take() { return std::exchange(has_new_, false); }  // whether there was one since the last time
    bool is_torn() const { return is_torn_; }
    void forget() { *this = {}; }  // the context is another one

private:
    bool has_new_ = false;
    bool is_torn_ = false;
};

}  // namespace luce::llama
