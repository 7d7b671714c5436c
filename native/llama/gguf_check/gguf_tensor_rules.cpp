// Rules for tensors: libllama checks each shape against the metadata itself, but not that a type can be computed with,
// nor the vocabulary's rows before it allocates. Must not know architectures beyond tensor names.
#include "llama/gguf_check/gguf_rules.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "ggml.h"

namespace luce::llama {
namespace {

// Tensors of ids rather than weights: routing by token, a drafter's map of its vocabulary.
bool holds_integers(std::string_view name) {
    return name.find("tid2eid") != std::string_view::npos || name == "d2t" || name == "t2d" ||
           name.starts_with("d2t.") || name.starts_with("t2d.");
}

bool is_plain_float(int type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

// The quantisations that exist only for activations have no kernel that reads them as weights.
bool is_weight_type(int type) {
    return is_plain_float(type) ||
           (ggml_is_quantized(static_cast<ggml_type>(type)) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
}

void check_type(GgufMetadata& gguf, const TensorInfo& tensor) {
    if (holds_integers(tensor.name)) {
        return;
    }
    const char* type = ggml_type_name(static_cast<ggml_type>(tensor.type));
    if (!is_weight_type(tensor.type)) {
        gguf.refuse("tensor " + printable(tensor.name) + " has type " + type + ", which is no type of weights");
    } else if (tensor.is_vector() && !is_plain_float(tensor.type) && tensor.name.ends_with("norm.weight")) {
        gguf.refuse("tensor " + printable(tensor.name) + " has type " + type + ", must not be quantised");
    }
}

}  // namespace

void check_tensors(GgufMetadata& gguf, const std::vector<TensorInfo>& tensors, const GgufFacts& facts) {
    if (tensors.empty()) {
        gguf.refuse("model has no tensors");
    }
    for (const TensorInfo& tensor : tensors) {
        if (std::any_of(std::begin(tensor.ne), std::end(tensor.ne), [](int64_t n) { return n <= 0; })) {
            gguf.refuse("tensor " + printable(tensor.name) + " has a dimension of 0");
        }
        check_type(gguf, tensor);
        if (tensor.name == "token_embd.weight" && static_cast<uint64_t>(tensor.ne[1]) != facts.n_vocab) {
            gguf.refuse("tensor token_embd.weight has " + std::to_string(tensor.ne[1]) + " rows for a vocabulary of " +
                        std::to_string(facts.n_vocab));
        }
    }
}

}  // namespace luce::llama
