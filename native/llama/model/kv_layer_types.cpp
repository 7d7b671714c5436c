#include "llama/model/kv_layer_types.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "llama-model.h"

namespace luce::llama {
namespace {

using Layers = std::vector<std::uint32_t>;

ggml_type& side(KvCacheTypes& types, bool of_keys) { return of_keys ? types.k : types.v; }
ggml_type side(const KvCacheTypes& types, bool of_keys) { return of_keys ? types.k : types.v; }

Layers cached_layers(const llama_hparams& hparams) {
    Layers layers;
    for (std::uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (!hparams.is_recr(il) && hparams.has_kv(il)) layers.push_back(il);
    }
    return layers;
}

std::optional<std::uint32_t> number(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// "3" or "0-7". None: it is neither.
std::optional<std::pair<std::uint32_t, std::uint32_t>> range(std::string_view text) {
    const std::size_t dash = text.find('-');
    const auto first = number(text.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    return std::pair{*first, *last};
}

class RuleReader {
public:
    RuleReader(const llama_model* model, const KvRules& rules, const Layers& cached, bool of_keys)
        : hparams_(model->hparams), rules_(rules), cached_(cached), of_keys_(of_keys) {}

    Result<void> read(std::string_view rule, std::vector<KvCacheTypes>& types) const {
        for (std::size_t begin = 0; begin <= rule.size();) {
            const std::size_t end = std::min(rule.find(',', begin), rule.size());
            if (Result<void> done = read_part(rule.substr(begin, end - begin), types); !done) return done;
            begin = end + 1;
        }
        return {};
    }

private:
    Result<void> read_part(std::string_view part, std::vector<KvCacheTypes>& types) const {
        const std::size_t colon = part.find(':');
        const bool has_layers = colon != std::string_view::npos;
        const Result<ggml_type> type = parse_kv_cache_type(std::string(has_layers ? part.substr(colon + 1) : part));
        if (!type) return refused(type.error().text);
        if (!has_layers) {
            for (KvCacheTypes& of_layer : types) side(of_layer, of_keys_) = type.value();
            return {};
        }
        const Result<Layers> chosen = layers(part.substr(0, colon));
        if (!chosen) return chosen.error();
        for (const std::uint32_t il : chosen.value()) side(types[il], of_keys_) = type.value();
        return {};
    }

    Result<Layers> layers(std::string_view selector) const {
        std::function<bool(std::uint32_t)> is_chosen;
        if (selector == "attn") {
            is_chosen = [this](std::uint32_t il) { return !hparams_.is_swa(il); };
        } else if (selector == "swa") {
            is_chosen = [this](std::uint32_t il) { return hparams_.is_swa(il); };
        } else if (selector == "captured") {
            if (rules_.captured.empty())
                return refused("'captured' needs a --draft that reads from the model's layers");
            is_chosen = [this](std::uint32_t il) { return is_captured(il); };
        } else if (const auto span = range(selector)) {
            if (span->second >= hparams_.n_layer()) {
                return refused("layer " + std::to_string(span->second) + " is none of this model's, 0 to " +
                               std::to_string(hparams_.n_layer() - 1));
            }
            is_chosen = [span](std::uint32_t il) { return span->first <= il && il <= span->second; };
        } else {
            return refused("'" + std::string(selector) +
                           "' are no layers: give a number, a range such as 0-3, attn, swa or captured");
        }
        Layers chosen;
        std::copy_if(cached_.begin(), cached_.end(), std::back_inserter(chosen), is_chosen);
        if (chosen.empty()) return refused("no layer of '" + std::string(selector) + "' caches keys and values");
        return chosen;
    }

    // The last one that caches anything before a draft model reads.
    bool is_captured(std::uint32_t il) const {
        const auto next = std::upper_bound(cached_.begin(), cached_.end(), il);
        const std::uint32_t end = next == cached_.end() ? hparams_.n_layer() : *next;
        return std::any_of(rules_.captured.begin(), rules_.captured.end(),
                           [&](std::uint32_t reads_before) { return il < reads_before && reads_before <= end; });
    }

    Error refused(const std::string& why) const {
        return {ErrorCode::bad_args, std::string("--cache-type-") + (of_keys_ ? "k" : "v") + ": " + why};
    }

    const llama_hparams& hparams_;
    const KvRules& rules_;
    const Layers& cached_;
    bool of_keys_;
};

// Most layers', of equals the first by number.
ggml_type most_common(const std::vector<KvCacheTypes>& types, const Layers& cached, bool of_keys) {
    std::map<ggml_type, std::size_t> counts;
    for (const std::uint32_t il : cached) ++counts[side(types[il], of_keys)];
    const auto is_less = [](const auto& a, const auto& b) { return a.second < b.second; };
    return std::max_element(counts.begin(), counts.end(), is_less)->first;
}

}  // namespace

Result<KvLayerTypes> KvLayerTypes::make(const llama_model* model, const KvRules& rules, bool on_gpu) {
    KvCacheTypes usual = default_kv_cache_types(model, on_gpu);
    if (rules.flash_attention_off && ggml_is_quantized(usual.v)) usual.v = GGML_TYPE_F16;
    KvLayerTypes types;
    types.of_layer_.assign(model->hparams.n_layer(), usual);
    types.cached_ = cached_layers(model->hparams);
    for (const bool of_keys : {true, false}) {
        const auto& rule = of_keys ? rules.k : rules.v;
        if (!rule) continue;
        const RuleReader reader(model, rules, types.cached_, of_keys);
        if (Result<void> read = reader.read(*rule, types.of_layer_); !read) return read.error();
    }
    for (const std::uint32_t il : types.cached_) {
        const Result<void> fits = check_kv_cache_types(model, types.of(il), rules.flash_attention_off);
        if (!fits) return fits.error();
    }
    return types;
}

KvCacheTypes KvLayerTypes::of_context() const {
    KvCacheTypes chosen = of_layer_.empty() ? KvCacheTypes{} : of_layer_.front();
    for (const bool of_keys : {true, false}) {
        if (!cached_.empty()) side(chosen, of_keys) = most_common(of_layer_, cached_, of_keys);
        if (ggml_is_quantized(side(chosen, of_keys))) continue;
        const auto is_quantised = [&](std::uint32_t il) { return ggml_is_quantized(side(of(il), of_keys)); };
        const auto found = std::find_if(cached_.begin(), cached_.end(), is_quantised);
        if (found != cached_.end()) side(chosen, of_keys) = side(of(*found), of_keys);
    }
    return chosen;
}

std::string KvLayerTypes::text(bool of_keys) const {
    if (cached_.empty()) return ggml_type_name(side(of_context(), of_keys));
    const ggml_type usual = most_common(of_layer_, cached_, of_keys);
    std::string text = ggml_type_name(usual);
    for (std::size_t i = 0, end = 0; i < cached_.size(); i = end) {
        const ggml_type type = side(of(cached_[i]), of_keys);
        for (end = i + 1; end < cached_.size() && side(of(cached_[end]), of_keys) == type;) ++end;
        if (type == usual) continue;
        text += "," + std::to_string(cached_[i]);
        if (end - i > 1) text += "-" + std::to_string(cached_[end - 1]);
        text.append(":").append(ggml_type_name(type));
    }
    return text;
}

void KvLayerTypes::set(llama_model* model) const {
    for (const std::uint32_t il : cached_) {
        model->hparams.cache_type_k_arr[il] = static_cast<std::uint8_t>(of(il).k + 1);
        model->hparams.cache_type_v_arr[il] = static_cast<std::uint8_t>(of(il).v + 1);
    }
}

}  // namespace luce::llama
