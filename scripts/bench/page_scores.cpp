// page_scores THREADS QUERIES PAGES...: what finding out which pages of a text matter costs, by the text's length, on
// keys as the packaged model's: two KV heads of 48 dimensions that are compared, eight heads of queries.
//
// Keys and queries are random. Prints the median of so many choices, in microseconds: all pages' scores together, and
// by page.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "llama/model/backend.h"
#include "llama/scoring/key_index.h"
#include "needed.h"

using namespace luce;
using bench::fail;
using bench::need;

namespace {

constexpr llama::KeyShape kShape{8, 2, 48, 64};
constexpr int kRounds = 101;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<float> random_floats(std::mt19937& random, std::size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> floats(n);
    std::generate(floats.begin(), floats.end(), [&] { return normal(random); });
    return floats;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) fail("usage: page_scores THREADS QUERIES PAGES...");
    const llama::Backend backend;
    const auto index =
        need(llama::KeyIndex::create(kShape, std::atoi(argv[1]), llama::KeyIndex::Threads::of_computation));
    std::mt19937 random(1);
    const auto n_queries = static_cast<std::size_t>(std::atoi(argv[2]));
    const std::vector<float> queries = random_floats(random, n_queries * kShape.n_heads * kShape.n_dims);
    std::vector<memory::PageKeys> pages;
    for (int i = 3; i < argc; ++i) {
        const auto n_pages = static_cast<std::size_t>(std::atoi(argv[i]));
        while (pages.size() < n_pages) {
            pages.push_back(
                index->encode(random_floats(random, memory::kPageSize * kShape.n_heads_kv * kShape.n_dims)));
        }
        std::vector<double> taken_s;
        for (int round = 0; round < kRounds; ++round) {
            const double started_s = now_s();
            if (index->scores(queries, std::span(pages).first(n_pages)).size() != n_pages) fail("no scores");
            taken_s.push_back(now_s() - started_s);
        }
        const double us = median(taken_s) * 1e6;
        std::printf("%5zu pages %9.0f us %7.2f us a page\n", n_pages, us, us / static_cast<double>(n_pages));
    }
}
