#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "io/allocation.hpp"
#include "io/files.hpp"
#include "kimik3/io/safetensors.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// The bytes of a file: length, header, data.
std::string file_bytes(std::string_view header, std::string_view data = {}) {
    const std::uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes.append(header).append(data);
}

std::string file_bytes(std::string_view header, std::size_t data_bytes) {
    return file_bytes(header, std::string(data_bytes, 'x'));
}

/// What opening such a file says; on the way no single allocation may exceed the file by more than 1 MiB.
std::string opening(std::string_view bytes) {
    const TemporaryFolder folder;
    const std::string path = folder / "file.safetensors";
    put(path, bytes);
    largest_allocation_bytes = 0;
    const std::string said = refusal([&] { SafetensorsFile file(path); });
    BOOST_TEST(largest_allocation_bytes <= bytes.size() + (std::size_t{1} << 20));
    if (said != "accepted") BOOST_TEST(contains(said, path), said);
    return said;
}

void check_refused(std::string_view header, std::size_t data_bytes, std::string_view part) {
    const std::string said = opening(file_bytes(header, data_bytes));
    BOOST_TEST(contains(said, part), "'" << part << "' is not in: " << said);
}

template <class T>
std::string raw(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A file with the one tensor "x".
template <class T>
std::string one_tensor(const std::vector<T>& values) {
    return file_bytes(fmt::format(R"({{"x":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})",
                                  dtype_name(dtype_of<T>), values.size(), values.size() * sizeof(T)),
                      raw(values));
}

template <class T, class Stored>
std::vector<T> read_back(const std::vector<Stored>& values) {
    const TemporaryFolder folder;
    const std::string path = folder / "x.safetensors";
    put(path, one_tensor(values));
    const SafetensorsFile file(path);
    const auto result = std::make_unique<T[]>(values.size());
    file.read("x", result.get(), static_cast<Index>(values.size()));
    return std::vector<T>(result.get(), result.get() + values.size());
}

/// Every float of the file must be the cast of what was stored, NaN as NaN.
template <class T, class Stored>
void check_cast(const std::vector<Stored>& values) {
    const std::vector<T> result = read_back<T>(values);
    std::size_t wrong = 0;
    for (std::size_t e = 0; e < values.size(); ++e) {
        const T cast = static_cast<T>(values[e]);
        wrong += !(result[e] == cast && std::signbit(result[e]) == std::signbit(cast)) &&
                 !(std::isnan(result[e]) && std::isnan(cast));
    }
    BOOST_TEST(wrong == 0u);
}

template <class Half>
std::vector<Half> every_pattern() {
    std::vector<Half> all(65536);
    for (std::size_t bits = 0; bits < all.size(); ++bits) all[bits].bits = static_cast<std::uint16_t>(bits);
    return all;
}

constexpr std::string_view two_tensors =
    R"({"__metadata__":{"format":"pt","a\u0062":"\u00e9"},)"
    R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"a":{"dtype":"U8","shape":[],"data_offsets":[24,25]}})";

}  // namespace

BOOST_AUTO_TEST_SUITE(safetensors)

BOOST_AUTO_TEST_CASE(a_file_tells_its_tensors_and_metadata) {
    const TemporaryFolder folder;
    const std::string path = folder / "x.safetensors";
    put(path, file_bytes(two_tensors, raw<float>({1, 2, 3, 4, 5, 6}) + '\7'));
    const SafetensorsFile file(path);
    BOOST_TEST(file.tensors().size() == 2u);
    BOOST_TEST(file.metadata().at("format") == "pt");
    BOOST_TEST(file.metadata().at("ab") == "\u00e9");
    BOOST_TEST(file.contains("a"));
    BOOST_TEST(!file.contains("c"));
    const TensorInfo& b = file.find("b");
    BOOST_TEST((b.dtype == DType::f32));
    BOOST_TEST((b.shape == std::vector<Index>{2, 3}));
    BOOST_TEST(b.count == 6);
    BOOST_TEST(b.size_bytes == 24);
    BOOST_TEST(b.file_offset == 8 + static_cast<Index>(two_tensors.size()));
    float part[2];
    file.read_part("b", 3, part, 2);
    BOOST_TEST(part[0] == 4.0f);
    BOOST_TEST(part[1] == 5.0f);
    int a = 0;
    file.read("a", &a, 1);
    BOOST_TEST(a == 7);
}

