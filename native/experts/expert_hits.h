// Whether the GPU should read a mixture's experts that do not fit it, or the processor compute them. Pure.
#pragma once

#include "experts/expert_profile.h"

namespace luce::experts {

// Bytes of experts a second.
struct ExpertRates {
    double link = 0;       // copied from the host's memory to the GPU
    double processor = 0;  // computed with, token by token
};

// Of the experts that answers use, the share that a device has if it holds the most used ones. What mixtures have in
// common where the profile has seen too little.
// `share`: of all experts, 0 to 1. Source of the common curve: llama.cpp's and others' measurements of real mixtures,
// 37-44 % at 6 % of the experts, 56-67 at 12, 79-81 at 25, 83-90 at 33, 96 at 52.
double hits_at(double share, const ExpertProfile& known);

// Answers wait either for what a bank with `share` of the experts lacks, or for the layers beyond that share. Within a
// model both ways reach about 0.6 of their rates (docs/benchmarks/experts.md).
bool is_reading_cheaper(double share, double hits, const ExpertRates& rates);

}  // namespace luce::experts
