// MemoryShortage: whether memory ran out just now, by what ggml's backends say: they tell it in words only, before they
// end the process. This is the one place that reads those words; the version of llama.cpp is pinned, and a test holds
// them. May be called from any thread.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

namespace luce::llama {

// Whether a text of a backend, or an exception of one, says that memory ran out.
bool tells_of_memory(std::string_view text);

class MemoryShortage {
public:
    void note(std::string_view text, double now_s);

    // The text that told of it; empty if none did, or too long ago to be why something fails now.
    std::string recent(double now_s) const;

private:
    mutable std::mutex mutex_;
    std::string text_;
    double noted_s_ = 0;
};

// What llama.cpp's log has told (Backend feeds it).
MemoryShortage& log_shortage();

}  // namespace luce::llama
