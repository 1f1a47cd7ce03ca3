#include <boost/test/unit_test.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>

#include "io/files.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "support/file_size_limit.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// A checkpoint of several tensors with every element equal to value.
struct Checkpoint {
    explicit Checkpoint(float value) : wide(30'000, value), narrow(501, bf16(value)), bytes(7, 1) {}

    std::vector<TensorToWrite> tensors() const {
        return {tensor_in_memory("wide", {300, 100}, wide.data()), tensor_in_memory("narrow", {501}, narrow.data()),
                tensor_in_memory("bytes", {7}, bytes.data())};
    }

    std::vector<float> wide;
    std::vector<bf16> narrow;
    std::vector<std::uint8_t> bytes;
};

/// The value that all elements of a checkpoint have.
float value_in(const std::string& path) {
    const SafetensorsFile file(path);
    std::vector<float> wide(30'000), narrow(501);
    file.read("wide", wide.data(), 30'000);
    file.read("narrow", narrow.data(), 501);
    for (float element : wide) BOOST_REQUIRE(element == wide[0]);
    for (float element : narrow) BOOST_REQUIRE(element == wide[0]);
    return wide[0];
}

}  // namespace

BOOST_AUTO_TEST_SUITE(safetensors_writer)

BOOST_AUTO_TEST_CASE(what_was_written_is_read) {
    const TemporaryFolder folder;
    const std::string path = folder / "x.safetensors";
    const std::vector<double> doubles{0.1, -0.0, 1e308};
    const std::vector<f16> halves{f16(1.5f)};
    const std::vector<std::int64_t> integers{std::numeric_limits<std::int64_t>::min(), 5};
    const bool flags[] = {true, false};
    write_safetensors(path,
                      {tensor_in_memory("a \"quoted\" \\ name", {3, 1}, doubles.data()),
                       tensor_in_memory("h\u00fclle", {}, halves.data()), tensor_in_memory("i", {2}, integers.data()),
                       tensor_in_memory("flags", {2}, flags), tensor_in_memory("empty", {4, 0}, doubles.data())},
                      {{"step", "12"}, {"\u00e9", "a\nb"}});
    const SafetensorsFile file(path);
    BOOST_TEST(file.tensors().size() == 5u);
    BOOST_TEST(file.metadata().at("step") == "12");
    BOOST_TEST(file.metadata().at("\u00e9") == "a\nb");
    double d[3];
    file.read("a \"quoted\" \\ name", d, 3);
    for (int e = 0; e < 3; ++e) BOOST_TEST(d[e] == doubles[to_size(e)]);
    BOOST_TEST(std::signbit(d[1]));
    BOOST_TEST((file.find("a \"quoted\" \\ name").shape == std::vector<Index>{3, 1}));
    double h = 0;
    file.read("h\u00fclle", &h, 1);
    BOOST_TEST(h == 1.5);
    std::int64_t i[2];
    file.read("i", i, 2);
    BOOST_TEST(i[0] == integers[0]);
    bool f[2];
    file.read("flags", f, 2);
    BOOST_TEST((f[0] && !f[1]));
    BOOST_TEST(file.find("empty").count == 0);
}

BOOST_AUTO_TEST_CASE(the_same_tensors_give_the_same_bytes_in_any_order) {
    const TemporaryFolder folder;
    const Checkpoint checkpoint(1.5f);
    std::vector<TensorToWrite> tensors = checkpoint.tensors();
    write_safetensors(folder / "a", tensors, {{"k", "v"}});
    std::ranges::reverse(tensors);
    write_safetensors(folder / "b", tensors, {{"k", "v"}});
    BOOST_TEST((get(folder / "a") == get(folder / "b")));
}

BOOST_AUTO_TEST_CASE(tensors_are_aligned_to_64_bytes_or_to_their_elements) {
    const TemporaryFolder folder;
    const std::vector<double> memory(64, 0.0);
    for (Index count = 0; count < 70; ++count) {
        const std::string name(to_size(count), 'n');
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory.data());
        write_safetensors(folder / "x",
                          {tensor_in_memory("a" + name, {count}, bytes), tensor_in_memory("b", {1}, memory.data()),
                           tensor_in_memory("c", {8}, memory.data()), tensor_in_memory("d", {64}, bytes),
                           tensor_in_memory("e", {3}, reinterpret_cast<const bf16*>(bytes))});
        const SafetensorsFile file(folder / "x");
        for (const auto& [key, tensor] : file.tensors()) {
            BOOST_TEST(tensor.file_offset % size_bytes(tensor.dtype) == 0);
            if (tensor.size_bytes % 64 == 0) BOOST_TEST(tensor.file_offset % 64 == 0);
        }
    }
}

BOOST_AUTO_TEST_CASE(bytes_come_in_pieces_and_are_counted) {
    const TemporaryFolder folder;
    const std::string path = folder / "x";
    const auto pieces = [&](Index count) {
        write_safetensors(path, {{"w", DType::i16, {3}, [count](const ByteSink& sink) {
                                      for (char piece = 0; piece < count; ++piece) sink(&piece, 1);
                                  }}});
    };
    pieces(6);
    std::int16_t w[3];
    SafetensorsFile(path).read("w", w, 3);
    BOOST_TEST(w[1] == 0x0302);
    const std::string before = get(path);
    KIMIK3_CHECK_REFUSED(pieces(5), "tensor 'w' has 6 bytes by its shape and dtype, 5 were written");
    KIMIK3_CHECK_REFUSED(pieces(7), "tensor 'w' has 6 bytes by its shape and dtype, after 6 came 1 more");
    BOOST_TEST((get(path) == before));
    BOOST_TEST(folder.size() == 1);
}

BOOST_AUTO_TEST_CASE(what_a_file_cannot_hold_is_refused) {
    const TemporaryFolder folder;
    const float one = 1.0f;
    const auto write = [&](std::vector<TensorToWrite> tensors, std::map<std::string, std::string> metadata = {}) {
        write_safetensors(folder / "x", std::move(tensors), metadata);
    };
    const auto named = [&](std::string name) { return tensor_in_memory(std::move(name), {1}, &one); };
    KIMIK3_CHECK_REFUSED(write({named("a"), named("b"), named("a")}), "no room for two tensors named 'a'");
    KIMIK3_CHECK_REFUSED(write({named("__metadata__")}), "no room for a tensor named '__metadata__'");
    KIMIK3_CHECK_REFUSED(write({named("\xff")}), "are UTF-8");
    KIMIK3_CHECK_REFUSED(write({}, {{"k", "\xc0\x80"}}), "are UTF-8");
    KIMIK3_CHECK_REFUSED(write({tensor_in_memory("a", {-1}, &one)}), "has the extent -1 in its shape");
    KIMIK3_CHECK_REFUSED(write({tensor_in_memory("a", {Index{1} << 40, Index{1} << 40}, &one)}), "2^63 - 1 bytes");
    BOOST_TEST(folder.size() == 0);
}

BOOST_AUTO_TEST_CASE(b55_a_failed_save_leaves_the_old_file) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors";
    write_safetensors(path, Checkpoint(1.0f).tensors());
    const std::string before = get(path);
    for (std::size_t percent : {0u, 1u, 50u, 99u}) {
        const FileSizeLimit limit(before.size() * percent / 100);
        const std::string said = refusal([&] { write_safetensors(path, Checkpoint(2.0f).tensors()); });
        BOOST_TEST(contains(said, path), said);
        BOOST_TEST(contains(said, "File too large"), said);
        BOOST_TEST((get(path) == before));
        BOOST_TEST(folder.size() == 1);
        BOOST_TEST(value_in(path) == 1.0f);
    }
    write_safetensors(path, Checkpoint(2.0f).tensors());
    BOOST_TEST(value_in(path) == 2.0f);
}

