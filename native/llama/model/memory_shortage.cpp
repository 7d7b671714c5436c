#include "llama/model/memory_shortage.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace luce::llama {
namespace {

constexpr double kRecent_s = 5;

// In small letters. cuBLAS takes its memory where it is first needed, and says one of the last four when there is none.
constexpr std::array<std::string_view, 10> kWords = {"insufficient memory",
                                                     "failed to allocate",
                                                     "bad_alloc",
                                                     "outofdevicememory",
                                                     "outofhostmemory",
                                                     "outofmemory",
                                                     "cublas_status_alloc_failed",
                                                     "cublas_status_not_initialized",
                                                     "the resource allocation failed",
                                                     "the library was not initialized"};

// `out of memory`, and with one word of whose: out_of_device_memory.
bool says_out_of_memory(std::string text) {
    std::ranges::replace(text, '_', ' ');
    constexpr std::string_view kOutOf = "out of ";
    for (std::size_t at = text.find(kOutOf); at != text.npos; at = text.find(kOutOf, at + 1)) {
        std::string_view rest = std::string_view(text).substr(at + kOutOf.size());
        if (rest.starts_with("memory")) return true;
        const std::size_t blank = rest.find(' ');
        if (blank != rest.npos && rest.substr(blank + 1).starts_with("memory")) return true;
    }
    return false;
}

}  // namespace

bool tells_of_memory(std::string_view text) {
    std::string small(text);
    std::ranges::transform(small, small.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto holds = [&small](std::string_view word) { return small.find(word) != small.npos; };
    return std::ranges::any_of(kWords, holds) || says_out_of_memory(small);
}

void MemoryShortage::note(std::string_view text, double now_s) {
    if (!tells_of_memory(text)) return;
    const std::lock_guard lock(mutex_);
    text_ = text;
    noted_s_ = now_s;
}

std::string MemoryShortage::recent(double now_s) const {
    const std::lock_guard lock(mutex_);
    return now_s - noted_s_ <= kRecent_s ? text_ : std::string();
}

MemoryShortage& log_shortage() {
    static MemoryShortage shortage;
    return shortage;
}

}  // namespace luce::llama
