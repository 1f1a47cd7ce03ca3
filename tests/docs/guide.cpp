// The C++ of docs/guide.md: tests/docs/snippets.sh holds the page against this file.

#include <kimik3/io.hpp>
#include <kimik3/text.hpp>

#include <boost/test/unit_test.hpp>
#include <sstream>

namespace {

inline constexpr kimik3::ModelConfig mine{
    .vocab_size = 320, .hidden_size = 32, .num_layers = 3, .layer_types = "KKM", .max_seq_len = 128,
    .kda_heads = 2, .kda_head_dim = 16, .kda_gate_rank = 16,
    .mla_heads = 2, .q_lora_rank = 16, .kv_lora_rank = 16,
    .qk_nope_head_dim = 16, .qk_rope_head_dim = 8, .v_head_dim = 16,
    .dense_intermediate_size = 64, .num_experts = 4, .num_experts_per_token = 2,
    .moe_intermediate_size = 24, .moe_latent_size = 16,
};
using Model = kimik3::KimiK3<mine>;

/// A folder that is gone at the end.
struct ScratchFolder {
    std::filesystem::path path = [] {
        std::string name = (std::filesystem::temp_directory_path() / "kimik3-guide-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder");
        return name;
    }();
    ~ScratchFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
};

/// What a reader would have at hand.
std::string book() {
    std::string text;
    for (int day = 1; day <= 400; ++day)
        text += "On day " + std::to_string(day) + " the " + (day % 3 == 0 ? "cat" : "dog") + " sat on the mat.\n";
    return text;
}

kimik3::TokenWindows windows_of(const std::vector<std::int32_t>& ids) {
    std::vector<kimik3::Shard> shards;
    shards.emplace_back("book", ids, mine.vocab_size);
    return kimik3::TokenWindows(std::move(shards), 32);  // windows of 32 tokens
}

kimik3::TrainingOptions options_of_a_short_run() {
    kimik3::TrainingOptions options;
    options.schedule = {.max_lr = 4e-3, .warmup_steps = 4, .total_steps = 40};
    return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(guide)

BOOST_AUTO_TEST_CASE(a_model_is_trained_saved_loaded_and_generates) {
    const std::string text = book();
    const ScratchFolder folder;
    const std::filesystem::path run = folder.path;

    kimik3::BpeTrainer learner({.vocab_size = mine.vocab_size});
    learner.push(text);
    const kimik3::Tokenizer tokenizer = learner.train();
    const std::vector<std::int32_t> ids = tokenizer.encode(text, kimik3::Specials::as_text);
    kimik3::save_tokenizer_json(tokenizer, run / "tokenizer.json");

    Model model(kimik3::Context<kimik3::Cpu>{}, 7);  // one thread a processor; weights drawn from the seed 7
    kimik3::TokenLoader batches(windows_of(ids), 8, kimik3::Order::shuffled);
    kimik3::Trainer trainer(model, std::move(batches), options_of_a_short_run());
    for (int step = 0; step < 20; ++step) trainer.step();
    const kimik3::Loss loss = kimik3::evaluate(model, windows_of(ids), 8);
    kimik3::save_checkpoint(run / "step-00000020", model, &trainer, {run / "tokenizer.json"});
    BOOST_TEST(loss.loss < 4.0);

    Model other;
    kimik3::Trainer resumed(other, kimik3::TokenLoader(windows_of(ids), 8, kimik3::Order::shuffled),
                            options_of_a_short_run());
    kimik3::load_checkpoint(run / "step-00000020", resumed);
    BOOST_TEST(resumed.step().loss == trainer.step().loss);

    std::ostringstream out;
    Model loaded;
    kimik3::load_model(run / "step-00000020", loaded);
    kimik3::StreamDecoder words(tokenizer);
    const std::vector<std::int32_t> prompt = tokenizer.encode("On day", kimik3::Specials::as_text);
    for (const std::int32_t token : kimik3::generate(loaded, prompt, {.temperature = 0.7, .seed = 1, .max_tokens = 40}))
        out << words.push(token);
    out << words.flush();
    BOOST_TEST(out.str().size() > 40u);

    kimik3::load_model(run / "step-00000020", loaded);  // a folder with config.json and weights
    kimik3::write_weights(run / "export", loaded, {.dtype = kimik3::DType::bf16, .max_shard_bytes = 2'000'000'000});
    BOOST_TEST(std::filesystem::exists(run / "export" / "config.json"));
}

BOOST_AUTO_TEST_CASE(the_loop_of_the_trainer_by_hand_takes_the_same_steps) {
    const std::vector<std::int32_t> ids = kimik3::Tokenizer::bytes().encode(book(), kimik3::Specials::as_text);
    const kimik3::TrainingOptions options = options_of_a_short_run();
    Model model, same;
    kimik3::Trainer trainer(same, kimik3::TokenLoader(windows_of(ids), 8), options);
    std::vector<double> losses;

    kimik3::TokenLoader batches(windows_of(ids), 8);
    kimik3::Optimizer optimizer(model, options.optimizer);
    const kimik3::Schedule schedule(options.schedule);
    kimik3::Batch batch;
    for (int step = 0; step < 3; ++step) {
        batches.next(batch);
        losses.push_back(model.forward(batch.tokens, batch.targets, batch.batch));
        model.backward();
        optimizer.step(model, schedule.lr(step));  // clips, steps, balances the experts, clears the gradients
    }
    for (const double loss : losses) BOOST_TEST(loss == trainer.step().loss, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(sequences_are_decoded_side_by_side) {
    Model model;
    const std::vector<std::vector<std::int32_t>> prompts = {{1, 2, 3}, {4, 5, 6, 7, 8}};
    std::vector<std::vector<std::int32_t>> answers(prompts.size());

    kimik3::BatchGeneration batch(model, prompts, {.temperature = 0.0, .max_tokens = 16});
    while (batch.next())
        for (kimik3::Index s = 0; s < batch.size(); ++s)
            if (const auto token = batch.token(s)) answers[static_cast<std::size_t>(s)].push_back(*token);
    for (const auto& answer : answers) BOOST_TEST(answer.size() == 16u);

    auto state = model.new_state(1);  // room for one sequence, empty
    const std::vector<std::int32_t> first = {1, 2, 3}, next = {9};
    model.step(state, first);                        // a prompt
    const auto snapshot = state;                     // a state is a value
    const auto logits = model.step(state, next);     // [1, vocab_size] after the new token
    BOOST_TEST(logits.cols == mine.vocab_size);
    BOOST_TEST(snapshot.length(0) == 3);
    BOOST_TEST(state.length(0) == 4);
}

BOOST_AUTO_TEST_CASE(a_model_is_looked_into_and_scored) {
    const ScratchFolder folder;
    Model model;
    const kimik3::Index batch = 2;
    const std::vector<std::int32_t> tokens(64, 5);
    const kimik3::Shard shard("text", tokens, mine.vocab_size);
    const std::vector<kimik3::Ending> endings = {{{1, 2, 3}, {4}}, {{1, 2, 3}, {5, 6}}};

    kimik3::Observation seen = kimik3::look_inside(model, tokens, batch);  // model/probe.hpp
    kimik3::Probe probe;                                                   // sums over any number of looks
    probe.add(seen);

    kimik3::TextScore score = kimik3::score_text(model, shard, {.window = 32, .stride = 16});  // generate/score.hpp
    std::vector<double> likelihoods = kimik3::score_endings(model, endings);

    kimik3::Report page = kimik3::model_report(model, "my model");         // io/report.hpp
    page.probe = probe;
    kimik3::write_report(folder.path / "page.html", page);
    BOOST_TEST(score.perplexity() > 1.0);
    BOOST_TEST(likelihoods.size() == 2u);
    BOOST_TEST(std::filesystem::exists(folder.path / "page.html"));
}

BOOST_AUTO_TEST_CASE(a_broken_config_says_its_rule) {
    kimik3::ModelConfig config = mine;
    config.num_experts_per_token = 4;
    try {
        kimik3::check_invariants(config);
        BOOST_FAIL("a token cannot go to all experts");
    } catch (const kimik3::Error& error) {
        BOOST_TEST(error.what() == "a token goes to at least one expert and not to all; this config has "
                                   "num_experts_per_token = 4, num_experts = 4");
    }
}

BOOST_AUTO_TEST_SUITE_END()
