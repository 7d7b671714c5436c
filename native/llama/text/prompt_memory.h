// PromptMemory: the prompts that were tokenised lately, so that a conversation's next one is cut and looked up only
// behind what it has in common with one before. Exact: it goes on at a special token that is one whatever stands around
// it. Any thread may use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "llama/text/prompt_tokens.h"

namespace luce::llama {

// A prompt and its ids.
struct KnownPrompt {
    std::string salt;  // whose it is: others do not learn that it is known
    uint64_t special;  // the serial of the special text by which it was cut
    std::shared_ptr<const std::string> text;
    PromptTokens tokens;
    struct Earlier {
        uint64_t serial = 0;
        size_t n_bytes = 0;
        size_t n_tokens = 0;
    };
    Earlier earlier = {};             // what it begins with of another one; serial 0: of none
    uint64_t serial = next_serial();  // no other's

    static uint64_t next_serial() {
        static std::atomic<uint64_t> latest = 0;
        return ++latest;
    }
};

// Of prompts without text that has to be kept from becoming special tokens, and without images.
class PromptMemory {
public:
    // Where a text goes on from a known one: before one of its anchors. known: null, if there is no such.
    struct Beginning {
        std::shared_ptr<const KnownPrompt> known;
        size_t n_anchors = 0;
    };

    explicit PromptMemory(size_t max_bytes) : max_bytes_(max_bytes) {}

    // n_ahead: bytes behind a special token that have a say in whether it is one.
    Beginning find(std::string_view salt, uint64_t special, std::string_view text, size_t n_ahead) const;

    // `before`: what it went on from, if that was so.
    void keep(std::shared_ptr<const KnownPrompt> prompt, const Beginning& before);

private:
    const size_t max_bytes_;
    mutable std::mutex mutex_;
    std::list<std::shared_ptr<const KnownPrompt>> prompts_;  // the latest first
    size_t n_bytes_ = 0;
};

}  // namespace luce::llama
