#pragma once
// Regular expressions as finite automata over ASCII, which decide most searches of a tokenizer faster than
// backtracking. Read are alternatives of single characters with greedy quantifiers, groups without one or with ?, and
// looking ahead at one character; that is what published split patterns have. A state is the list of the places in the
// pattern that backtracking would try, in its order, so the match is the same (Cox 2009, "Regular Expression Matching:
// the Virtual Machine Approach"); it is closed over empty steps only when the next byte, which looking ahead sees, is
// known. Where a byte that is not ASCII decides, the automaton does not.

#include <algorithm>
#include <array>
#include <bitset>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/text/utf8.hpp"

namespace kimik3::detail {

using AsciiSet = std::bitset<128>;

/// One place of a pattern's program.
struct AsciiStep {
    enum Kind : std::uint8_t { one, either, ahead, match };
    Kind kind = match;
    AsciiSet set{};       // one, ahead: the characters
    bool at_end = false;  // ahead: whether the end of the text will do
    std::size_t next = 0, other = 0;  // either: next is tried first
};

/// A pattern in PCRE2's syntax -> steps, from the last to the first.
template <class SetOf>
class AsciiProgram {
public:
    /// set_of(item) is the set of the ASCII characters that a pattern for one character matches.
    AsciiProgram(std::string_view pattern, SetOf set_of) : in_(pattern), set_of_(std::move(set_of)) {
        const Alternatives whole = alternatives(false);
        if (at_ < in_.size()) refuse();
        steps_.push_back({});
        if (good_) start_ = emit(whole, 0);
    }

    bool good() const { return good_; }
    std::size_t start() const { return start_; }
    const std::vector<AsciiStep>& steps() const { return steps_; }

private:
    struct Part;
    using Alternatives = std::vector<std::vector<Part>>;
    struct Part {
        AsciiStep step{};  // match: a group
        Alternatives group{};
        std::size_t least = 1, most = 1;
    };
    static constexpr std::size_t endless = std::size_t(-1), most_steps = 256;

    bool sees(std::string_view text) const { return in_.substr(at_, text.size()) == text; }
    bool sees_any(std::string_view of) const { return at_ < in_.size() && of.find(in_[at_]) != of.npos; }
    bool takes(std::string_view text) {
        if (!sees(text)) return false;
        at_ += text.size();
        return true;
    }
    void refuse() { good_ = false, at_ = in_.size(); }
    void expect(std::string_view text) {
        if (!takes(text)) refuse();
    }

    Alternatives alternatives(bool fold) {
        Alternatives all;
        do {
            all.emplace_back();
            while (at_ < in_.size() && !sees_any("|)")) all.back().push_back(part(fold));
        } while (takes("|"));
        return all;
    }

    Part part(bool fold) {
        Part part;
        if (sees("(?!") || sees("(?=")) {
            part.step = {.kind = AsciiStep::ahead, .at_end = in_[at_ + 2] == '!'};
            at_ += 3;
            part.step.set = item(fold);
            if (part.step.at_end) part.step.set.flip();
            expect(")");
        } else if (takes("(?i:") || takes("(?:")) {
            part.group = alternatives(fold || in_[at_ - 2] == 'i');
            expect(")");
            if (takes("?")) part.least = 0;
        } else {
            part.step = {.kind = AsciiStep::one, .set = item(fold)};
            quantifier(part);
        }
        if (sees_any("?*+{")) refuse();
        return part;
    }

    void quantifier(Part& part) {
        if (takes("?")) part.least = 0;
        else if (takes("*")) part.least = 0, part.most = endless;
        else if (takes("+")) part.most = endless;
        if (!takes("{")) return;
        part.least = part.most = number();
        if (takes(",")) part.most = sees("}") ? endless : number();
        if (part.most < part.least) refuse();
        expect("}");
    }

    std::size_t number() {
        std::size_t value = 0;
        if (!sees_any("0123456789")) refuse();
        for (; sees_any("0123456789"); ++at_) value = (std::min)(most_steps, 10 * value + to_size(in_[at_] - '0'));
        return value;
    }

    AsciiSet item(bool fold) {
        const std::size_t begin = at_;
        if (at_ == in_.size() || sees_any("^$*+?{()|")) refuse();
        else if (takes("[")) skip_class();
        else if (takes("\\")) skip_escape();
        else at_ += to_size(utf8_unit(in_, static_cast<Index>(at_)).bytes);
        if (!good_) return {};
        return set_of_((fold ? "(?i:" : "(?:") + std::string(in_.substr(begin, at_ - begin)) + ")");
    }

    void skip_class() {
        while (at_ < in_.size() && !takes("]")) {
            if (takes("\\")) ++at_;
            else if (sees("[:")) skip_to(":]");
            else ++at_;
        }
    }

    void skip_escape() {
        if (sees("p{") || sees("P{") || sees("x{")) skip_to("}");
        else if (sees_any("dDtrnf!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ")) ++at_;
        else refuse();
    }

    void skip_to(std::string_view end) {
        const std::size_t found = in_.find(end, at_);
        if (found == in_.npos) refuse();
        else at_ = found + end.size();
    }

    /// Adds a step; too many are refused.
    std::size_t emit(AsciiStep step) {
        if (steps_.size() == most_steps) good_ = false;
        else steps_.push_back(step);
        return steps_.size() - 1;
    }

