#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>

#include "io/allocation.hpp"
#include "io/files.hpp"
#include "kimik3/io/gguf_writer.hpp"
#include "support/file_size_limit.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// The bytes of a file, piece by piece.
struct Bytes {
    std::string all;

    template <class T>
    Bytes& number(T value) {
        all.append(reinterpret_cast<const char*>(&value), sizeof value);
        return *this;
    }
    Bytes& text(std::string_view value) {
        number(std::uint64_t{value.size()});
        all.append(value);
        return *this;
    }
    Bytes& pad(std::size_t alignment = 32) {
        all.resize((all.size() + alignment - 1) / alignment * alignment);
        return *this;
    }
};

Bytes header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    Bytes bytes{"GGUF"};
    return bytes.number(version).number(tensors).number(keys);
}

Bytes& tensor(Bytes& bytes, std::string_view name, const std::vector<std::uint64_t>& ne, std::uint32_t type,
              std::uint64_t offset) {
    bytes.text(name).number(static_cast<std::uint32_t>(ne.size()));
    for (const std::uint64_t extent : ne) bytes.number(extent);
    return bytes.number(type).number(offset);
}

/// What opening such a file says; on the way no single allocation may exceed eight times the file by more than 1 MiB: a
/// text of a list takes at least 8 bytes in the file and 32 in memory, in a list that may have room for twice as many.
std::string opening(std::string_view bytes) {
    const TemporaryFolder folder;
    const std::string path = folder / "file.gguf";
    put(path, bytes);
    largest_allocation_bytes = 0;
    const std::string said = refusal([&] { GgufFile file(path); });
    BOOST_TEST(largest_allocation_bytes <= 8 * bytes.size() + (std::size_t{1} << 20));
    if (said != "accepted") BOOST_TEST(contains(said, path), said);
    return said;
}

void check_refused(const Bytes& bytes, std::string_view part) {
    const std::string said = opening(bytes.all);
    BOOST_TEST(contains(said, part), "'" << part << "' is not in: " << said);
}

/// Numbers that every type but q8_0 holds exactly, and some that it does not.
std::vector<float> numbers(std::size_t count) {
    std::vector<float> all;
    for (std::size_t i = 0; i < count; ++i)
        all.push_back(0.125f * static_cast<float>(static_cast<int>(i * 37 % 101) - 50));
    return all;
}

GgufTensorToWrite in_memory(std::string name, GgufType type, std::vector<Index> shape, const std::vector<float>& all) {
    return {std::move(name), type, std::move(shape), [&all](const auto& sink) { sink(all); }};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gguf)

BOOST_AUTO_TEST_CASE(keys_of_every_kind_come_back) {
    const GgufMetadata metadata = {
        {"u8", std::uint8_t{255}}, {"i8", std::int8_t{-128}}, {"u16", std::uint16_t{65535}},
        {"i16", std::int16_t{-32768}}, {"u32", std::uint32_t{4294967295}}, {"i32", std::int32_t{-7}}, {"f32", 0.1f},
        {"yes", true}, {"text", std::string("a\0\xC3\xA9", 4)}, {"u64", ~std::uint64_t{0}},
        {"i64", std::int64_t{-1} << 62}, {"f64", 0.1}, {"empty", std::vector<float>{}},
        {"bytes", std::vector<std::uint8_t>{1, 2}}, {"i8s", std::vector<std::int8_t>{-1}},
        {"u16s", std::vector<std::uint16_t>{3}}, {"i16s", std::vector<std::int16_t>{-3}},
        {"u32s", std::vector<std::uint32_t>{4}}, {"i32s", std::vector<std::int32_t>{-4, 5}},
        {"floats", std::vector<float>{0.5f, -0.25f}}, {"bools", std::vector<bool>{true, false, true}},
        {"texts", std::vector<std::string>{"", "x", std::string(70000, 'y')}},
        {"u64s", std::vector<std::uint64_t>{6}}, {"i64s", std::vector<std::int64_t>{-6}},
        {"doubles", std::vector<double>{1e300}},
    };
    const TemporaryFolder folder;
    write_gguf(folder / "keys", metadata, {});
    const GgufFile file(folder / "keys");
    BOOST_TEST((file.metadata() == metadata));
    BOOST_TEST(*file.get<Index>("u8") == 255);
    BOOST_TEST(*file.get<Index>("i64") == -(Index{1} << 62));
    BOOST_TEST(!file.get<Index>("nothing"));
    KIMIK3_CHECK_REFUSED(file.get<Index>("u64"), "key 'u64' is a uint64 and cannot be taken as a int64");
    KIMIK3_CHECK_REFUSED(file.get<float>("texts"), "key 'texts' is an array of string");
    KIMIK3_CHECK_REFUSED(file.get<Index>("yes"), "key 'yes' is a bool");
    KIMIK3_CHECK_REFUSED(file.at<float>("nothing"), "has no key 'nothing'");
}

