#include "kimik3/data/shard.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <set>

#include "support/refusal.hpp"

namespace fs = std::filesystem;
using kimik3::Index;
using kimik3::test::refusal;
using Ids = std::vector<std::int32_t>;

namespace {

struct Folder {
    fs::path path = fs::temp_directory_path() / fmt::format("kimik3_shard_{}", ::getpid());
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
    fs::path operator/(const char* name) const { return path / name; }
};

void write_ids(const fs::path& path, const Ids& ids, Index vocabulary) {
    kimik3::ShardWriter writer(path, vocabulary);
    writer.append(ids);
    writer.finish();
}

Ids read_all(const kimik3::Shard& shard) {
    Ids ids(kimik3::to_size(shard.tokens()));
    shard.read(0, ids);
    return ids;
}

std::string bytes_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// A file as another program would write it: three numbers of the header, then the words.
template <class Word>
void write_raw(const fs::path& path, std::vector<std::int32_t> header, const std::vector<Word>& words) {
    header.resize(256);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.data()), 1024);
    file.write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(words.size() * sizeof(Word)));
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(shard, Folder)

BOOST_AUTO_TEST_CASE(both_formats_of_llm_c_are_read_as_they_are) {
    write_raw<std::uint16_t>(*this / "gpt2.bin", {20240520, 1, 3}, {0, 65535, 7});
    BOOST_TEST(read_all({*this / "gpt2.bin", 65536}) == Ids({0, 65535, 7}), boost::test_tools::per_element());
    write_raw<std::uint32_t>(*this / "llama.bin", {20240801, 7, 3}, {0, 128255, 65536});
    BOOST_TEST(read_all({*this / "llama.bin", 128256}) == Ids({0, 128255, 65536}), boost::test_tools::per_element());
    write_raw<std::uint16_t>(*this / "none.bin", {20240520, 1, 0}, {});
    BOOST_TEST(kimik3::Shard(*this / "none.bin", 10).tokens() == 0);
}

BOOST_AUTO_TEST_CASE(the_writer_takes_16_bits_up_to_a_vocabulary_of_65536_and_32_above) {
    write_ids(*this / "narrow.bin", {1, 65535}, 65536);
    write_raw<std::uint16_t>(*this / "raw.bin", {20240520, 1, 2}, {1, 65535});
    BOOST_TEST(bytes_of(*this / "narrow.bin") == bytes_of(*this / "raw.bin"));
    write_ids(*this / "wide.bin", {1, 65536}, 65537);
    write_raw<std::uint32_t>(*this / "raw.bin", {20240801, 7, 2}, {1, 65536});
    BOOST_TEST(bytes_of(*this / "wide.bin") == bytes_of(*this / "raw.bin"));
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read_from_any_place) {
    for (const Index vocabulary : {Index{5000}, Index{163840}}) {
        Ids ids;
        for (int t = 0; t < 20000; ++t) ids.push_back(static_cast<std::int32_t>((t * Index{7919}) % vocabulary));
        kimik3::ShardWriter writer(*this / "s.bin", vocabulary);
        for (std::size_t first = 0; first < ids.size(); first += 3000) {
            writer.append(std::span(ids).subspan(first, (std::min)(std::size_t{3000}, ids.size() - first)));
        }
        writer.finish();
        const kimik3::Shard shard(*this / "s.bin", vocabulary);
        const std::pair<Index, Index> ranges[] = {{0, 20000}, {0, 0}, {20000, 0}, {4095, 2}, {19999, 1}, {123, 9000}};
        for (const auto& [first, count] : ranges) {
            Ids part(kimik3::to_size(count));
            shard.read(first, part);
            BOOST_TEST(std::equal(part.begin(), part.end(), ids.begin() + first));
        }
        Ids part(2);
        for (const Index first : {Index{-1}, Index{19999}, Index{20001}, (std::numeric_limits<Index>::max)()}) {
            BOOST_CHECK_THROW(shard.read(first, part), kimik3::Error);
        }
    }
}

