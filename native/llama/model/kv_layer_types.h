// KvLayerTypes: the number format of each layer's cached keys and values, by a rule such as "q8_0,0-3:f16,swa:q4_0".
//
// A rule is a list of [LAYERS:]TYPE; later ones win. LAYERS: a number from 0, a range A-B, `attn` (layers that see all
// of the text), `swa` (that see a window of it), `captured` (the last one before each place where a draft model reads).
// Without LAYERS it is for all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "llama/model/kv_cache_type.h"

namespace luce::llama {

struct KvRules {
    std::optional<std::string> k;  // unset: see kv_cache_type.h
    std::optional<std::string> v;
    std::vector<std::uint32_t> captured = {};  // layers whose input a draft model reads
    bool flash_attention_off = false;
};

class KvLayerTypes {
public:
    // Errors: bad_args, naming the part of the rule that is wrong or the layer that its type does not fit.
    static Result<KvLayerTypes> make(const llama_model* model, const KvRules& rules, bool on_gpu);

    KvCacheTypes of(std::uint32_t layer) const { return of_layer_[layer]; }

    // What a context is asked for: a quantised type where any layer has one, by which libllama decides whether keys or
    // values are rotated.
    KvCacheTypes of_context() const;

    // A rule that gives the same, one for all that do.
    std::string text(bool of_keys) const;

    // The model's contexts have these from here on.
    void set(llama_model* model) const;

private:
    std::vector<KvCacheTypes> of_layer_;
    std::vector<std::uint32_t> cached_;  // layers that have keys and values of their own
};

}  // namespace luce::llama
