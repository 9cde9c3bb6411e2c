#include <utility>

#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {

Schedule add_send_recv(const Schedule& order, std::int32_t lookahead) {
  return place_receives(add_send_recv_as_torch(order), lookahead);
}

Schedule lower_communication(Schedule order) {
  return add_send_recv(add_reduce_gradients(std::move(order)));
}

Schedule lower_as_torch(Schedule order) {
  return add_send_recv_as_torch(add_reduce_gradients(add_unshard(std::move(order))));
}

}  // namespace penstock::schedule
