// PrivateMember: reaches a private member of one of llama.cpp's classes. An explicit instantiation may name private
// members (C++20 [temp.spec]/6), and the friend it defines hands the member pointer out. Nothing is cast or copied: a
// llama.cpp that renames the member or changes its type does not compile. Only where llama.cpp has no way of its own.
//
//     struct OutputIds { friend constexpr auto member_of(OutputIds); };
//     template struct PrivateMember<OutputIds, &llama_context::output_ids>;
//     … context.*member_of(OutputIds{}) …
//
// The tags stay in the one source file that uses them, in luce::llama itself: a friend is a member of the namespace
// that its class is in, so an anonymous namespace would make two functions of it. Each tag's name is used once.
#pragma once

namespace luce::llama {

template <typename Tag, auto kMember>
struct PrivateMember {
    friend constexpr auto member_of(Tag) { return kMember; }
};

}  // namespace luce::llama