BOOST_AUTO_TEST_CASE(a_wrong_name_or_count_is_refused) {
    const TemporaryFolder folder;
    const std::string path = folder / "x.safetensors";
    put(path, file_bytes(R"({"model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
    const SafetensorsFile file(path);
    KIMIK3_CHECK_REFUSED(file.find("model.norm.weigth"), "nearest name is 'model.norm.weight'");
    KIMIK3_CHECK_REFUSED(file.find("lm_head"), "has no tensor 'lm_head'");
    float values[3];
    KIMIK3_CHECK_REFUSED(file.read("model.norm.weight", values, 3), "has 2 elements, 3 are wanted");
    KIMIK3_CHECK_REFUSED(file.read_part("model.norm.weight", 1, values, 2), "has 2 elements, [1, +2) are wanted");
    KIMIK3_CHECK_REFUSED(file.read_part("model.norm.weight", -1, values, 2), "[-1, +2)");
    KIMIK3_CHECK_REFUSED(file.read_part("model.norm.weight", 0, values, -1), "[0, +-1)");
}

BOOST_AUTO_TEST_CASE(floats_are_read_exactly_as_a_cast) {
    constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<double> doubles{0.0, -0.0, 0.1, -1.0 / 3.0, 1e-300, 5e-324, 3e38,
                                      1e-40, 1.0 + 0x1p-24, 1.0 + 0x1p-24 + 0x1p-50, inf, -inf, nan};
    check_cast<double>(doubles);
    check_cast<float>(doubles);
    check_cast<double>(std::vector<double>{1e300, -1e300, 3.5e38});
    KIMIK3_CHECK_REFUSED(read_back<float>(std::vector<double>{0.0, 3.5e38}), "element 1 of tensor 'x'");
    const std::vector<float> floats{0.0f, -0.0f, 0.1f, 3e38f, 1e-45f, static_cast<float>(inf), static_cast<float>(nan)};
    check_cast<double>(floats);
    check_cast<float>(floats);
    check_cast<double>(every_pattern<bf16>());
    check_cast<float>(every_pattern<bf16>());
    check_cast<double>(every_pattern<f16>());
    check_cast<float>(every_pattern<f16>());
    const std::vector<bf16> same = read_back<bf16>(every_pattern<bf16>());
    for (std::size_t bits = 0; bits < same.size(); ++bits) BOOST_REQUIRE(same[bits].bits == bits);
    BOOST_TEST(read_back<bf16>(floats)[2].bits == bf16(0.1f).bits);
    BOOST_TEST(read_back<f16>(std::vector<float>{0.1f})[0].bits == f16(0.1f).bits);
}

BOOST_AUTO_TEST_CASE(a_tensor_larger_than_the_conversion_buffer_is_read_whole) {
    std::vector<float> values(100'003);
    for (std::size_t e = 0; e < values.size(); ++e) values[e] = static_cast<float>(e) * 0.5f;
    const std::vector<double> result = read_back<double>(values);
    for (std::size_t e = 0; e < values.size(); ++e) BOOST_REQUIRE(result[e] == static_cast<double>(values[e]));
}

BOOST_AUTO_TEST_CASE(integers_are_read_when_they_fit_and_refused_by_value_when_they_do_not) {
    using Ids = std::vector<std::int32_t>;
    BOOST_TEST((read_back<std::int32_t>(std::vector<std::int64_t>{-5, 2147483647}) == Ids{-5, 2147483647}));
    BOOST_TEST((read_back<std::int32_t>(std::vector<std::uint16_t>{65535}) == Ids{65535}));
    BOOST_TEST((read_back<std::int32_t>(std::vector<std::uint8_t>{255}) == Ids{255}));
    BOOST_TEST((read_back<std::int32_t>(std::vector<std::int8_t>{-1}) == Ids{-1}));
    BOOST_TEST((read_back<std::int64_t>(std::vector<std::uint32_t>{4294967295u}) ==
                std::vector<std::int64_t>{4294967295}));
    KIMIK3_CHECK_REFUSED(read_back<std::int32_t>(std::vector<std::int64_t>{1, 2147483648}),
                         "element 1 of tensor 'x'");
    KIMIK3_CHECK_REFUSED(read_back<std::int32_t>(std::vector<std::int64_t>{2147483648}),
                         "is 2147483648, which I32 does not hold");
    KIMIK3_CHECK_REFUSED(read_back<std::uint8_t>(std::vector<std::int8_t>{-1}), "is -1, which U8 does not hold");
    KIMIK3_CHECK_REFUSED(read_back<std::int64_t>(std::vector<std::uint64_t>{~std::uint64_t{0}}),
                         "is 18446744073709551615, which I64 does not hold");
}

BOOST_AUTO_TEST_CASE(kinds_of_numbers_do_not_mix) {
    KIMIK3_CHECK_REFUSED(read_back<float>(std::vector<std::int64_t>{1}), "is I64, which is not read as F32");
    KIMIK3_CHECK_REFUSED(read_back<std::int32_t>(std::vector<float>{1}), "is F32, which is not read as I32");
    KIMIK3_CHECK_REFUSED(read_back<bool>(std::vector<std::uint8_t>{1}), "is U8, which is not read as BOOL");
}

BOOST_AUTO_TEST_CASE(booleans_are_zero_or_one) {
    const TemporaryFolder folder;
    const std::string path = folder / "x.safetensors";
    put(path, file_bytes(R"({"x":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", std::string_view("\1\0\2", 3)));
    const SafetensorsFile file(path);
    bool values[2];
    file.read_part("x", 0, values, 2);
    BOOST_TEST((values[0] && !values[1]));
    std::int32_t number = 0;
    file.read_part("x", 0, &number, 1);
    BOOST_TEST(number == 1);
    KIMIK3_CHECK_REFUSED(file.read_part("x", 2, values, 1), "element 2 of tensor 'x'");
}

BOOST_AUTO_TEST_CASE(b56_length_fields_are_checked_before_use) {
    const auto with_length = [](std::uint64_t length, std::size_t size) {
        std::string bytes(size, ' ');
        std::memcpy(bytes.data(), &length, sizeof length);
        return opening(bytes);
    };
    BOOST_TEST(contains(with_length(0xFFFFFFFFFFFFFFFBull, 16),
                        "must lie in [2, 100000000], it is 18446744073709551611"));
    BOOST_TEST(contains(with_length(0x7FFFFFFFFFFFFFFFull, 16), "must lie in"));
    BOOST_TEST(contains(with_length(0x8000000000000000ull, 16), "must lie in"));
    BOOST_TEST(contains(with_length(100 - 7, 100), "length and header take 101 bytes, the file has 100"));
    BOOST_TEST(contains(with_length(0, 16), "it is 0"));
    BOOST_TEST(contains(with_length(200'000'000, 1000), "it is 200000000"));
    BOOST_TEST(contains(with_length(99'000'000, 1000), "take 99000008 bytes, the file has 1000"));
    for (std::size_t size = 0; size < 8; ++size) BOOST_TEST(contains(opening(std::string(size, '\1')), "at least 8"));
}

BOOST_AUTO_TEST_CASE(b56_shapes_and_ranges_must_agree) {
    check_refused(R"({"w":{"dtype":"F32","shape":[32,8],"data_offsets":[0,65536]}})", 65536,
                  "has 1024 bytes by its shape and dtype, but data_offsets [0, 65536] give it 65536");
    check_refused(R"({"w":{"dtype":"F32","shape":[32,8],"data_offsets":[0,65536]}})", 1024,
                  "has 1024 bytes by its shape");
    check_refused(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", 16, "run backwards");
    for (const char* offsets : {"[16]", "[]", "[0,16,16]"})
        check_refused(fmt::format(R"({{"w":{{"dtype":"F32","shape":[4],"data_offsets":{}}}}})", offsets), 16,
                      "must be [begin, end]");
    for (const char* offsets : {"[-16,0]", "[0,-16]", "[-0,16]", "[0,16.0]", "[0,1.6e1]", "[0,16e0]", "[0,\"16\"]",
                                "[0,[16]]", "[0,null]", "[0,true]", "[0,{}]", "[0,18446744073709551632]"})
        check_refused(fmt::format(R"({{"w":{{"dtype":"F32","shape":[4],"data_offsets":{}}}}})", offsets), 16,
                      "integers that are not negative");
    check_refused(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}})", 16, "2^63 - 1");
    check_refused(R"({"w":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}})", 16,
                  "is cut: tensor 'w' ends at byte 9223372036854775904");
    for (const char* shape : {"[4294967296,4294967296]", "[4611686018427387904]", "[3037000500,3037000500]"})
        check_refused(fmt::format(R"({{"w":{{"dtype":"F32","shape":{},"data_offsets":[0,0]}}}})", shape), 0,
                      "more than 2^63 - 1 bytes");
    check_refused(R"({"w":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", 16, "a negative number in its shape");
    check_refused(R"({"w":{"dtype":"F32","shape":4,"data_offsets":[0,16]}})", 16, "a number in its shape");
    BOOST_TEST(opening(file_bytes(R"({"w":{"dtype":"F32","shape":[4,0,9],"data_offsets":[0,0]}})")) == "accepted");
}

BOOST_AUTO_TEST_CASE(b58_tensors_cover_the_data_once) {
    const auto pair = [](Index a0, Index a1, Index b0, Index b1) {
        return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                           R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                           a1 - a0, a0, a1, b1 - b0, b0, b1);
    };
    check_refused(pair(0, 16, 8, 24), 24, "tensor 'b' begins at 8 of the data, inside the tensor before it");
    check_refused(pair(0, 16, 20, 36), 36, "the bytes [16, 20) of the data, before tensor 'b', belong to no tensor");
    check_refused(pair(0, 16, 0, 16), 16, "inside the tensor before it");
    check_refused(pair(4, 16, 16, 32), 32, "the bytes [0, 4)");
    check_refused(pair(0, 16, 16, 32), 33, "its tensors end at byte");
    check_refused(pair(0, 16, 16, 32), 31, "is cut: tensor 'b' ends at byte");
    check_refused("{}", 1, "its tensors end at byte 10");
    BOOST_TEST(opening(file_bytes(pair(16, 32, 0, 16), 32)) == "accepted");
    BOOST_TEST(opening(file_bytes(pair(16, 16, 0, 16), 16)) == "accepted");
    BOOST_TEST(opening(file_bytes("{}")) == "accepted");
}

BOOST_AUTO_TEST_CASE(b58_a_name_given_twice_is_refused) {
    const std::string_view entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    check_refused(fmt::format(R"({{"w":{},"w":{}}})", entry, entry), 1, "gives the name 'w' twice");
    check_refused(fmt::format(R"({{"w":{},"\u0077":{}}})", entry, entry), 1, "gives the name 'w' twice");
    check_refused(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "gives 'dtype' twice");
    check_refused(R"({"__metadata__":{"a":"1","\u0061":"2"}})", 0, "the metadata give 'a' twice");
    check_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' twice");
}

BOOST_AUTO_TEST_CASE(b58_unknown_dtypes_and_keys_are_refused) {
    check_refused(R"({"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4,
                  "tensor 'w' has the unknown dtype 'F99'; known are F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, "
                  "U16, U8, BOOL");
    check_refused(R"({"w":{"dtype":5,"shape":[1],"data_offsets":[0,4]}})", 4, "a number in its dtype");
    check_refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"scale":1}})", 4, "unknown key 'scale'");
    for (const char* missing : {R"({"w":{"shape":[1],"data_offsets":[0,4]}})",
                                R"({"w":{"dtype":"F32","data_offsets":[0,4]}})",
                                R"({"w":{"dtype":"F32","shape":[1]}})", R"({"w":{}})"})
        check_refused(missing, 4, "tensor 'w' has no ");
}

