#pragma once
// KimiK3<config, Backend, T>: the model. It expands the layer schedule into parameters, activations and decoding states
// and runs the road of spec 1.1: embedding, blocks, final AttnRes read, norm, head with loss; backward is the same road
// in reverse. All parameters lie in one flat array, gradients in a second, activations in one block of memory whose
// size is known from the batch's shape; once a shape has been seen, a step allocates nothing. T: float or double, and
// on the GPU bf16: then activations and matrices are bf16, all else float. The matrices are read from a copy of the
// flat array, which is made anew where the array may have changed. Sums of the loss are kept in double.

#include <cmath>

#include "kimik3/model/activations.hpp"
#include "kimik3/model/decoding_state.hpp"
#include "kimik3/model/initialise.hpp"
#include "kimik3/model/layer_balances.hpp"
#include "kimik3/model/parameter_layout.hpp"
#include "kimik3/model/pass.hpp"
#include "kimik3/ops/adamw.hpp"
#include "kimik3/ops/convert.hpp"
#include "kimik3/ops/embedding.hpp"

namespace kimik3 {

template <ModelConfig config_value, class Backend = Cpu, class T = float, class Layers = schedule_of<config_value>>
class KimiK3 {
    static_assert(valid<config_value>);
    static_assert(
        schedule_agrees<Layers, config_value>(),
        "kimik3: a schedule written by hand has the kinds that layer_types and num_dense_layers of the config name");

public:
    using Number = T;
    using A = accumulator_t<T>;
    using BackendTag = Backend;
    using State = DecodingState<Layers, Backend, T>;
    static constexpr ModelConfig config = config_value;
    static_assert(computes_in<Backend, T>, "kimik3: a model computes in float or double, and on the GPU in bf16 too");
    /// Whether matrices are read from a copy of the weights, in another format.
    static constexpr bool copies_weights = !std::is_same_v<T, A>;

    /// Parameters start from the seed alone (model/initialise.hpp).
    explicit KimiK3(Context<Backend> ctx = Context<Backend>{}, std::uint64_t seed = 0)
        : ctx_((ctx.make_current(), std::move(ctx))) {
        params_.fields(config, FieldBinder<T, A>(table_));
        weights_ = Buffer<A, Backend>(table_.size());
        gradients_ = Buffer<A, Backend>(table_.size());
        if constexpr (copies_weights) {
            copy_ = Buffer<T, Backend>(table_.size());
            params_.fields(config, FieldBinder<T, A>(copy_.data(), weights_.data()));
        } else {
            params_.fields(config, FieldBinder<T, A>(weights_.data(), weights_.data()));
        }
        grads_.fields(config, FieldBinder<A, A>(gradients_.data(), gradients_.data()));
        initialise(ctx_, table_.entries(), config.init_std, seed, weights_.view());
    }

    const Context<Backend>& context() const { return ctx_; }
    /// One entry a checkpoint tensor; offsets point into weights() and gradients().
    const std::vector<ParameterInfo>& parameters() const { return table_.entries(); }
    /// To be asked for again before it is written to after a pass: in bf16 a pass makes its copy only where it was.
    VectorView<A> weights() const {
        copied_ = false;
        return weights_.view();
    }
    /// For an optimizer, which writes both: the weights, and their copy where there is one, which stays as good as it
    /// was.
    SteppedWeights<A> stepped_weights() const {
        if constexpr (copies_weights) return {weights_.view(), copy_.view()};
        else return {weights_.view()};
    }
    VectorView<A> gradients() const { return gradients_.view(); }
    void zero_gradients() { clear(ctx_, gradients()); }

    /// Whether training keeps all activations (the default) or computes them again, from the next pass on.
    void keep(Keep what) { keep_ = what; }

    /// Bytes of activations that a training step on batch sequences of length tokens takes.
    Index training_bytes(Index batch, Index length) const {
        return measure(Sequences::uniform(batch, length), Pass::training);
    }

    /// Runs the batch and keeps what backward needs. tokens: batch sequences of equal length one after another;
    /// targets: what should follow each, or ignored_target.
    Loss forward(Tokens tokens, Tokens targets, Index batch = 1) {
        return forward(tokens, targets, equal_sequences(tokens, batch));
    }
    Loss forward(Tokens tokens, Tokens targets, const Sequences& sequences) {
        begin(tokens, targets, sequences, Pass::training);
        compute(nullptr);
        return head_loss();
    }

    /// Adds scale times the gradient of the last forward's loss to gradients(), and that forward's routing to the
    /// balancing statistics. Once after each forward. The loss is a mean, so a micro-batch's scale is its share of the
    /// counted tokens.
    void backward(double scale = 1.0) {
        require(ready_for_backward_, "backward follows a forward with targets, once");
        head_backward(scale);
        blocks_backward();
    }

