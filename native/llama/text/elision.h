// Elision: stretches of an answer that the parser does not have to see again.
//
// llama.cpp parses the whole answer anew. But what it does next depends neither on the middle of a long text that it
// has read, nor on how often something was repeated (answer_place.h), so these can be left out of what is parsed. This
// file proposes what; the caller proves it by parsing without it. Pure.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "llama/text/answer_place.h"

namespace luce::llama {

// Stretches of the input from n_fixed on, any one of which may be left out, the most promising first.
std::vector<Stretch> find_elisions(const AnswerPlace& place, std::string_view input, size_t n_fixed);

}  // namespace luce::llama