BOOST_AUTO_TEST_CASE(tensors_of_the_four_types_come_back) {
    const std::vector<float> all = numbers(3 * 64);
    std::vector<GgufTensorToWrite> tensors;
    const GgufType types[] = {GgufType::q8_0, GgufType::f32, GgufType::bf16, GgufType::f16};
    for (const GgufType type : types)
        tensors.push_back(in_memory(std::string(describe(type).name), type, {3, 1, 64}, all));
    const std::vector<float> odd = numbers(5), none;
    tensors.push_back(in_memory("odd", GgufType::f16, {5}, odd));
    tensors.push_back(in_memory("none", GgufType::f32, {0, 3}, none));
    tensors.push_back({"last", GgufType::f32, {}, [&](const auto& sink) { sink(std::span(odd).first(1)); }});
    const TemporaryFolder folder;
    write_gguf(folder / "file", {}, tensors);
    const GgufFile file(folder / "file");
    BOOST_TEST(file.tensors().size() == tensors.size());
    for (const GgufTensorToWrite& written : tensors) {
        const GgufTensor& read = file.find(written.name);
        BOOST_TEST((read.type == written.type));
        BOOST_TEST(read.shape == written.shape, boost::test_tools::per_element());
        BOOST_TEST(read.file_offset % 32 == 0);
    }
    for (const GgufType type : types) {
        std::vector<float> values(all.size());
        file.read(describe(type).name, values.data(), static_cast<Index>(values.size()));
        for (std::size_t i = 0; i < all.size(); ++i) {
            float largest = 0;  // of the block
            for (std::size_t e = i / 32 * 32; e < i / 32 * 32 + 32; ++e)
                largest = (std::max)(largest, std::fabs(all[e]));
            const float error = type == GgufType::q8_0 ? largest * (0.5f / 127 + 127 * 0x1p-11f / 127) : 0;
            BOOST_TEST(std::fabs(values[i] - all[i]) <= error);
        }
    }
    float value = 0;
    file.read("last", &value, 1);
    BOOST_TEST(value == odd[0]);
    KIMIK3_CHECK_REFUSED(file.read("last", &value, 2), "tensor 'last'");
    KIMIK3_CHECK_REFUSED(file.find("lost"), "has no tensor 'lost'; the nearest name is 'last'");
}

BOOST_AUTO_TEST_CASE(q8_0_is_a_scale_and_the_nearest_bytes_as_in_ggml) {
    std::vector<float> x(32, 0.0f);
    x[0] = 127, x[1] = -127, x[2] = 1.5f, x[3] = 2.5f, x[4] = -0.5f, x[5] = 0.4999f;
    const std::vector<std::byte> bytes = encode_gguf(GgufType::q8_0, x, "x");
    BOOST_TEST(bytes.size() == 34u);
    const int expected[] = {127, -127, 2, 3, -1, 0};  // halves go away from zero
    for (std::size_t e = 0; e < 6; ++e)
        BOOST_TEST(static_cast<int>(static_cast<signed char>(bytes[2 + e])) == expected[e]);
    std::vector<float> back(32);
    decode_gguf(GgufType::q8_0, bytes, back);
    BOOST_TEST(back[1] == -127);
    for (const float tiny : {0.0f, 1e-45f, 1e-38f, 1e-12f}) {  // the scale becomes zero
        std::ranges::fill(x, tiny);
        decode_gguf(GgufType::q8_0, encode_gguf(GgufType::q8_0, x, "x"), back);
        for (const float value : back) BOOST_TEST(value == 0);
    }
}