    std::size_t emit(const Alternatives& all, std::size_t next) {
        std::size_t first = emit(all.back(), next);
        for (std::size_t i = all.size() - 1; i-- > 0;)
            first = emit({.kind = AsciiStep::either, .next = emit(all[i], next), .other = first});
        return first;
    }

    std::size_t emit(const std::vector<Part>& sequence, std::size_t next) {
        for (auto part = sequence.rbegin(); part != sequence.rend(); ++part) next = emit(*part, next);
        return next;
    }

    std::size_t emit(const Part& part, std::size_t next) {
        const auto body = [&](std::size_t after) {
            if (part.step.kind == AsciiStep::match) return emit(part.group, after);
            AsciiStep step = part.step;
            step.next = after;
            return emit(step);
        };
        std::size_t first = next;
        if (part.most == endless) {
            first = emit({.kind = AsciiStep::either, .other = next});
            const std::size_t repeated = body(first);
            steps_[first].next = repeated;
        } else {
            for (std::size_t i = part.least; good_ && i < part.most; ++i)
                first = emit({.kind = AsciiStep::either, .next = body(first), .other = next});
        }
        for (std::size_t i = 0; good_ && i < part.least; ++i) first = body(first);
        return first;
    }

    std::string_view in_;
    SetOf set_of_;
    std::size_t at_ = 0, start_ = 0;
    bool good_ = true;
    std::vector<AsciiStep> steps_;
};

/// Immutable.
class AsciiAutomaton {
public:
    /// Nothing where the pattern has more than is read here, or too many states.
    template <class SetOf>
    static std::optional<AsciiAutomaton> of(std::string_view pattern, SetOf set_of) {
        const AsciiProgram<SetOf> program(pattern, std::move(set_of));
        AsciiAutomaton automaton;
        if (!program.good() || !automaton.build(program.steps(), program.start())) return std::nullopt;
        return automaton;
    }

    /// Moves `from` to the first place where the match may begin. Returns the end of the match that begins there, or
    /// -1 where there is none, which is certain at the end of the text, or the automaton cannot say.
    Index match(std::string_view text, Index& from) const {
        const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
        const Index size = static_cast<Index>(text.size());
        while (from < size && rows_[first_state][bytes[from]] == dead) ++from;
        Index end = -1;
        const Row* row = &rows_[first_state];
        std::uint16_t last = first_state;
        for (Index at = from; at < size; ++at) {
            const std::uint16_t entry = (*row)[bytes[at]];
            if (entry & matched) end = at;
            if (entry == last) continue;  // the row is known without waiting for it
            const std::size_t state = entry & (matched - 1);
            if (state == dead) return end;
            if (state == undecided) return -1;
            row = &rows_[state];
            last = entry;
        }
        return matches_at_end_[to_size(row - rows_.data())] ? size : end;
    }

private:
    using Places = std::vector<std::size_t>;
    using Row = std::array<std::uint16_t, 256>;
    enum : std::uint16_t { dead, undecided, first_state, most_states = 128, matched = 0x8000 };

    /// The places before a byte (-1: the end of the text) -> those behind it; whether the match ends before it.
    static bool advance(const std::vector<AsciiStep>& steps, const Places& places, int byte, Places& next) {
        std::vector<bool> seen(steps.size());
        Places stack(places.rbegin(), places.rend());
        next.clear();
        while (!stack.empty()) {
            const std::size_t place = stack.back();
            const AsciiStep& step = steps[place];
            stack.pop_back();
            if (seen[place]) continue;
            seen[place] = true;
            const bool fits = byte < 0 ? step.at_end : step.set[to_size(byte)];
            if (step.kind == AsciiStep::match) return true;  // what is tried later is not tried any more
            if (step.kind == AsciiStep::either) stack.insert(stack.end(), {step.other, step.next});
            else if (fits && step.kind == AsciiStep::ahead) stack.push_back(step.next);
            else if (fits && std::ranges::find(next, step.next) == next.end()) next.push_back(step.next);
        }
        return false;
    }

    bool build(const std::vector<AsciiStep>& steps, std::size_t start) {
        std::map<Places, std::uint16_t> numbers{{{}, dead}, {{start}, first_state}};
        std::vector<Places> states{{}, {}, {start}};
        Places next;
        rows_.resize(first_state);
        matches_at_end_.resize(first_state);
        for (std::size_t state = first_state; state < states.size(); ++state) {
            if (state == most_states) return false;
            const Places places = states[state];
            auto& row = rows_.emplace_back();
            row.fill(undecided);
            for (int byte = 0; byte < 128; ++byte) {
                const bool ends = advance(steps, places, byte, next);
                const auto [entry, fresh] = numbers.try_emplace(next, static_cast<std::uint16_t>(states.size()));
                if (fresh) states.push_back(next);
                row[to_size(byte)] = static_cast<std::uint16_t>(entry->second | (ends ? matched : 0));
            }
            matches_at_end_.push_back(advance(steps, places, -1, next));
        }
        return true;
    }

    std::vector<Row> rows_;  // state, byte -> state, and whether the match ends before the byte
    std::vector<bool> matches_at_end_;
};

}  // namespace kimik3::detail