BOOST_AUTO_TEST_CASE(b55_a_save_whose_tensor_fails_leaves_the_old_file) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors";
    write_safetensors(path, Checkpoint(1.0f).tensors());
    const Checkpoint new_one(2.0f);
    std::vector<TensorToWrite> tensors = new_one.tensors();
    tensors.back().write_bytes = [](const ByteSink&) { fail("no bytes today"); };
    KIMIK3_CHECK_REFUSED(write_safetensors(path, tensors), "no bytes today");
    BOOST_TEST(value_in(path) == 1.0f);
    BOOST_TEST(folder.size() == 1);
}

BOOST_AUTO_TEST_CASE(b55_a_killed_save_leaves_the_old_file_or_the_new_one) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors";
    const Checkpoint old_one(1.0f), new_one(2.0f);
    for (Index written : {0, 1, 60'000, 119'999, 120'000, -1}) {  // bytes of "wide" before the end; -1: after the save
        write_safetensors(path, old_one.tensors());
        const pid_t child = ::fork();
        if (child == 0) {
            std::vector<TensorToWrite> tensors = new_one.tensors();
            if (written >= 0) {
                tensors[0].write_bytes = [&](const ByteSink& sink) {
                    sink(new_one.wide.data(), written);
                    ::kill(::getpid(), SIGKILL);
                };
            }
            write_safetensors(path, tensors);
            ::kill(::getpid(), SIGKILL);
        }
        BOOST_REQUIRE(child > 0);
        int status = 0;
        ::waitpid(child, &status, 0);
        BOOST_TEST(WIFSIGNALED(status));
        BOOST_TEST(value_in(path) == (written >= 0 ? 1.0f : 2.0f));
    }
}

BOOST_AUTO_TEST_CASE(b55_only_a_regular_file_in_a_writable_folder_is_replaced) {
    const TemporaryFolder folder;
    const Checkpoint checkpoint(1.0f);
    const std::vector<TensorToWrite> tensors = checkpoint.tensors();
    struct stat status {};
    KIMIK3_CHECK_REFUSED(write_safetensors("/dev/full", tensors), "/dev/full");
    BOOST_TEST((::stat("/dev/full", &status) == 0 && S_ISCHR(status.st_mode)));
    KIMIK3_CHECK_REFUSED(write_safetensors(folder / ".", tensors), "only a regular file is replaced");
    KIMIK3_CHECK_REFUSED(write_safetensors(folder / "absent/x", tensors), "No such file or directory");
    KIMIK3_CHECK_REFUSED(write_safetensors("/proc/x.safetensors", tensors), "/proc/x.safetensors");
    BOOST_TEST(folder.size() == 0);
}

BOOST_AUTO_TEST_CASE(two_writers_of_one_file_do_not_mix) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.safetensors";
    AtomicFile first(path), second(path);
    first.write("first", 5);
    second.write("second", 6);
    second.commit();
    BOOST_TEST(get(path) == "second");
    first.commit();
    BOOST_TEST(get(path) == "first");
    BOOST_TEST(folder.size() == 1);
}

BOOST_AUTO_TEST_SUITE_END()
