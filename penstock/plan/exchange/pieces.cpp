#include "penstock/plan/exchange/pieces.h"

#include <algorithm>
#include <optional>

#include "penstock/core/text.h"
#include "penstock/plan/exchange/code.h"

namespace penstock::exchange {
namespace {

std::string list_of(const HeldValues& values) {
  std::vector<std::string> texts;
  for (const Held& held : values) texts.push_back(to_string(held));
  return texts.empty() ? "nothing" : join(texts, ", ");
}

void add(Code code, const std::string& text, std::vector<std::string>& all) {
  all.push_back(coded(code, text));
}

bool is_in(State state, const HeldValues& values) {
  return std::ranges::find(values, state, &Held::state) != values.end();
}

// Objections to what a piece computes.
void check_states(const Piece& piece, const std::string& where, std::vector<std::string>& all) {
  if (is_in(State::Partial, piece.takes) || is_in(State::Candidates, piece.takes)) {
    add(Code::NotExchanged,
        str(where, " takes ", list_of(piece.takes),
            ": a summand, or a candidate, is no value to compute with; exchange it behind the "
            "piece that gives it"),
        all);
  }
  if (is_in(State::Invariant, piece.gives) && !piece.takes.empty() &&
      !is_in(State::Invariant, piece.takes)) {
    add(Code::NotWhole,
        str(where, " gives an invariant value of ", list_of(piece.takes),
            ": what it computes of these is not invariant, or its gradient is not"),
        all);
  }
  if (is_in(State::Replicated, piece.gives) && !piece.takes.empty() &&
      !is_in(State::Replicated, piece.takes) && !is_in(State::Invariant, piece.takes)) {
    add(Code::NotWhole,
        str(where, " gives a replicated value of ", list_of(piece.takes),
            ": ranks have parts of these, and compute something else each"),
        all);
  }
}

void check_exchanges(const Piece& piece, const std::string& where, std::vector<std::string>& all) {
  HeldValues values = piece.gives;
  for (std::size_t e = 0; e < piece.behind.size(); ++e) {
    const Exchange& exchange = piece.behind[e];
    const std::string which = str("exchange ", e, " behind ", where);
    if (exchange.value >= values.size()) {
      add(Code::NoSuchExchange,
          str(which, " is of value ", exchange.value, ", and the piece gives ", values.size()),
          all);
      continue;
    }
    const auto before = piece.behind.begin() + static_cast<std::ptrdiff_t>(e);
    if (std::ranges::find(piece.behind.begin(), before, exchange.value, &Exchange::value) !=
        before) {
      add(Code::NoSuchExchange,
          str(which, " is another one of value ", exchange.value,
              ": one exchange brings a value to the state that it is to have"),
          all);
      continue;
    }
    Held& held = values[exchange.value];
    if (held != exchange.before) {
      add(Code::OtherState,
          str(which, " takes value ", exchange.value, " as ", to_string(exchange.before),
              ", and it is ", to_string(held)),
          all);
    } else if (!action_of(exchange.before, exchange.after)) {
      add(Code::NoSuchExchange,
          str(which, ": there is no exchange from ", to_string(exchange.before), " to ",
              to_string(exchange.after)),
          all);
    }
    held = exchange.after;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].state != State::Partial && values[i].state != State::Candidates) continue;
    add(Code::NotExchanged,
        str("value ", i, " that ", where, " gives stays ", to_string(values[i]),
            ": an exchange behind the piece has to sum it, or to find the largest"),
        all);
  }
}

// What was made whole of parts or summands takes a gradient of which each rank has only a summand
// where the next piece gives nothing invariant.  Where it does, it may be the same value, or one
// without a gradient: states do not tell.
void check_made_whole(const Piece& giver, const Piece& taker, const std::string& where,
                      std::vector<std::string>& all) {
  if (is_in(State::Invariant, taker.gives)) return;
  const HeldValues given = given_by(giver);
  for (const Exchange& each : giver.behind) {
    const State before = each.before.state;
    const bool is_made_whole = before == State::Cut || before == State::Partial;
    if (!is_made_whole || each.after != kInvariant) continue;
    if (each.value >= given.size() || given[each.value] != kInvariant) continue;
    add(Code::NotSummed,
        str("behind the ", to_string(each), ", ", where,
            " takes it invariant and gives nothing invariant: each rank would have a summand of "
            "its gradient; let it be replicated"),
        all);
  }
}

}  // namespace

HeldValues given_by(const Piece& piece) {
  HeldValues values = piece.gives;
  for (const Exchange& exchange : piece.behind) {
    if (exchange.value < values.size()) values[exchange.value] = exchange.after;
  }
  return values;
}

HeldValues taken_by(const Pieces& pieces, std::size_t values) {
  return pieces.empty() ? HeldValues(values, kInvariant) : pieces.front().takes;
}

HeldValues given_by(const Pieces& pieces, std::size_t values) {
  return pieces.empty() ? HeldValues(values, kInvariant) : given_by(pieces.back());
}

bool sums_gradients(const Piece& piece) {
  return !std::ranges::all_of(piece.gives, [](const Held& held) { return held == kInvariant; });
}

bool sums_gradient_of(const Pieces& pieces, const std::string& parameter) {
  return std::ranges::any_of(pieces, [&](const Piece& piece) {
    return sums_gradients(piece) &&
           std::ranges::find(piece.parameters, parameter) != piece.parameters.end();
  });
}

std::vector<std::string> objections(const Pieces& pieces) {
  std::vector<std::string> all;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::string where = str("piece ", p);
    check_states(pieces[p], where, all);
    check_exchanges(pieces[p], where, all);
    for (const std::string& parameter : pieces[p].parameters) {
      for (std::size_t before = 0; before < p; ++before) {
        const auto& others = pieces[before].parameters;
        if (std::ranges::find(others, parameter) == others.end() ||
            sums_gradients(pieces[before]) == sums_gradients(pieces[p])) {
          continue;
        }
        add(Code::TwoGradients,
            str("the gradient of ", in_quotes(parameter), " is a summand in piece ",
                sums_gradients(pieces[p]) ? p : before, ", and whole in piece ",
                sums_gradients(pieces[p]) ? before : p, ": use two parameters, or one piece"),
            all);
      }
    }
    if (p == 0) continue;
    check_made_whole(pieces[p - 1], pieces[p], where, all);
    const HeldValues given = given_by(pieces[p - 1]);
    if (given == pieces[p].takes) continue;
    add(Code::OtherState,
        str("piece ", p, " takes ", list_of(pieces[p].takes), ", and piece ", p - 1, " gives ",
            list_of(given)),
        all);
  }
  return all;
}

std::vector<Exchange> whole_again(const HeldValues& values) {
  std::vector<Exchange> exchanges;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].state != State::Cut) continue;
    exchanges.push_back({.value = i, .before = values[i], .after = kInvariant});
  }
  return exchanges;
}

std::string to_string(const Pieces& pieces) {
  std::string text;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    std::vector<std::string> behind;
    for (const Exchange& each : pieces[p].behind) behind.push_back(to_string(each));
    text +=
        str("piece ", p, ": takes ", list_of(pieces[p].takes), "; gives ", list_of(pieces[p].gives),
            behind.empty() ? "" : "; then ", join(behind, ", "), "\n");
  }
  return text;
}

}  // namespace penstock::exchange
