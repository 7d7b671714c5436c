// bare_prefill: what reading so many tokens behind so many others costs libllama itself, to measure luced's prefixes
// against. Each line on stdin, "BEGIN END FILE", brings one text's positions [BEGIN, END) into the one lane, after
// those that it holds, and prints the seconds to the largest logit of the last one; BEGIN 0 empties the lane first.
//
// usage: bare_prefill MODEL CTX UBATCH THREADS CACHE_TYPE N_GPU_LAYERS

#include <iostream>

#include "bare_context.h"

int main(int argc, char** argv) {
    if (argc != 7) bare::fail("usage: MODEL CTX UBATCH THREADS CACHE_TYPE N_GPU_LAYERS");
    bare::start_library();
    const bare::ContextSettings settings{
        1, std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), bare::cache_type(argv[5]), std::atoi(argv[6])};
    bare::BareContext context(argv[1], settings);
    std::puts("ready");
    std::fflush(stdout);
    int begin = 0;
    int end = 0;
    std::string path;
    while (std::cin >> begin >> end >> std::ws && std::getline(std::cin, path)) {
        const std::vector<llama_token> text = bare::read_prompt(path);
        if (begin < 0 || begin >= end || static_cast<std::size_t>(end) > text.size()) bare::fail("no such positions");
        if (begin == 0) context.clear();
        const double started_s = bare::now_s();
        context.prefill(text, begin, end, 0);
        context.best(-1);
        std::printf("%.6f\n", bare::now_s() - started_s);
        std::fflush(stdout);
    }
    return 0;
}
