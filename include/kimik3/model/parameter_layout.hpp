#pragma once
// From field lists to one flat array. FieldBinder is the visitor of fields (tensor/parameters.hpp): on a first walk it
// fills a ParameterTable with every tensor's name, shape and offset, on a second one it points the views into the
// arrays that the table measures.

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"

namespace kimik3 {

class ParameterTable {
public:
    /// Elements of a flat array that holds every tensor.
    Index size() const { return size_; }
    const std::vector<ParameterInfo>& entries() const { return entries_; }

    void add(std::string name, Extents shape, const FieldRule& rule, Index offset, Index experts) {
        if (!rule.shape.empty()) shape = rule.shape;
        Index count = 1;
        for (const Index extent : shape) count *= extent;
        entries_.push_back({std::move(name), {shape.begin(), shape.end()}, offset, count, experts, rule});
    }
    void resize(Index size) { size_ = size; }

private:
    std::vector<ParameterInfo> entries_;
    Index size_ = 0;
};

namespace detail {

/// The walk itself: not a template, so that a field costs the compiler one call, and cold, so that the lists of fields
/// are compiled for size.
class FieldWalk {
public:
    class Prefix {
    public:
        [[gnu::cold, gnu::noinline]] Prefix(std::string& whole, std::string_view part)
            : whole_(whole), length_(whole.size()) {
            whole.append(part);
        }
        Prefix(const Prefix&) = delete;
        Prefix& operator=(const Prefix&) = delete;
        [[gnu::cold, gnu::noinline]] ~Prefix() { whole_.erase(length_); }

    private:
        std::string& whole_;
        std::size_t length_;
    };

    [[nodiscard]] Prefix within(std::string_view prefix) { return {prefix_, prefix}; }
    [[nodiscard, gnu::noinline]] Prefix within_layer(Index layer) {
        return {prefix_, "model.layers." + std::to_string(layer) + "."};
    }

protected:
    explicit FieldWalk(ParameterTable* table) : table_(table) {}

    /// The offset of a field, which begins at a multiple of 64 bytes of float; a matrix has zeros below it (row_unit).
    /// The table gets its tensors.
    [[gnu::cold, gnu::noinline]] Index place(std::string_view name, Index experts, Extents shape,
                                             const FieldRule& rule) {
        const Index begin = offset_;
        Index count = 1;
        for (const Index extent : shape) count *= extent;
        Index all = count * (std::max)(Index{1}, experts);
        if (shape.size() == 2) all = round_up(all, row_unit * shape.begin()[1]);
        offset_ += round_up(all, alignment_bytes / static_cast<Index>(sizeof(float)));
        if (table_ == nullptr) return begin;
        if (experts == 0) table_->add(prefix_ + std::string(name), shape, rule, begin, 0);
        const std::size_t mark = name.find("{}");
        for (Index e = 0; e < experts; ++e)
            table_->add(prefix_ + std::string(name.substr(0, mark)) + std::to_string(e) +
                            std::string(name.substr(mark + 2)),
                        shape, rule, begin + e * count, experts);
        table_->resize(offset_);
        return begin;
    }

private:
    ParameterTable* table_;
    std::string prefix_;
    Index offset_ = 0;
};

}  // namespace detail

/// Views of Weight lie in the array weights, those of Kept in the array kept (one array when the types are equal).
template <class Weight, class Kept>
class FieldBinder : public detail::FieldWalk {
public:
    /// Fills the table; the views get shapes and no memory.
    explicit FieldBinder(ParameterTable& table) : FieldWalk(&table) {}
    FieldBinder(Weight* weights, Kept* kept) : FieldWalk(nullptr), weights_(weights), kept_(kept) {}

    template <class T>
    [[gnu::cold, gnu::noinline]] void operator()(std::string_view name, MatrixView<T>& view, Index rows, Index cols,
                                                 const FieldRule& rule) {
        view = {at<T>(place(name, 0, {rows, cols}, rule)), rows, cols};
    }
    template <class T>
    [[gnu::cold, gnu::noinline]] void operator()(std::string_view name, VectorView<T>& view, Index size,
                                                 const FieldRule& rule) {
        view = {at<T>(place(name, 0, {size}, rule)), size};
    }
    template <class T>
    void experts(std::string_view name, MatrixView<T>& view, Index experts, Index rows, Index cols,
                 const FieldRule& rule) {
        view = {at<T>(place(name, experts, {rows, cols}, rule)), experts * rows, cols};
    }

private:
    template <class T>
    T* at(Index offset) const {
        T* array = nullptr;
        if constexpr (std::is_same_v<T, Weight>) array = weights_;
        else array = kept_;
        return array == nullptr ? nullptr : array + offset;
    }

    Weight* weights_ = nullptr;
    Kept* kept_ = nullptr;
};

}  // namespace kimik3
