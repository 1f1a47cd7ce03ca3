#pragma once
// From field lists to one flat array: two visitors of fields (tensor/parameters.hpp). ParameterTable writes the table
// with every tensor's name, shape and offset; FieldBinder walks the same list again and points the views into the
// arrays.

#include <string>
#include <string_view>
#include <vector>

#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"

namespace kimik3 {
namespace detail {

/// Elements that a field takes in the flat arrays: fields begin at multiples of 64 bytes of float.
constexpr Index padded_field(Index count) {
    return round_up(count, alignment_bytes / static_cast<Index>(sizeof(float)));
}

}  // namespace detail

class ParameterTable {
public:
    template <class View>
    void operator()(std::string_view name, View&, Index rows, Index cols, const FieldRule& rule) {
        add(name, {rows, cols}, rule, 0);
        close_field();
    }
    template <class View>
    void operator()(std::string_view name, View&, Index size, const FieldRule& rule) {
        add(name, {size}, rule, 0);
        close_field();
    }
    template <class View>
    void experts(std::string_view name, View&, Index experts, Index rows, Index cols, const FieldRule& rule) {
        const std::size_t mark = name.find("{}");
        for (Index e = 0; e < experts; ++e)
            add(std::string(name.substr(0, mark)) + std::to_string(e) + std::string(name.substr(mark + 2)),
                {rows, cols}, rule, experts);
        close_field();
    }

    /// Elements of a flat array that holds every tensor.
    Index size() const { return size_; }
    const std::vector<ParameterInfo>& entries() const { return entries_; }

private:
    void add(std::string_view name, std::vector<Index> shape, const FieldRule& rule, Index experts) {
        Index count = 1;
        for (Index extent : shape) count *= extent;
        entries_.push_back(
            {std::string(name), rule.shape.empty() ? std::move(shape) : rule.shape, size_, count, experts, rule});
        size_ += count;
    }
    void close_field() { size_ = detail::padded_field(size_); }

    std::vector<ParameterInfo> entries_;
    Index size_ = 0;
};

/// weights and kept: the flat arrays of the storage type and of the accumulator type (one array when the types are
/// equal).
template <class Weight, class Kept>
class FieldBinder {
public:
    FieldBinder(Weight* weights, Kept* kept) : weights_(weights), kept_(kept) {}

    template <class T>
    void operator()(std::string_view, MatrixView<T>& view, Index rows, Index cols, const FieldRule&) {
        view = {place<T>(rows * cols), rows, cols};
    }
    template <class T>
    void operator()(std::string_view, VectorView<T>& view, Index size, const FieldRule&) {
        view = {place<T>(size), size};
    }
    template <class T>
    void experts(std::string_view, MatrixView<T>& view, Index experts, Index rows, Index cols, const FieldRule&) {
        view = {place<T>(experts * rows * cols), experts * rows, cols};
    }

private:
    template <class T>
    T* place(Index count) {
        const Index begin = offset_;
        offset_ += detail::padded_field(count);
        if constexpr (std::is_same_v<T, Weight>) return weights_ + begin;
        else return kept_ + begin;
    }

    Weight* weights_;
    Kept* kept_;
    Index offset_ = 0;
};

}  // namespace kimik3