BOOST_AUTO_TEST_CASE(b54_every_fault_is_a_distinct_error_naming_file_and_byte) {
    const fs::path file = *this / "bad.bin";
    std::set<std::string> sentences;
    const auto refused = [&](std::string_view byte, std::string_view sentence, Index vocabulary = 100) {
        const std::string text = refusal([&] { read_all({file, vocabulary}); });
        BOOST_TEST(text.starts_with(fmt::format("{}: byte {}: ", file.string(), byte)), text);
        BOOST_TEST(text.find(sentence) != std::string::npos, text);
        BOOST_TEST(sentences.insert(std::string(sentence)).second);
    };
    refused("0", "cannot open");
    fs::create_directory(file);
    refused("0", "this is a directory");
    fs::remove(file);
    BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    refused("0", "regular file");
    fs::remove(file);
    write_raw<std::uint16_t>(file, {20240520, 1, 0}, {});
    fs::resize_file(file, 0);
    refused("0", "the file is empty");
    fs::resize_file(file, 1023);
    refused("1023", "inside its header of 1024 bytes");
    write_raw<std::uint16_t>(file, {20240521, 1, 2}, {1, 2});
    refused("0", "not 20240521");
    write_raw<std::uint16_t>(file, {20240520, 7, 2}, {1, 2});
    refused("4", "with magic 20240520 is 1, not 7");
    write_raw<std::uint32_t>(file, {20240801, 1, 2}, {1, 2});
    refused("4", "with magic 20240801 is 7, not 1");
    write_raw<std::uint16_t>(file, {20240520, 1, -1}, {1, 2});
    refused("8", "-1 is negative");
    write_raw<std::uint16_t>(file, {20240520, 1, 3}, {1, 2});
    refused("8", "counts 3 tokens, more than the 2");
    write_raw<std::uint16_t>(file, {20240520, 1, 2147483647}, {1, 2});
    refused("8", "counts 2147483647 tokens, more than the 2");
    write_raw<std::uint16_t>(file, {20240520, 1, 1}, {1, 2});
    refused("8", "counts 1 tokens, fewer than the 2");
    write_raw<std::uint16_t>(file, {20240520, 1, 2}, {1, 2});
    fs::resize_file(file, 1027);
    refused("1027", "inside a token of 2 bytes");
    write_raw<std::uint32_t>(file, {20240801, 7, 2}, {1, 2});
    fs::resize_file(file, 1030);
    refused("1030", "inside a token of 4 bytes");
    write_raw<std::uint16_t>(file, {20240520, 1, 3}, {1, 99, 100});
    refused("1028", "id 100 is not below the vocabulary of 100");
    write_raw<std::uint32_t>(file, {20240801, 7, 2}, {1, 0xffffffffu});
    refused("1028", "id 4294967295 is not below", Index{1} << 31);
}

BOOST_AUTO_TEST_CASE(b59_a_shard_that_shrinks_after_it_was_opened_is_an_error_and_no_signal) {
    write_ids(*this / "s.bin", Ids(10000, 1), 10);
    const kimik3::Shard shard(*this / "s.bin", 10);
    fs::resize_file(*this / "s.bin", 1024 + 8192);
    BOOST_TEST(refusal([&] { read_all(shard); }).find("byte 9216: the file ends here") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(b54_the_writer_refuses_an_id_that_does_not_fit_and_leaves_the_old_shard) {
    write_ids(*this / "s.bin", {1, 2, 3}, 65536);
    const std::string before = bytes_of(*this / "s.bin");
    const auto refused = [&](std::int32_t id, Index vocabulary, int byte) {
        BOOST_TEST(refusal([&] { write_ids(*this / "s.bin", {4, id}, vocabulary); }) ==
                   fmt::format("{}: byte {}: id {} is not below the vocabulary of {}", (*this / "s.bin").string(), byte,
                               id, vocabulary));
        BOOST_TEST(bytes_of(*this / "s.bin") == before);
    };
    refused(65536, 65536, 1026);
    refused(-1, 65536, 1026);
    refused(100, 100, 1026);
    refused(70000, 70000, 1028);
    BOOST_TEST(std::distance(fs::directory_iterator(path), {}) == 1);
    for (const Index vocabulary : {Index{0}, Index{-1}, (Index{1} << 31) + 1}) {
        BOOST_CHECK_THROW(kimik3::ShardWriter(*this / "t.bin", vocabulary), kimik3::Error);
        BOOST_CHECK_THROW(kimik3::Shard(*this / "s.bin", vocabulary), kimik3::Error);
    }
}

BOOST_AUTO_TEST_CASE(ids_in_memory_obey_the_same_law) {
    BOOST_TEST(read_all({"m", {3, 1, 2}, 4}) == Ids({3, 1, 2}), boost::test_tools::per_element());
    BOOST_TEST(refusal([] { kimik3::Shard("m", {3, 4}, 4); }) == "m: token 1: id 4 is not below the vocabulary of 4");
    BOOST_TEST(refusal([] { kimik3::Shard("m", {-1}, 4); }) == "m: token 0: id -1 is not below the vocabulary of 4");
}

BOOST_AUTO_TEST_CASE(the_shards_of_a_split_are_listed_by_name) {
    for (const char* name : {"train_000001.bin", "train_000000.bin", "val_000000.bin", "interval.bin", "train.txt",
                             "tiny_shakespeare_val.bin", "._train_000000.bin"}) {
        std::ofstream(*this / name) << "x";
    }
    const auto names = [&](const char* split) {
        std::string all;
        for (const fs::path& file : kimik3::list_shards(path, split)) all += file.filename().string() + " ";
        return all;
    };
    BOOST_TEST(names("train") == "train_000000.bin train_000001.bin ");
    BOOST_TEST(names("val") == "tiny_shakespeare_val.bin val_000000.bin ");
    BOOST_TEST(refusal([&] { names("test"); }) == fmt::format("{}: no shard test_*.bin in the folder", path.string()));
    const std::string absent = refusal([&] { kimik3::list_shards(*this / "absent", "train"); });
    BOOST_TEST(absent.find("cannot list the folder") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
