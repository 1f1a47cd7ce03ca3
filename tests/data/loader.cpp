#include "kimik3/data/loader.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <set>

#include "support/refusal.hpp"

namespace fs = std::filesystem;
using kimik3::Batch;
using kimik3::Index;
using kimik3::Order;
using kimik3::Shard;
using kimik3::TokenLoader;
using kimik3::TokenWindows;
using kimik3::test::refusal;
using Ids = std::vector<std::int32_t>;

namespace {

/// Shards "0", "1", ... of the given sizes, whose ids count upwards from 0 through all of them.
std::vector<Shard> counting_shards(const std::vector<int>& sizes) {
    std::vector<Shard> shards;
    std::int32_t next = 0;
    for (const int size : sizes) {
        Ids ids(kimik3::to_size(size));
        std::iota(ids.begin(), ids.end(), next);
        next += size;
        shards.emplace_back(std::to_string(shards.size()), std::move(ids), 1 << 20);
    }
    return shards;
}

TokenLoader loader(const std::vector<int>& sizes, Index batch, Index seq, Order order, std::uint64_t seed = 7) {
    return {TokenWindows(counting_shards(sizes), seq), batch, order, seed};
}

std::vector<Ids> take(TokenLoader& from, Index batches) {
    std::vector<Ids> taken;
    Batch batch;
    for (Index n = 0; n < batches; ++n) {
        from.next(batch);
        BOOST_TEST_REQUIRE(std::ssize(batch.tokens) == batch.batch * batch.seq);
        taken.push_back(batch.tokens);
        taken.push_back(batch.targets);
    }
    return taken;
}

const std::vector<int> sizes{33, 5, 40, 8, 9, 100};  // windows of 8: 4, 0, 4, 0, 1, 12 = 21

}  // namespace

BOOST_AUTO_TEST_SUITE(loader_laws)

BOOST_AUTO_TEST_CASE(b54_batches_of_2_x_8_in_a_shard) {
    for (const auto& [tokens, batches] : {std::pair{33, 2}, {32, 1}, {17, 1}}) {
        for (const Order order : {Order::sequential, Order::shuffled}) {
            TokenLoader shard = loader({tokens}, 2, 8, order);
            BOOST_TEST(shard.batches_per_epoch() == batches);
            for (int n = 0; n < batches; ++n) {
                take(shard, 1);
                BOOST_TEST(shard.state().epoch == 0);
            }
            take(shard, 1);
            BOOST_TEST(shard.state().epoch == 1);
        }
    }
    BOOST_TEST(refusal([] { loader({16}, 2, 8, Order::sequential); }) ==
               "a batch of 2 x 8 tokens needs 2 windows, the shards hold 1");
}

BOOST_AUTO_TEST_CASE(b54_targets_are_the_inputs_shifted_by_one_also_across_batches) {
    TokenLoader shard = loader({33}, 2, 8, Order::sequential);
    Ids tokens, targets;
    Batch batch;
    for (int n = 0; n < 2; ++n) {
        shard.next(batch);
        BOOST_TEST(batch.batch == 2);
        BOOST_TEST(batch.seq == 8);
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
        targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
    }
    for (std::int32_t t = 0; t < 32; ++t) {
        BOOST_TEST(tokens[kimik3::to_size(t)] == t);
        BOOST_TEST(targets[kimik3::to_size(t)] == t + 1);
    }
}

BOOST_AUTO_TEST_CASE(an_epoch_skips_and_repeats_no_token_of_any_window) {
    for (const Order order : {Order::sequential, Order::shuffled}) {
        TokenLoader all = loader(sizes, 3, 8, order);
        BOOST_TEST(all.windows().count() == 21);
        std::map<std::int32_t, int> seen;
        Batch batch;
        for (int n = 0; n < 7; ++n) {
            all.next(batch);
            for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
                ++seen[batch.tokens[t]];
                BOOST_TEST(batch.targets[t] == batch.tokens[t] + 1);
            }
        }
        BOOST_TEST(all.state().epoch == 0);
        std::int32_t first = 0;
        for (const int size : sizes) {
            for (std::int32_t t = 0; t < size; ++t) {
                const int used = t < (size - 1) / 8 * 8 ? 1 : 0;
                BOOST_TEST(seen[first + t] == used);
            }
            first += size;
        }
    }
}

