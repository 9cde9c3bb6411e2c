// The few names of Gloo that torch's ProcessGroupGloo.hpp mentions, declared by us.
//
// The torch wheel ships that header and Gloo's code, but no Gloo headers, and a system's Gloo
// headers describe another Gloo.  Only c10d::Backend is used through it: no object declared here is
// ever made, copied or called by penstock, so only the names matter.  Included by gloo/gloo.cpp
// alone.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace transport

namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

}  // namespace gloo
