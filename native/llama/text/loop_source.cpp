// LoopSource: see the header.
#include "llama/text/loop_source.h"

#include <map>

namespace luce::llama {

namespace {

using jinja::statement;
using jinja::statement_ptr;
using jinja::statements;

template <typename T>
const T* as(const statement& node) {
    return dynamic_cast<const T*>(&node);
}

const std::string* name_in(const statement_ptr& node) {
    const auto* identifier = jinja::cast_stmt<jinja::identifier>(node);
    return identifier == nullptr ? nullptr : &identifier->val;
}

// Each kind of statement and its parts. `visit` gets each part that is there; true: the kind is known.
template <typename Visit>
bool visit_parts(const statement& node, const Visit& visit) {
    const auto one = [&](const statement_ptr& part) {
        if (part != nullptr) {
            visit(*part);
        }
    };
    const auto all = [&](const statements& parts) {
        for (const statement_ptr& part : parts) {
            one(part);
        }
    };
    if (const auto* p = as<jinja::if_statement>(node)) {
        one(p->test), all(p->body), all(p->alternate);
    } else if (const auto* p = as<jinja::for_statement>(node)) {
        one(p->loopvar), one(p->iterable), all(p->body), all(p->default_block);
    } else if (const auto* p = as<jinja::set_statement>(node)) {
        one(p->assignee), one(p->val), all(p->body);
    } else if (const auto* p = as<jinja::macro_statement>(node)) {
        all(p->args), all(p->body);
    } else if (const auto* p = as<jinja::call_statement>(node)) {
        one(p->call), all(p->caller_args), all(p->body);
    } else if (const auto* p = as<jinja::filter_statement>(node)) {
        one(p->filter), all(p->body);
    } else if (const auto* p = as<jinja::member_expression>(node)) {
        one(p->object), one(p->property);
    } else if (const auto* p = as<jinja::call_expression>(node)) {
        one(p->callee), all(p->args);
    } else if (const auto* p = as<jinja::array_literal>(node)) {
        all(p->val);
    } else if (const auto* p = as<jinja::tuple_literal>(node)) {
        all(p->val);
    } else if (const auto* p = as<jinja::object_literal>(node)) {
        for (const auto& [key, value] : p->val) {
            one(key), one(value);
        }
    } else if (const auto* p = as<jinja::binary_expression>(node)) {
        one(p->left), one(p->right);
    } else if (const auto* p = as<jinja::filter_expression>(node)) {
        one(p->operand), one(p->filter);
    } else if (const auto* p = as<jinja::select_expression>(node)) {
        one(p->lhs), one(p->test);
    } else if (const auto* p = as<jinja::test_expression>(node)) {
        one(p->operand), one(p->test);
    } else if (const auto* p = as<jinja::unary_expression>(node)) {
        one(p->argument);
    } else if (const auto* p = as<jinja::slice_expression>(node)) {
        one(p->start_expr), one(p->stop_expr), one(p->step_expr);
    } else if (const auto* p = as<jinja::keyword_argument_expression>(node)) {
        one(p->val);  // its key names a parameter
    } else if (const auto* p = as<jinja::spread_expression>(node)) {
        one(p->argument);
    } else if (const auto* p = as<jinja::ternary_expression>(node)) {
        one(p->condition), one(p->true_expr), one(p->false_expr);
    } else {
        return as<jinja::identifier>(node) || as<jinja::string_literal>(node) || as<jinja::integer_literal>(node) ||
               as<jinja::float_literal>(node) || as<jinja::noop_statement>(node) ||
               as<jinja::comment_statement>(node) || as<jinja::break_statement>(node) ||
               as<jinja::continue_statement>(node) || as<jinja::blank_expression>(node);
    }
    return true;
}

class LoopReader {
public:
    LoopReader(LoopSource& source, const MacroSource& macros) : source_(source), macros_(macros) {}

    void read_body(const jinja::for_statement& loop) {
        for (const statement_ptr& part : loop.body) {
            read(*part, false);
        }
        // What is called has been named by now, or by what is called.
        for (size_t n_read = 0, n_before = size_t(-1); n_read != n_before;) {
            n_before = n_read;
            for (const jinja::macro_statement* macro : macros_.all) {
                const std::string* name = name_in(macro->name);
                if (name != nullptr && source_.names.count(*name) > 0 && read_macros_.insert(macro).second) {
                    visit_parts(*macro, [&](const statement& part) { read(part, false); });
                    ++n_read;
                }
            }
        }
    }

private:
    // `in_loop`: within a loop of the body, whose `loop` is another one.
    void read(const statement& node, bool in_loop) {
        if (const auto* identifier = as<jinja::identifier>(node)) {
            read_name(identifier->val, in_loop);
        } else if (const auto* member = as<jinja::member_expression>(node)) {
            read_member(*member, in_loop);
        } else if (const auto* set = as<jinja::set_statement>(node)) {
            note_set(*set->assignee);
            read_parts(node, in_loop);
        } else if (const auto* loop = as<jinja::for_statement>(node)) {
            read(*loop->iterable, in_loop);
            for (const statement_ptr& part : loop->body) {
                read(*part, true);
            }
            for (const statement_ptr& part : loop->default_block) {
                read(*part, in_loop);
            }
        } else if (as<jinja::macro_statement>(node) != nullptr || as<jinja::call_statement>(node) != nullptr) {
            source_.is_known = false;
        } else {
            read_parts(node, in_loop);
        }
    }

