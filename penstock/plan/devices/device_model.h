// What a device does in a second: the figures by which work that does not run is priced.
//
// `penstock emulate` prices kernels, copies and messages by them.  Peaks and bandwidths are those
// of data sheets; the shares of them that kernels reach are estimates for kernels of a large model.
// Sources: NVIDIA's and AMD's data sheets; the ml-engineering handbook's accelerator and network
// pages; XLA's tables of measured GPU targets.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace penstock::devices {

struct DeviceModel {
  std::string name;   // "h100-sxm"
  std::string title;  // "NVIDIA H100 SXM, 80 GB"
  double memory_bytes = 0;
  // Peaks of dense products, in operations a second.
  double float_peak = 0;
  double short_peak = 0;  // bf16 and fp16.
  // Shares of these that are reached by products, and by attention in its two directions.
  double product_share = 0.66;
  double attention_share = 0.455;
  double attention_backward_share = 0.385;
  double memory_bytes_per_s = 0;
  double memory_share = 0.8;       // Reached by all other kernels.
  double kernel_s = 4e-6;          // The least that a kernel takes.
  double launch_s = 6e-6;          // The host's time for a kernel.
  double wait_s = 15e-6;           // What a wait of the host costs besides waiting.
  double copy_bytes_per_s = 25e9;  // Copies between the device and pinned memory of its host.
  double link_bytes_per_s = 0;     // Peak of a link to another device of the host, one way.
  double link_share = 0.55;        // Share of it, and of the network, that messages reach.
  double link_s = 10e-6;           // Latency of a message.
  double network_bytes_per_s = 0;  // A device's share of the network between hosts, one way.
  double network_s = 20e-6;
  int devices_per_host = 8;
  bool is_processor = false;  // Ranks compute on cores: each has one.
};

// Share of a network's peak that kernels reach which send a token once to each node: 44 of 50 GB/s
// between 4 and 8 nodes of H800.  Source: DeepEP's table of its kernels of high throughput, less
// what stays on a node.
inline constexpr double kByNodeShare = 0.88;

// All that are known, by name.
std::span<const DeviceModel> device_models();

// Reads a device from JSON: any of the figures under the names above, and "like", the device that
// has the others.  `name` is the text's, as errors print it. Throws: ParseError; ConfigError for a
// device or a key that is none (the nearest), and for a figure that is missing, not positive, or, a
// share, more than 1.
DeviceModel parse_device(const std::string& text, const std::string& name);

// The figures as JSON.  Law: parse_device() reads the same.
std::string to_json(const DeviceModel& device);

// The device that `name_or_file` says: a name, or a file that ends in .json.
// Throws: as parse_device() and read_file().
DeviceModel device_model(const std::string& name_or_file);

}  // namespace penstock::devices