    /// forward and backward in one, with the head's logits computed once instead of twice.
    Loss forward_backward(Tokens tokens, Tokens targets, Index batch = 1, double scale = 1.0) {
        return forward_backward(tokens, targets, equal_sequences(tokens, batch), scale);
    }
    Loss forward_backward(Tokens tokens, Tokens targets, const Sequences& sequences, double scale = 1.0) {
        load(tokens, targets, sequences);
        compute(nullptr);
        head_backward(scale);
        const Loss loss = mean_loss();
        blocks_backward();
        return loss;
    }

    /// forward_backward in parts: bring a batch to the backend, compute, read the loss. training_pass only enqueues
    /// work of the backend, the same for batches of the same pass_shape(), so it can be recorded.
    void load(Tokens tokens, Tokens targets, Index batch = 1) {
        load(tokens, targets, equal_sequences(tokens, batch));
    }
    void load(Tokens tokens, Tokens targets, const Sequences& sequences) {
        begin(tokens, targets, sequences, Pass::training);
        ready_for_backward_ = false;
    }
    void training_pass(double scale = 1.0) {
        compute(nullptr);
        head_backward(scale);
        blocks_backward();
    }
    std::vector<Index> pass_shape() const {
        std::vector<Index> shape(sequences_.packed().begin(), sequences_.packed().end());
        shape.insert(shape.end(), {counted_, static_cast<Index>(kept_)});
        return shape;
    }
    Loss mean_loss() {
        double sum = 0;
        for (A loss : on_host(ctx_, token_losses(), host_losses_)) sum += static_cast<double>(loss);
        const Loss mean{counted_ == 0 ? 0.0 : sum / static_cast<double>(counted_), counted_};
        require(std::isfinite(mean.loss), "the loss is a finite number, got {}", mean.loss);
        return mean;
    }

    /// The loss alone: no gradients, no balancing statistics.
    Loss evaluate(Tokens tokens, Tokens targets, Index batch = 1) {
        return evaluate(tokens, targets, equal_sequences(tokens, batch));
    }
    Loss evaluate(Tokens tokens, Tokens targets, const Sequences& sequences) {
        begin(tokens, targets, sequences, Pass::inference);
        compute(nullptr);
        return head_loss();
    }

    /// An inference pass that shows what it computed: visit(layer, its parameters, its Saved) after each layer, while
    /// its activations stand (layer: an integral_constant); then output_read() is that of the output. Reads only: no
    /// gradients, no statistics. model/probe.hpp is made of it.
    template <class Visit>
    void observe(Tokens tokens, const Sequences& sequences, Visit&& visit) {
        place(tokens, sequences, Pass::inference);
        compute(nullptr, [&](auto layer) {
            visit(layer, std::as_const(std::get<layer>(params_.layers)), std::as_const(std::get<layer>(acts_.saved)));
        });
    }
    /// The read before the head of the last pass.
    const SavedRead<Backend, T>& output_read() const { return acts_.output; }

    /// The losses of the last pass, one a token, 0 where the target was ignored.
    VectorView<const A> token_losses() const { return acts_.head.loss; }

    /// Logits [N, V] of the last pass, computed now; valid until the next call.
    MatrixView<const T> logits() {
        require(acts_.output.normed.cols > 0, "logits are those of a pass, and the model has made none");
        return logits_of(acts_.output.normed);
    }

    /// Room for slots sequences of up to max_len tokens, all empty.
    State new_state(Index slots, Index max_len = config.max_seq_len) const {
        return State(ctx_, config, slots, max_len);
    }

    /// Continues sequences from the state and moves it on: counts[s] new tokens for the sequence in slots[s]. Returns
    /// the logits [sequences, V] after each sequence's last new token (an empty sequence's row is undefined); logits()
    /// then gives those of every new token. The state is unchanged when an Error is thrown for wrong input.
    MatrixView<const T> step(State& state, Tokens tokens, std::span<const Index> counts, std::span<const Index> slots) {
        const Sequences planned = state.plan(counts, slots, static_cast<Index>(tokens.size()));
        if (!planned.single()) {
            place(tokens, planned, Pass::inference);
            compute(&state);
            state.advance(planned);
            return logits_of(last_rows(ctx_, sequences_, acts_.output.normed, last_));
        }
        // One token each: the same work as long as there are as many sequences and none outgrows the bound.
        const Index bound = state.past_bound(planned);
        place(tokens, placed_in_memory(ctx_, planned, bound, places_), Pass::inference);
        const MatrixView<T> logits = room_for_logits(planned.count());
        const Index shape[] = {planned.count(), bound, reinterpret_cast<std::intptr_t>(state.data())};
        steps_.run(ctx_, shape, [&] { single_step(state, logits); });
        state.advance(planned);
        return logits;
    }
    /// The same for one sequence.
    MatrixView<const T> step(State& state, Tokens tokens, Index slot = 0) {
        const Index count = static_cast<Index>(tokens.size());
        return step(state, tokens, {&count, 1}, {&slot, 1});
    }