BOOST_AUTO_TEST_CASE(b47_what_a_type_does_not_hold_is_refused_with_its_place) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (const GgufType type : {GgufType::f32, GgufType::f16, GgufType::bf16, GgufType::q8_0}) {
        for (const float bad : {nan, infinity, -infinity}) {
            std::vector<float> x(64, 1.0f);
            x[33] = bad;
            KIMIK3_CHECK_REFUSED(encode_gguf(type, x, "a.b"), "element 33 of tensor 'a.b' is ");
        }
    }
    const std::vector<float> large(32, 70000.0f), larger(32, 1e7f), largest(32, 3.4e38f);
    KIMIK3_CHECK_REFUSED(encode_gguf(GgufType::f16, large, "x"), "element 0 of tensor 'x' is 70000, which f16");
    BOOST_TEST(encode_gguf(GgufType::q8_0, large, "x").size() == 34u);
    KIMIK3_CHECK_REFUSED(encode_gguf(GgufType::q8_0, larger, "x"), "is 10000000, which q8_0 does not hold");
    KIMIK3_CHECK_REFUSED(encode_gguf(GgufType::bf16, largest, "x"), "which bf16 does not hold");
    KIMIK3_CHECK_REFUSED(encode_gguf(GgufType::q8_0, std::span(large).first(31), "x"), "in blocks of 32, 31 are left");
    KIMIK3_CHECK_REFUSED(encode_gguf(GgufType::q4_k, large, "x"), "not as q4_k");
}

BOOST_AUTO_TEST_CASE(b56_lengths_and_counts_are_checked_before_they_are_used) {
    check_refused({""}, "is cut: the header");
    check_refused({"GGU"}, "is cut: the header");
    check_refused({"GGML0000"}, "is no GGUF file");
    check_refused(header(0, 0, 1), "version 1");
    check_refused(header(0, 0, 4), "version 4");
    check_refused(header(0, 0, 0x03000000), "big-endian");
    constexpr std::uint64_t half = std::uint64_t{1} << 63, huge[] = {~std::uint64_t{0}, half, half - 1, 1u << 30};
    for (const std::uint64_t lie : huge) {
        check_refused(header(lie, 0), "the header's number of tensors has a count");
        check_refused(header(0, lie), "the header's number of keys has a count");
        check_refused(header(0, 1).number(lie).number(lie), "the name of key 0 has a text");
        check_refused(header(0, 1).text("k").number(8u).number(lie), "key 'k' of");
        for (const std::uint32_t element : {0u, 4u, 8u, 12u})
            check_refused(header(0, 1).text("k").number(9u).number(element).number(lie), "key 'k' of");
        Bytes bytes = header(1, 0);
        check_refused(tensor(bytes, "t", {lie, lie, lie}, 0, 0).pad(), "tensor 't'");
        bytes = header(1, 0);
        check_refused(tensor(bytes, "t", {32}, 0, lie).pad(), "tensor 't'");
    }
    check_refused(header(0, 1).text("k").number(9u).number(9u).number(std::uint64_t{1}).number(0u), "array of arrays");
    check_refused(header(0, 1).text("k").number(13u).number(std::uint64_t{0}), "key 'k' of");
    check_refused(header(0, 1).text("k").number(7u).number(std::uint8_t{2}).number(std::uint64_t{0}),
                  "a bool of the value 2");
    Bytes many = header(0, 1).text("k").number(9u).number(8u).number(std::uint64_t{100000});
    many.all.resize(many.all.size() + 800000);
    BOOST_TEST(opening(many.all) == "accepted");  // a hundred thousand empty texts
}

