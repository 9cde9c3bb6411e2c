#include "penstock/plan/lower/stage_exchanges.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::lower {
namespace {

using exchange::Exchange;
using exchange::State;

// The exchanges behind a piece, and what they are behind.
struct Place {
  const std::vector<Exchange>* exchanges;
  std::string behind;
};

void await_in_place(PassExchanges::iterator first, PassExchanges::iterator end) {
  std::for_each(first, end, [](PassExchange& each) { each.awaited = Awaited::InPlace; });
}

bool sends(std::optional<exchange::Action> action) { return action && exchange::sends(*action); }

std::optional<exchange::Action> forward_of(const Exchange& each) {
  return exchange::action_of(each.before, each.after);
}

// Exchanges of a pass that have started and are not awaited yet.
class Coming {
 public:
  explicit Coming(PassExchanges& all) : all_(all) {}
  void start(PassExchange each) {
    each.awaited = Awaited::Later;
    all_.push_back(std::move(each));
    ++count_;
  }
  void await_one() {
    all_.back().awaited = Awaited::Aside;
    --count_;
  }
  void await_all() {
    while (count_ > 0) await_one();
  }

 private:
  PassExchanges& all_;
  std::int32_t count_ = 0;
};

// A segment, or a loss: parts of layers with exchanges between them.
class Pass {
 public:
  // The next layer's pieces; none: it is whole.
  void add(const exchange::Pieces& pieces, const std::string& of) {
    if (pieces.empty()) add_to_part(/*has_weights=*/true);
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      add_to_part(!pieces[p].parameters.empty());
      ends_in_exchange_ = !pieces[p].behind.empty();
      if (ends_in_exchange_) places_.push_back({&pieces[p].behind, str("piece ", p, " of ", of)});
    }
  }

  // Appends what a forward exchanges.  `knows_sizes`: whether an exchange before has shown how many
  // tokens the samples have.
  void forward(PassExchanges& names, bool& knows_sizes) const {
    add_forward(places_.size(), names, knows_sizes);
  }
  // Appends what is exchanged again where it is computed again: what is behind all has run.
  void again(PassExchanges& names) const {
    bool knows_sizes = true;
    add_forward(places_.size() - (ends_in_exchange_ ? 1 : 0), names, knows_sizes);
  }
  // Appends what a backward exchanges.  `gathers_again`: whether what a part was given was let go.
  // A part's gathers start ahead of the backward of the part behind it, and the exchanges of its
  // outputs' gradients in the midst of that.  Behind the last part there is nothing.
  void backward(PassExchanges& names, bool gathers_again) const {
    Coming coming(names);
    if (!ends_in_exchange_ && gathers_again) add_gathers(places_.size(), Beside::Nothing, coming);
    for (std::size_t i = places_.size(); i-- > 0;) {
      const bool is_last = ends_in_exchange_ && i + 1 == places_.size();
      if (!is_last) coming.await_all();
      if (gathers_again) add_gathers(i, is_last ? Beside::Nothing : Beside::Backward, coming);
      const std::vector<Exchange>& all = *places_[i].exchanges;
      std::set<std::size_t> values;  // Values that are coming.
      for (auto each = all.rbegin(); each != all.rend(); ++each) {
        const auto action = exchange::gradient_action_of(each->before, each->after);
        if (action && values.erase(each->value) > 0) coming.await_one();
        if (!sends(action)) continue;
        coming.start({exchange::gradient_name_of(*action, places_[i].behind),
                      is_last || !has_weights_[i + 1] ? Beside::Nothing : Beside::Weights});
        values.insert(each->value);
      }
    }
    coming.await_all();
  }

 private:
  void add_to_part(bool has_weights) {
    if (ends_in_exchange_) has_weights_.push_back(false);
    ends_in_exchange_ = false;
    has_weights_.back() = has_weights_.back() || has_weights;
  }

  void add_forward(std::size_t end, PassExchanges& names, bool& knows_sizes) const {
    for (std::size_t i = 0; i < end; ++i) {
      for (const Exchange& each : *places_[i].exchanges) {
        add_sizes(each, places_[i], names, knows_sizes);
        const std::optional<exchange::Action> action = forward_of(each);
        if (sends(action)) names.push_back({exchange::name_of(*action, places_[i].behind)});
      }
    }
  }

  // Appends what was gathered ahead of a part, the one behind place `part` - 1.
  void add_gathers(std::size_t part, Beside beside, Coming& coming) const {
    if (part == 0) return;
    const Place& ahead = places_[part - 1];
    for (const Exchange& each : *ahead.exchanges) {
      if (forward_of(each) != exchange::Action::AllGather) continue;
      coming.start({exchange::name_of(exchange::Action::AllGather, ahead.behind), beside});
    }
  }

  static void add_sizes(const Exchange& each, const Place& place, PassExchanges& names,
                        bool& knows_sizes) {
    const bool shows = each.after.state == State::Cut && each.after.whole == 0;
    const bool asks = each.before.state == State::Cut && each.before.whole == 0;
    if (asks && !knows_sizes) {
      names.push_back({.name = exchange::sizes_name_of(place.behind), .awaited = Awaited::InPlace});
    }
    knows_sizes |= shows || asks;
  }

  std::vector<Place> places_;
  // Whether a part uses parameters, as far as anybody knows; a part is behind each place.
  std::vector<bool> has_weights_ = {false};
  bool ends_in_exchange_ = false;
};

}  // namespace

StageExchanges exchanges_of(const partition::ModelMeta& model,
                            const std::vector<partition::SegmentRange>& ranges,
                            const exchange::Pieces& loss) {
  StageExchanges all;
  std::vector<PassExchanges> backwards;
  bool knows_sizes = false;
  const auto add_pass = [&](const Pass& pass, bool is_recomputed) {
    pass.forward(all.forward, knows_sizes);
    PassExchanges& backward = backwards.emplace_back();
    if (is_recomputed) pass.again(backward);
    pass.backward(backward, /*gathers_again=*/!is_recomputed);
  };
  for (const partition::SegmentRange& range : ranges) {
    Pass pass;
    for (std::int64_t i = range.first; i < range.end; ++i) {
      const partition::LayerMeta& layer = model[static_cast<std::size_t>(i)];
      pass.add(layer.pieces, str("layer ", in_quotes(layer.name)));
    }
    add_pass(pass, range.is_recomputed);
  }
  Pass of_loss;
  if (!loss.empty()) of_loss.add(loss, "the loss");
  const std::ptrdiff_t of_layers = std::ssize(all.forward);
  add_pass(of_loss, /*is_recomputed=*/false);
  await_in_place(all.forward.begin() + of_layers, all.forward.end());
  await_in_place(backwards.back().begin(), backwards.back().end());
  for (auto each = backwards.rbegin(); each != backwards.rend(); ++each) {
    std::ranges::move(*each, std::back_inserter(all.backward));
  }
  return all;
}

}  // namespace penstock::lower