    /// Balancing statistics since the last update, one a layer; those of dense layers are empty.
    const std::vector<Balance>& balances() const { return balances_.layers(); }

    /// Moves every router's bias to where the load would have been even since the last update, and starts counting
    /// anew.
    void update_balance() {
        static_for<layers>([&](auto layer) {
            if constexpr (LayerAt<layer>::routes)
                balance_update(ctx_, balances()[layer], config.num_experts_per_token,
                               std::get<layer>(params_.layers).feed_forward.e_score_correction_bias);
        });
    }
    /// Forgets the balancing statistics, for a step that is not taken.
    void clear_balance() {
        for (const Balance& balance : balances()) balance_clear(ctx_, balance);
    }

private:
    static constexpr Index layers = Layers::size;
    template <Index layer>
    using LayerAt = BlockLayer<typename Layers::template at<layer>, Backend, T>;
    using Acts = Activations<Layers, Backend, T>;
    using Head = OutputHead<Backend, T>;

    Index measure(const Sequences& sequences, Pass pass) const {
        Arena arena;
        Acts::bind(arena, config, sequences, pass, keep_);
        return arena.peak_bytes();
    }

    /// Lays out the activations of a pass, with new memory only where the old is too small.
    void lay_out(const Sequences& sequences, Pass pass) {
        const Index step = pass == Pass::inference && sequences.single() ? sequences.count() : 0;
        if (step > 0 && step == step_laid_out_) return;
        step_laid_out_ = step;
        const Index bytes = measure(sequences, pass);
        if (bytes > memory_.size()) memory_ = {}, memory_ = Buffer<std::byte, Backend>(bytes);
        Arena arena(memory_.data(), memory_.size());
        acts_ = Acts::bind(arena, config, sequences, pass, keep_);
        kept_ = keep_;
    }

    void begin(Tokens tokens, Tokens targets, const Sequences& sequences, Pass pass) {
        require(targets.size() == tokens.size(), "every token has a target: {} tokens, {} targets", tokens.size(),
                targets.size());
        const Index counted = check_targets(targets, config.vocab_size);
        place(tokens, sequences, pass);
        copy_from_host(ctx_, targets, acts_.targets);
        counted_rows_.clear();
        for (const std::int32_t target : targets) counted_rows_.push_back(target != ignored_target);
        copy_from_host(ctx_, counted_rows_, acts_.counted);
        counted_ = counted;
        ready_for_backward_ = pass == Pass::training;
    }

    /// Lays out a pass and brings its tokens to the backend.
    void place(Tokens tokens, const Sequences& sequences, Pass pass) {
        ready_for_backward_ = false;
        require(sequences.tokens() == static_cast<Index>(tokens.size()), "the sequences hold {} tokens, {} were given",
                sequences.tokens(), tokens.size());
        require(sequences.longest() <= config.max_seq_len, "a sequence has at most {} tokens, got {}",
                config.max_seq_len, sequences.longest());
        check_ids(tokens, config.vocab_size);
        ctx_.make_current();
        sequences_ = sequences;
        copy_weights();
        lay_out(sequences_, pass);
        copy_from_host(ctx_, tokens, acts_.tokens);
    }

    void copy_weights() {
        if constexpr (copies_weights) {
            if (!copied_) convert(ctx_, VectorView<const A>(weights_.view()), copy_.view());
            copied_ = true;
        }
    }

    /// Embedding to final norm; after_layer(layer) is called after each layer.
    template <class AfterLayer = Unobserved>
    void compute(State* state, AfterLayer&& after_layer = {}) {
        // (BLOCK-7)
        acts_.output.forward(ctx_, config, params_.output_attn_res, params_.norm, compute_layers(state, after_layer));
    }
    template <class AfterLayer = Unobserved>
    Residuals<const T> compute_layers(State* state, AfterLayer&& after_layer = {}) {
        embedding_forward(ctx_, acts_.tokens, params_.embed_tokens, acts_.embedded);
        Residuals<const T> residuals;
        residuals.prefix = acts_.embedded;
        static_for<layers>([&](auto layer) {
            forward_layer<layer>(residuals, state != nullptr ? &state->template layer_state<layer>() : nullptr);
            after_layer(layer);
        });
        return residuals;
    }