BOOST_AUTO_TEST_CASE(b58_names_twice_unknown_types_and_misplaced_tensors_are_refused_by_name) {
    Bytes keys = header(0, 2);
    for (int copy = 0; copy < 2; ++copy) keys.text("k").number(0u).number(std::uint8_t{1});
    check_refused(keys, "key 'k' of");
    const auto two = [](std::uint64_t second, std::uint32_t type = 0, std::string_view name = "b") {
        Bytes bytes = header(2, 0);
        tensor(bytes, "a", {32}, 0, 0);
        tensor(bytes, name, {32}, type, second).pad();
        bytes.all.resize(bytes.all.size() + 256);
        return bytes;
    };
    BOOST_TEST(opening(two(128).all) == "accepted");
    check_refused(two(128, 0, "a"), "tensor 'a' of");
    check_refused(two(96), "tensor 'b' begins at 96 of the data, the one before it ends at 128");
    check_refused(two(160), "tensor 'b' begins at 160");
    check_refused(two(128, 5), "tensor 'b' of");
    check_refused(two(128, 10), "has rows of 32 elements; q2_k packs 256 at a time");
    Bytes cut = two(128);
    cut.all.pop_back();
    check_refused(cut, "is cut: tensor 'b'");
    Bytes longer = two(128);
    longer.all.push_back('x');
    check_refused(longer, "its tensors end at byte");
    Bytes five = header(1, 0);
    check_refused(tensor(five, "t", {1, 1, 1, 1, 1}, 0, 0).pad(), "has 5 dimensions");
    for (const std::uint32_t alignment : {0u, 24u, 0xffffffffu}) {
        Bytes bytes = header(0, 1);
        check_refused(bytes.text("general.alignment").number(4u).number(alignment), "must be a power of two");
    }
}

BOOST_AUTO_TEST_CASE(an_alignment_of_its_own_and_version_2_are_read) {
    Bytes bytes = header(1, 1, 2);
    bytes.text("general.alignment").number(4u).number(64u);
    tensor(bytes, "t", {2, 1}, 0, 0).pad(64).number(1.5f).number(-2.0f);
    const TemporaryFolder folder;
    put(folder / "file", bytes.all);
    float values[2]{};
    GgufFile(folder / "file").read("t", values, 2);
    BOOST_TEST(values[0] == 1.5f);
    BOOST_TEST(values[1] == -2.0f);
}

BOOST_AUTO_TEST_CASE(b59_a_file_cut_anywhere_is_refused) {
    const TemporaryFolder folder;
    const std::vector<float> all = numbers(64);
    write_gguf(folder / "file", {{"texts", std::vector<std::string>{"a", "bc"}}, {"n", 1.0}},
               {in_memory("t", GgufType::q8_0, {2, 32}, all)});
    const std::string whole = get(folder / "file");
    const std::size_t padding = 32 - 2 * 34 % 32;  // behind the last tensor, which readers may find cut off
    for (std::size_t size = 0; size < whole.size() - padding; ++size)
        BOOST_REQUIRE_MESSAGE(opening(whole.substr(0, size)) != "accepted", "cut at " << size);
    BOOST_TEST(opening(whole) == "accepted");
    KIMIK3_CHECK_REFUSED(GgufFile(folder / "missing"), "cannot open");
}

BOOST_AUTO_TEST_CASE(b55_a_write_that_fails_leaves_the_old_file) {
    const TemporaryFolder folder;
    const std::vector<float> all = numbers(1 << 14);
    put(folder / "file", "old");
    {
        const FileSizeLimit limit(4096);
        KIMIK3_CHECK_REFUSED(write_gguf(folder / "file", {}, {in_memory("t", GgufType::f32, {1 << 14}, all)}), "write");
    }
    KIMIK3_CHECK_REFUSED(write_gguf(folder / "file", {}, {in_memory("t", GgufType::f32, {3}, all)}),
                         "tensor 't' has 12 bytes by its shape and type, 65536 were written");
    KIMIK3_CHECK_REFUSED(write_gguf(folder / "file", {{"k", true}, {"k", true}}, {}), "two keys 'k'");
    KIMIK3_CHECK_REFUSED(write_gguf(folder / "file", {{"general.alignment", std::uint32_t{8}}}, {}),
                         "the key of the writer");
    KIMIK3_CHECK_REFUSED(write_gguf(folder / "file", {}, {in_memory(std::string(64, 'n'), GgufType::f32, {3}, all)}),
                         "a name of at most 63 bytes");
    KIMIK3_CHECK_REFUSED(write_gguf(folder / "file", {}, {in_memory("t", GgufType::q8_0, {2, 33}, all)}),
                         "rows of tensor 't' have 33 elements");
    BOOST_TEST(get(folder / "file") == "old");
    BOOST_TEST(folder.size() == 1);
}

BOOST_AUTO_TEST_SUITE_END()