BOOST_AUTO_TEST_CASE(the_sequential_order_is_the_order_of_the_text_in_every_epoch) {
    TokenLoader all = loader(sizes, 2, 8, Order::sequential);
    const std::vector<Ids> first = take(all, all.batches_per_epoch()), second = take(all, all.batches_per_epoch());
    BOOST_TEST((first == second));
    BOOST_TEST(std::is_sorted(first.begin(), first.end()));
}

BOOST_AUTO_TEST_CASE(the_shuffled_order_depends_on_seed_and_epoch_alone) {
    const auto epoch = [](TokenLoader& from) { return take(from, from.batches_per_epoch()); };
    TokenLoader a = loader(sizes, 3, 8, Order::shuffled, 1), b = loader(sizes, 3, 8, Order::shuffled, 1);
    TokenLoader c = loader(sizes, 3, 8, Order::shuffled, 2), text = loader(sizes, 3, 8, Order::sequential);
    const std::vector<Ids> first = epoch(a);
    BOOST_TEST((first == epoch(b)));
    BOOST_TEST((first != epoch(c)));
    BOOST_TEST((first != epoch(text)));
    BOOST_TEST((first != epoch(a)));
}

BOOST_AUTO_TEST_CASE(windows_left_over_by_a_batch_get_their_turn_in_other_epochs) {
    std::set<std::int32_t> starts;
    TokenLoader pairs = loader({13}, 2, 4, Order::shuffled);  // 3 windows, one left over
    for (int n = 0; n < 40; ++n) {
        const std::vector<Ids> batch = take(pairs, 1);
        BOOST_TEST(batch[0][0] != batch[0][4]);
        starts.insert({batch[0][0], batch[0][4]});
    }
    BOOST_TEST(starts == std::set<std::int32_t>({0, 4, 8}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(b53_resuming_at_every_position_equals_never_stopping) {
    for (const Order order : {Order::sequential, Order::shuffled}) {
        for (const Index batch : {1, 2, 4}) {
            const Index total = 2 * (21 / batch) + 3;
            TokenLoader whole = loader(sizes, batch, 8, order);
            const std::vector<Ids> expected = take(whole, total);
            for (Index stop = 0; stop <= total; ++stop) {
                TokenLoader before = loader(sizes, batch, 8, order), after = loader(sizes, batch, 8, order);
                take(before, stop);
                take(after, total - stop);
                after.restore(before.state());
                BOOST_TEST((after.state() == before.state()));
                const std::vector<Ids> rest = take(after, total - stop);
                BOOST_TEST(std::equal(rest.begin(), rest.end(), expected.begin() + 2 * stop));
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(a_position_of_other_data_is_refused) {
    TokenLoader here = loader({33, 40}, 2, 8, Order::shuffled);
    const kimik3::LoaderState before = here.state();
    const auto refused = [&](TokenLoader&& other, std::string_view sentence) {
        BOOST_TEST(refusal([&] { here.restore(other.state()); }).find(sentence) != std::string::npos);
    };
    refused(loader({33, 41}, 2, 8, Order::shuffled), "another list of shards");
    refused(loader({33}, 2, 8, Order::shuffled), "another list of shards");
    refused(loader({40, 33}, 2, 8, Order::shuffled), "another list of shards");
    refused(loader({33, 40}, 2, 4, Order::shuffled), "windows of 4 tokens, these have 8");
    refused(loader({33, 40}, 2, 8, Order::sequential),
            "sequential order with seed 7, this is the shuffled order with seed 7");
    refused(loader({33, 40}, 2, 8, Order::shuffled, 8),
            "shuffled order with seed 8, this is the shuffled order with seed 7");
    std::vector<Shard> renamed = counting_shards({33});
    renamed.emplace_back("other", Ids(40), 10);
    refused({TokenWindows(std::move(renamed), 8), 2, Order::shuffled, 7}, "another list of shards");
    for (const auto& [epoch, window] : {std::pair{-1, 0}, {0, -1}, {0, 10}}) {
        kimik3::LoaderState broken = before;
        broken.epoch = epoch;
        broken.window = window;
        BOOST_TEST(refusal([&] { here.restore(broken); }).find("is not one of 8 windows") != std::string::npos);
    }
    BOOST_TEST((here.state() == before));
}

BOOST_AUTO_TEST_CASE(b54_evaluation_counts_every_window_once_and_leaves_training_untouched) {
    TokenLoader train = loader({83}, 2, 8, Order::shuffled), twin = loader({83}, 2, 8, Order::shuffled);
    take(train, 3);
    take(twin, 3);
    Ids tokens;
    std::vector<Index> batches;
    train.windows().for_each_batch(4, [&](const Batch& batch) {
        batches.push_back(batch.batch);
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
    });
    BOOST_TEST(batches == std::vector<Index>({4, 4, 2}), boost::test_tools::per_element());
    Ids expected(80);
    std::iota(expected.begin(), expected.end(), 0);
    BOOST_TEST(tokens == expected, boost::test_tools::per_element());
    BOOST_TEST((train.state() == twin.state()));
    BOOST_TEST((take(train, 9) == take(twin, 9)));
}

BOOST_AUTO_TEST_CASE(evaluation_takes_fewer_windows_than_a_batch) {
    const TokenWindows few(counting_shards({20}), 8);
    Index counted = 0;
    few.for_each_batch(100, [&](const Batch& batch) { counted += batch.batch; });
    BOOST_TEST(counted == 2);
}

BOOST_AUTO_TEST_CASE(evaluation_reads_the_first_windows_where_no_more_are_wanted) {
    const fs::path file = fs::temp_directory_path() / fmt::format("kimik3_loader_{}.bin", ::getpid());
    kimik3::ShardWriter writer(file, 100);
    for (const std::int32_t id : {0, 1, 2, 3, 4, 5, 6, 7, 8, 99, 99}) writer.append({&id, 1});
    writer.finish();
    std::vector<Shard> shards;
    shards.emplace_back(file, 10);  // to read a 99 would be an error
    const TokenWindows windows(std::move(shards), 2);
    for (const Index most : {0, 1, 3, 4}) {
        for (const Index batch : {1, 2, 3, 4, 9}) {
            Ids tokens, expected(kimik3::to_size(2 * most));
            windows.for_each_batch(
                batch, [&](const Batch& b) { tokens.insert(tokens.end(), b.tokens.begin(), b.tokens.end()); }, most);
            std::iota(expected.begin(), expected.end(), 0);
            BOOST_TEST(tokens == expected, boost::test_tools::per_element());
        }
    }
    fs::remove(file);
}

BOOST_AUTO_TEST_CASE(sizes_that_make_no_sense_are_refused) {
    BOOST_TEST(refusal([] { loader({33}, 0, 8, Order::sequential); }) == "a batch has at least one window, not 0");
    BOOST_TEST(refusal([] { loader({33}, 1, 0, Order::sequential); }) == "a window has at least one token, not 0");
    BOOST_TEST(refusal([] { loader({8, 3}, 1, 8, Order::sequential); }) ==
               "0: a window of 8 tokens needs a shard of more, for its targets; here are 11 tokens in 2 shards");
    BOOST_CHECK_THROW(loader({}, 1, 8, Order::sequential), kimik3::Error);
    BOOST_CHECK_THROW(loader({33}, 1, (std::numeric_limits<Index>::max)(), Order::sequential), kimik3::Error);
    BOOST_CHECK_THROW(loader({33}, (std::numeric_limits<Index>::max)(), 8, Order::sequential), kimik3::Error);
    const TokenWindows windows(counting_shards({33}), 8);
    BOOST_CHECK_THROW(windows.for_each_batch(0, [](const Batch&) {}), kimik3::Error);
    BOOST_TEST(refusal([&] { windows.for_each_batch(1, [](const Batch&) {}, -1); }) ==
               "0 or more windows are visited, not -1");
}

BOOST_AUTO_TEST_CASE(shards_in_files_give_what_the_same_ids_in_memory_give) {
    const fs::path folder = fs::temp_directory_path() / fmt::format("kimik3_loader_{}", ::getpid());
    fs::create_directories(folder);
    std::vector<Shard> files;
    for (const Shard& shard : counting_shards(sizes)) {
        Ids ids(kimik3::to_size(shard.tokens()));
        shard.read(0, ids);
        kimik3::ShardWriter writer(folder / shard.name(), 1000);
        writer.append(ids);
        writer.finish();
        files.emplace_back(folder / shard.name(), 1000);
    }
    TokenLoader from_files(TokenWindows(std::move(files), 8), 2, Order::shuffled, 7);
    TokenLoader from_memory = loader(sizes, 2, 8, Order::shuffled);
    BOOST_TEST((from_files.state() == from_memory.state()));
    BOOST_TEST((take(from_files, 25) == take(from_memory, 25)));
    fs::remove_all(folder);
}

BOOST_AUTO_TEST_SUITE_END()