    /// Layers and logits of one new token a sequence.
    void single_step(State& state, MatrixView<T> logits) {
        const Residuals<const T> residuals = compute_layers(&state);
        if constexpr (has_steps<Backend, T>) {
            if (logits.rows <= 8 && StepInput<T>::fits(config.hidden_size) &&
                residuals.endpoints.count < most_step_candidates) {
                step_products(
                    ctx_, acts_.output.step_input(config, params_.output_attn_res, params_.norm, residuals, true),
                    {StepProduct<T>::plain(params_.head(config), logits)});
                return;
            }
        }
        acts_.output.forward(ctx_, config, params_.output_attn_res, params_.norm, residuals);
        linear_forward(ctx_, acts_.output.normed, params_.head(config), logits);
    }

    template <Index layer>
    void forward_layer(Residuals<const T>& residuals, typename LayerAt<layer>::State* state) {
        LayerAt<layer>::forward(ctx_, config, Depth::of(config, layer), std::get<layer>(params_.layers), sequences_,
                                residuals, std::get<layer>(acts_.sums), std::get<layer>(acts_.saved), state);
    }

    Loss head_loss() {
        Head::loss(ctx_, params_.head(config), acts_.output.normed, acts_.targets, acts_.head);
        return mean_loss();
    }

    void head_backward(double scale) {
        ready_for_backward_ = false;
        const double each = counted_ == 0 ? 0.0 : scale / static_cast<double>(counted_);
        Head::loss_and_gradients(ctx_, params_.head(config), acts_.output.normed, acts_.targets, each,
                                 acts_.scratch.dnormed, grads_.head(config), acts_.head);
    }

    void blocks_backward() {
        clear(ctx_, acts_.zeroed);
        clear(ctx_, acts_.gradients.prefix);
        Residuals<T> gradients = acts_.gradients;
        acts_.output.backward(ctx_, config, params_.output_attn_res, grads_.output_attn_res, params_.norm, grads_.norm,
                              residuals_before(layers), acts_.scratch.dnormed, acts_.scratch.dh, gradients);
        static_for_reverse<layers>([&](auto layer) { backward_layer<layer>(gradients); });
        embedding_backward(ctx_, acts_.tokens, gradients.prefix, grads_.embed_tokens);
    }

    template <Index layer>
    void backward_layer(Residuals<T>& gradients) {
        const Residuals<const T> residuals = residuals_before(layer);
        if (kept_ == Keep::sums) {
            Residuals<const T> again = residuals;
            forward_layer<layer>(again, nullptr);
        }
        LayerAt<layer>::backward(ctx_, config, Depth::of(config, layer), std::get<layer>(params_.layers),
                                 std::get<layer>(grads_.layers), sequences_, residuals, gradients,
                                 std::get<layer>(acts_.sums), std::get<layer>(acts_.saved), acts_.scratch,
                                 balances()[layer], acts_.counted);
    }

    /// What the pass handed to a layer: the endpoints stored before it and the prefix.
    Residuals<const T> residuals_before(Index layer) const {
        Residuals<const T> residuals;
        residuals.prefix = acts_.embedded;
        for (Index before = 0; before < layer; ++before) {
            if (Depth::of(config, before).opens_block) residuals.endpoints.add(residuals.prefix);
            residuals.prefix = acts_.sums[to_size(before)].out;
        }
        return residuals;
    }

    MatrixView<T> room_for_logits(Index rows) {
        ctx_.make_current();
        if (logits_.size() < rows * config.vocab_size) logits_ = Buffer<T, Backend>(rows * config.vocab_size);
        return {logits_.data(), rows, config.vocab_size};
    }
    MatrixView<const T> logits_of(MatrixView<const T> h) {
        const MatrixView<T> all = room_for_logits(h.rows);
        linear_forward(ctx_, h, params_.head(config), all);
        return all;
    }

    Context<Backend> ctx_;
    ParameterTable table_;
    ModelParams<Layers, Backend, T, T> params_;
    ModelParams<Layers, Backend, T, A> grads_;
    Buffer<A, Backend> weights_, gradients_;
    Buffer<T, Backend> copy_;  // bf16: of weights_, as they were when copied_ was set
    mutable bool copied_ = false;
    LayerBalances<Layers, Backend, T> balances_{config};
    Buffer<std::byte, Backend> memory_;
    Keep keep_ = Keep::activations, kept_ = keep_;  // of the next pass, and of that which acts_ was laid out for
    Acts acts_;
    Sequences sequences_;
    Index counted_ = 0;
    std::vector<std::uint8_t> counted_rows_;
    std::vector<A> host_losses_;
    bool ready_for_backward_ = false;
    Buffer<T, Backend> logits_, last_;
    Buffer<Index, Backend> places_;
    Repeated<Backend> steps_;
    Index step_laid_out_ = 0;  // sequences of the decoding step that acts_ was laid out for, or 0
};

}  // namespace kimik3
