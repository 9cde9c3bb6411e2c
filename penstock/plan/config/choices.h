// What the values of a key that is a choice are called.
//
// fields.h says which key has which.
#pragma once
#include <array>

#include "penstock/config/config.h"
#include "penstock/plan/config/kinds.h"

namespace penstock::config {

inline constexpr std::array<Name<ModelType>, 3> kModelTypes = {{
    {ModelType::Gpt, "gpt"},
    {ModelType::Mlp, "mlp"},
    {ModelType::HuggingFace, "hugging_face"},
}};

inline constexpr std::array<Name<FirstWeights>, 2> kFirstWeights = {{
    {FirstWeights::Folder, "folder"},
    {FirstWeights::Random, "random"},
}};

inline constexpr std::array<Name<ActivationCheckpoint>, 2> kActivationCheckpoints = {{
    {ActivationCheckpoint::Off, "none"},
    {ActivationCheckpoint::Selective, "selective"},
}};

inline constexpr std::array<Name<Transport>, 4> kTransports = {{
    {Transport::Auto, "auto"},
    {Transport::Gloo, "gloo"},
    {Transport::Tcp, "tcp"},
    {Transport::Shm, "shm"},
}};
inline constexpr std::array<Name<Device>, 3> kDevices = {{
    {Device::Auto, "auto"},
    {Device::Cpu, "cpu"},
    {Device::Cuda, "cuda"},
}};
inline constexpr std::array<Name<DataType>, 3> kDataTypes = {{
    {DataType::Fp32, "fp32"},
    {DataType::Bf16, "bf16"},
    {DataType::Fp16, "fp16"},
}};
inline constexpr std::array<Name<OffloadDevice>, 3> kOffloadDevices = {{
    {OffloadDevice::Off, "none"},
    {OffloadDevice::Cpu, "cpu"},
    {OffloadDevice::Nvme, "nvme"},
}};
inline constexpr std::array<Name<DataFormat>, 6> kDataFormats = {{
    {DataFormat::Auto, "auto"},
    {DataFormat::Text, "text"},
    {DataFormat::Uint16, "uint16"},
    {DataFormat::Uint32, "uint32"},
    {DataFormat::LlmC, "llm.c"},
    {DataFormat::Megatron, "megatron"},
}};
inline constexpr std::array<Name<OnFailure>, 2> kOnFailure = {{
    {OnFailure::Warn, "warn"},
    {OnFailure::Stop, "stop"},
}};
inline constexpr std::array<Name<OptimizerType>, 3> kOptimizerTypes = {{
    {OptimizerType::AdamW, "AdamW"},
    {OptimizerType::Adam, "Adam"},
    {OptimizerType::Sgd, "SGD"},
}};

inline constexpr std::array<Name<SchedulerType>, 6> kSchedulerTypes = {{
    {SchedulerType::Constant, "Constant"},
    {SchedulerType::WarmupCosine, "WarmupCosineLR"},
    {SchedulerType::Cosine, "Cosine"},
    {SchedulerType::Linear, "Linear"},
    {SchedulerType::Wsd, "WSD"},
    {SchedulerType::InverseSqrt, "InverseSqrt"},
}};

inline constexpr std::array<Name<DecayType>, 3> kDecayTypes = {{
    {DecayType::Cosine, "cosine"},
    {DecayType::Linear, "linear"},
    {DecayType::OneMinusSqrt, "1-sqrt"},
}};

inline constexpr std::array<Name<ResumedSchedule>, 2> kResumedSchedules = {{
    {ResumedSchedule::Rescale, "rescale"},
    {ResumedSchedule::Keep, "keep"},
}};

inline constexpr std::array<Name<FirstAdapters>, 2> kFirstAdapters = {{
    {FirstAdapters::Uniform, "uniform"},
    {FirstAdapters::Gaussian, "gaussian"},
}};

inline constexpr std::array<Name<WarmupType>, 2> kWarmupTypes = {{
    {WarmupType::Log, "log"},
    {WarmupType::Linear, "linear"},
}};

}  // namespace penstock::config