BOOST_AUTO_TEST_CASE(b58_what_is_not_a_header_is_refused) {
    check_refused("[]", 0, "the header must be a JSON object, it is an array");
    check_refused("\"w\"", 0, "it is a string");
    check_refused("17", 0, "it is a number");
    check_refused("null", 0, "it is null");
    check_refused(std::string_view("{\"\xff\":1}", 7), 0, "not valid JSON in UTF-8");
    check_refused(std::string_view("{\"\xc0\x80\":1}", 8), 0, "not valid JSON in UTF-8");
    check_refused(R"({"\ud800":1})", 0, "not valid JSON in UTF-8");
    check_refused(R"({"w":5})", 0, "'w' must be an object, it is a number");
    check_refused(R"({"w":[]})", 0, "'w' must be an object");
    check_refused(R"({"__metadata__":{"a":1}})", 0, "the metadata 'a' must be a string, it is a number");
    check_refused(R"({"__metadata__":"pt"})", 0, "'__metadata__' must be an object, it is a string");
    check_refused(R"({} {})", 0, "not valid JSON");
    check_refused(std::string_view("{}\0x", 4), 0, "a zero byte");
    check_refused(R"({"w":{"dtype":"U8")", 0, "not valid JSON");
    check_refused(std::string(10'000, '['), 0, "it is an array");
    std::string nested;
    for (int depth = 0; depth < 10'000; ++depth) nested += R"({"a":)";
    check_refused(nested, 0, "tensor 'a' has the unknown key 'a'");
    check_refused(R"({"w":{"dtype":"U8","shape":)" + std::string(10'000, '['), 0, "an array in its shape");
    const std::string_view spaced = " \n\t{ }  \r\n ";
    BOOST_TEST(opening(file_bytes(spaced)) == "accepted");
    const std::string long_name(1'000'000, 'n');
    check_refused("{\"" + long_name + "\":1}", 0, std::string(100, 'n'));
    BOOST_TEST(opening(file_bytes("{\"" + long_name + "\":1}")).size() < 400u);
}

BOOST_AUTO_TEST_CASE(b59_a_short_file_is_refused_with_both_sizes) {
    const std::size_t data_bytes = 5 * 4096;
    const std::string whole =
        file_bytes(R"({"w":{"dtype":"F32","shape":[5120],"data_offsets":[0,20480]}})", data_bytes);
    BOOST_TEST(opening(whole) == "accepted");
    for (std::size_t lost : {std::size_t{1}, std::size_t{4096}, whole.size() / 2, data_bytes, data_bytes + 1}) {
        const std::string said = opening(std::string_view(whole).substr(0, whole.size() - lost));
        BOOST_TEST(contains(said, "is cut"), said);
        BOOST_TEST(contains(said, fmt::format("has {}", whole.size() - lost)), said);
        BOOST_TEST((lost > data_bytes || contains(said, fmt::format("at byte {}", whole.size()))), said);
    }
}

BOOST_AUTO_TEST_CASE(b59_a_file_that_shrinks_after_opening_is_an_error) {
    const TemporaryFolder folder;
    const std::string path = folder / "x.safetensors";
    put(path, one_tensor(std::vector<float>(10'000, 1.0f)));
    const SafetensorsFile file(path);
    BOOST_REQUIRE(::truncate(path.c_str(), 8192) == 0);
    std::vector<float> values(10'000);
    std::vector<double> doubles(10'000);
    KIMIK3_CHECK_REFUSED(file.read("x", values.data(), 10'000), "was cut while it was being read");
    KIMIK3_CHECK_REFUSED(file.read("x", doubles.data(), 10'000), "and ends at 8192");
}

BOOST_AUTO_TEST_CASE(b59_what_is_no_readable_file_is_refused) {
    const TemporaryFolder folder;
    KIMIK3_CHECK_REFUSED(SafetensorsFile(folder / "."), "is a directory, not a regular file");
    KIMIK3_CHECK_REFUSED(SafetensorsFile(folder / "absent"), "No such file or directory");
    KIMIK3_CHECK_REFUSED(SafetensorsFile("/dev/zero"), "not a regular file");
    const std::string pipe = folder / "pipe";
    BOOST_REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    KIMIK3_CHECK_REFUSED(SafetensorsFile{pipe}, "not a regular file");
    const std::string secret = folder / "secret.safetensors";
    put(secret, file_bytes("{}"));
    BOOST_REQUIRE(::chmod(secret.c_str(), 0) == 0);
    constexpr uid_t nobody = 65534;
    const bool is_root = ::geteuid() == 0;  // whom no file is closed to
    if (is_root) BOOST_REQUIRE(::seteuid(nobody) == 0);
    KIMIK3_CHECK_REFUSED(SafetensorsFile{secret}, "Permission denied");
    if (is_root) BOOST_REQUIRE(::seteuid(0) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
