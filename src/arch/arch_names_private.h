/* How families name the tensors of their experts. Constants of arch_family.c, which alone includes
 * them. Private to this folder. */
#ifndef SHOAL_ARCH_ARCH_NAMES_PRIVATE_H
#define SHOAL_ARCH_ARCH_NAMES_PRIVATE_H

#include "arch/arch.h"

#define EXPERTS_BY_PROJ                                                                            \
    .gate = "mlp.experts.gate_proj", .up = "mlp.experts.up_proj", .down = "mlp.experts.down_proj"

static const struct arch_names mlp = {.router = "mlp.gate",
                                      EXPERTS_BY_PROJ,
                                      .shared = "mlp.shared_experts.",
                                      .select_bias = "mlp.gate.e_score_correction_bias"};
static const struct arch_names mlp_bias_outside = {.router = "mlp.gate",
                                                   EXPERTS_BY_PROJ,
                                                   .shared = "mlp.shared_experts.",
                                                   .select_bias = "mlp.e_score_correction_bias"};
static const struct arch_names mlp_router_gate = {.router = "mlp.router.gate",
                                                  EXPERTS_BY_PROJ,
                                                  .shared = "mlp.shared_mlp.",
                                                  .select_bias = "mlp.expert_bias"};
static const struct arch_names mlp_mixed = {.router = "mlp.gate",
                                            EXPERTS_BY_PROJ,
                                            .shared = "mlp.shared_expert.",
                                            .shared_mix = "mlp.shared_expert_gate.weight"};
static const struct arch_names mlp_router = {.router = "mlp.router", EXPERTS_BY_PROJ};
static const struct arch_names sparse = {.router = "block_sparse_moe.gate",
                                         .gate = "block_sparse_moe.experts.w1",
                                         .up = "block_sparse_moe.experts.w3",
                                         .down = "block_sparse_moe.experts.w2",
                                         .select_bias = "block_sparse_moe.e_score_correction_bias"};
static const struct arch_names sparse_gate = {.router = "block_sparse_moe.gate",
                                              .gate = "block_sparse_moe.experts.w1",
                                              .up = "block_sparse_moe.experts.w3",
                                              .down = "block_sparse_moe.experts.w2",
                                              .shared = "block_sparse_moe.shared_experts.",
                                              .select_bias =
                                                  "block_sparse_moe.gate.e_score_correction_bias"};
static const struct arch_names mlp_statics = {.router = "mlp.gate",
                                              EXPERTS_BY_PROJ,
                                              .shared = "mlp.shared_experts.",
                                              .select_bias =
                                                  "mlp.moe_statics.e_score_correction_bias"};
static const struct arch_names experts_beside = {.router = "router.proj",
                                                 .gate = "experts.gate_proj",
                                                 .up = "experts.up_proj",
                                                 .down = "experts.down_proj",
                                                 .shared = "mlp."};
static const struct arch_names moe_beside = {.router = "moe.gate",
                                             .gate = "moe.gate_proj",
                                             .up = "moe.up_proj",
                                             .down = "moe.down_proj",
                                             .shared = "share_expert.",
                                             .select_bias = "moe.router_bias"};
static const struct arch_names mlp_wg = {
    .router = "mlp.gate.wg", EXPERTS_BY_PROJ, .shared = "mlp.shared_mlp."};
static const struct arch_names mlp_relu2 = {.router = "mlp.gate",
                                            .gate = "mlp.experts.up_proj",
                                            .down = "mlp.experts.down_proj",
                                            .shared = "mlp.shared_experts.",
                                            .select_bias = "mlp.gate.e_score_correction_bias"};
static const struct arch_names feed_forward = {.router = "feed_forward.router",
                                               .gate = "feed_forward.experts.gate_proj",
                                               .up = "feed_forward.experts.up_proj",
                                               .down = "feed_forward.experts.down_proj",
                                               .shared = "feed_forward.shared_expert."};
static const struct arch_names sparse_shared = {.router = "block_sparse_moe.router.layer",
                                                .gate = "block_sparse_moe.input_linear",
                                                .up = "block_sparse_moe.input_linear",
                                                .down = "block_sparse_moe.output_linear",
                                                .shared = "shared_mlp."};
static const struct arch_names mlp_classifier = {.router = "mlp.router.classifier",
                                                 EXPERTS_BY_PROJ,
                                                 .select_bias =
                                                     "mlp.router.e_score_correction_bias"};
static const struct arch_names sparse_fused = {.router = "block_sparse_moe.router.layer",
                                               .gate = "block_sparse_moe.input_linear",
                                               .up = "block_sparse_moe.input_linear",
                                               .down = "block_sparse_moe.output_linear"};

#endif