    void read_parts(const statement& node, bool in_loop) {
        if (!visit_parts(node, [&](const statement& part) { read(part, in_loop); })) {
            source_.is_known = false;
        }
    }

    void read_name(const std::string& name, bool in_loop) {
        // The time is read by name alone.
        source_.is_known =
            source_.is_known && name != "strftime_now" && name != "caller" && (name != "loop" || in_loop);
        source_.names.insert(name);
    }

    void read_member(const jinja::member_expression& member, bool in_loop) {
        const std::string* name = name_in(member.object);
        const std::string* property = member.computed ? nullptr : name_in(member.property);
        const bool is_slice = jinja::is_stmt<jinja::slice_expression>(member.property);
        if (member.computed) {
            read(*member.property, in_loop);
        }
        if (name == nullptr || is_slice) {
            read(*member.object, in_loop);
        } else if (*name == "loop") {
            if (!in_loop && property != nullptr) {
                source_.loop_members.insert(*property);
            } else if (!in_loop) {
                source_.is_known = false;
            }
        } else if (property != nullptr) {
            source_.members.insert({*name, *property});
        } else {
            source_.arrays.insert(*name);
        }
    }

    void note_set(const statement& assignee) {
        if (const auto* identifier = as<jinja::identifier>(assignee)) {
            source_.set_names.insert(identifier->val);
        } else if (const auto* tuple = as<jinja::tuple_literal>(assignee)) {
            for (const statement_ptr& part : tuple->val) {
                note_set(*part);
            }
        } else if (const auto* member = as<jinja::member_expression>(assignee)) {
            const std::string* name = name_in(member->object);
            const std::string* property = name_in(member->property);
            if (name != nullptr && property != nullptr && !member->computed) {
                source_.set_members.insert({*name, *property});
            }
        }
    }

    LoopSource& source_;
    const MacroSource& macros_;
    std::set<const jinja::macro_statement*> read_macros_;
};

void collect_macros(const statement& node, MacroSource& macros, std::map<std::string, int>& n_meanings) {
    const auto means = [&](const statement_ptr& name) {
        if (const std::string* text = name_in(name)) {
            ++n_meanings[*text];
        }
    };
    if (const auto* macro = as<jinja::macro_statement>(node)) {
        macros.all.push_back(macro);
        means(macro->name);
        for (const statement_ptr& parameter : macro->args) {
            const auto* with_default = jinja::cast_stmt<jinja::keyword_argument_expression>(parameter);
            means(with_default == nullptr ? parameter : with_default->key);
        }
    } else if (const auto* set = as<jinja::set_statement>(node)) {
        means(set->assignee);
        if (const auto* tuple = jinja::cast_stmt<jinja::tuple_literal>(set->assignee)) {
            for (const statement_ptr& part : tuple->val) {
                means(part);
            }
        }
    }
    macros.has_blocks = macros.has_blocks || as<jinja::call_statement>(node) != nullptr;
    visit_parts(node, [&](const statement& part) { collect_macros(part, macros, n_meanings); });
}

void collect_direct_loops(const statements& body, std::set<const jinja::for_statement*>& loops) {
    for (const statement_ptr& part : body) {
        if (const auto* loop = as<jinja::for_statement>(*part)) {
            loops.insert(loop);
        } else if (const auto* either = as<jinja::if_statement>(*part)) {
            collect_direct_loops(either->body, loops);
            collect_direct_loops(either->alternate, loops);
        }
    }
}

}  // namespace

MacroSource::MacroSource(const jinja::program& program) {
    collect_direct_loops(program.body, direct_loops);
    std::map<std::string, int> n_meanings;
    for (const statement_ptr& part : program.body) {
        collect_macros(*part, *this, n_meanings);
    }
    for (const jinja::macro_statement* macro : all) {
        const std::string* name = name_in(macro->name);
        if (name != nullptr && n_meanings[*name] == 1 && jinja::global_builtins().count(*name) == 0) {
            names.insert(*name);
        }
    }
}

LoopSource::LoopSource(const jinja::for_statement& loop, const MacroSource& macros)
    : is_direct(macros.direct_loops.count(&loop) > 0) {
    LoopReader(*this, macros).read_body(loop);
    static const std::set<std::string> kOfLoop = {"index", "index0", "revindex", "revindex0", "first",
                                                  "last",  "length", "previtem", "nextitem"};
    for (const std::string& member : loop_members) {
        is_known = is_known && kOfLoop.count(member) > 0;
    }
    // What a turn may set but does not stays as it was.
    names.insert(set_names.begin(), set_names.end());
    members.insert(set_members.begin(), set_members.end());
    const std::string* item = name_in(loop.loopvar);
    is_known = is_known && item != nullptr && !macros.has_blocks;
    if (item != nullptr) {
        names.erase(*item);
        arrays.erase(*item);
        std::erase_if(members, [&](const MemberName& member) { return member.first == *item; });
        is_known = is_known && set_names.count(*item) == 0;
    }
    names.erase("loop");
    std::erase_if(arrays, [&](const std::string& name) { return names.count(name) > 0; });
    std::erase_if(members, [&](const MemberName& member) { return names.count(member.first) > 0; });
}

}  // namespace luce::llama
