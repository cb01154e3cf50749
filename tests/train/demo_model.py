"""Qwen3-MoE in plain PyTorch, with the experts' work grouped so that it trains on one CPU core.

Same mathematics as transformers' Qwen3MoeForCausalLM plus dropout; parameter names are its names,
except that a layer's experts are stacked. `hf_weights` undoes that. No cache, no generation.
Letters: B rows, T tokens, D model, H query heads, G kv heads, Hd head dim, F ffn, E experts, K chosen.
"""
import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2047,
    "decoder_sparse_step": 1,
    "eos_token_id": 2047,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 384,
    "max_position_embeddings": 1024,
    "max_window_layers": 4,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 192,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 2048,
}


def change_config(changes):
    """Changes numbers of CONFIG, given as "num_experts=64", for a model of another shape."""
    for change in changes:
        key, value = change.split("=")
        assert isinstance(CONFIG[key], int), key
        CONFIG[key] = int(value)


def rope_tables(config, length):
    hd = config["head_dim"]
    freq = config["rope_theta"] ** (-torch.arange(0, hd, 2, dtype=torch.float32) / hd)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * freq
    angle = torch.cat([angle, angle], dim=-1)  # halves, not pairs: Qwen's "rotate_half" order
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.hd = c["hidden_size"], c["head_dim"]
        self.h, self.g = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = nn.Linear(d, self.h * self.hd, bias=False)
        self.k_proj = nn.Linear(d, self.g * self.hd, bias=False)
        self.v_proj = nn.Linear(d, self.g * self.hd, bias=False)
        self.o_proj = nn.Linear(self.h * self.hd, d, bias=False)
        self.q_norm = RMSNorm(self.hd, c["rms_norm_eps"])
        self.k_norm = RMSNorm(self.hd, c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, self.h, self.hd)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(B, T, self.g, self.hd)).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.g, self.hd).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(self.h // self.g, dim=1)
        v = v.repeat_interleave(self.h // self.g, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, Hd]
        return self.o_proj(y.transpose(1, 2).reshape(B, T, self.h * self.hd))


class Experts(nn.Module):
    """All experts of a layer, their weights stacked: gate_up [E, 2F, D], down [E, D, F]."""

    def __init__(self, c):
        super().__init__()
        e, d, f = c["num_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.k = c["num_experts_per_tok"]
        self.gate = nn.Linear(d, e, bias=False)
        self.gate_up = nn.Parameter(torch.empty(e, 2 * f, d))
        self.down = nn.Parameter(torch.empty(e, d, f))

    def route(self, x):
        """x [N, D] -> probabilities [N, E], chosen weights [N, K] with sum 1, chosen ids [N, K]."""
        p = self.gate(x).softmax(dim=-1)
        w, ids = p.topk(self.k, dim=-1)
        return p, w / w.sum(dim=-1, keepdim=True), ids

    def balance_loss(self, p, ids):
        # Switch-style: smallest (K) when tokens and probability mass are spread evenly.
        # Kept per layer: a mean over layers would let two layers' imbalances cancel.
        share = torch.bincount(ids.flatten(), minlength=p.shape[1]) / p.shape[0]
        return p.shape[1] * (share * p.mean(dim=0)).sum()

    def forward(self, x):
        B, T, D = x.shape
        x = x.reshape(B * T, D)
        p, w, ids = self.route(x)
        order = ids.flatten().argsort(stable=True)           # pairs (token, slot), by expert
        counts = torch.bincount(ids.flatten(), minlength=p.shape[1]).tolist()
        parts = x[order // self.k].split(counts)
        out = []
        for e, rows in enumerate(parts):
            g, u = F.linear(rows, self.gate_up[e]).chunk(2, dim=-1)
            out.append(F.linear(F.silu(g) * u, self.down[e]))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        y = torch.cat(out)[back].view(B * T, self.k, D)
        return (y * w[:, :, None]).sum(dim=1).view(B, T, D), self.balance_loss(p, ids), ids


class Layer(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        d, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm = RMSNorm(d, eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(d, eps)
        self.mlp = Experts(c)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, cos, sin):
        x = x + self.drop(self.self_attn(self.input_layernorm(x), cos, sin))
        y, balance, ids = self.mlp(self.post_attention_layernorm(x))
        return x + self.drop(y), balance, ids


class DemoModel(nn.Module):
    def __init__(self, c, dropout=0.0):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, dropout) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.drop = nn.Dropout(dropout)
        cos, sin = rope_tables(c, c["max_position_embeddings"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.init_weights()

    def init_weights(self):
        n = len(self.layers)
        for name, p in self.named_parameters():
            if p.dim() < 2:
                continue
            std = 0.02 if "embed" in name else 0.05
            if name.endswith(("o_proj.weight", "mlp.down")):
                std /= (2 * n) ** 0.5  # keeps the residual's variance flat in depth, as GPT-2
            nn.init.normal_(p, std=std)

    def forward(self, ids):
        """ids [B, T] -> logits [B, T, V], mean balance loss, chosen experts of each layer."""
        T = ids.shape[1]
        x, balance, chosen = self.drop(self.embed_tokens(ids)), 0.0, []
        for layer in self.layers:
            x, b, e = layer(x, self.cos[:T], self.sin[:T])
            balance = balance + b / len(self.layers)
            chosen.append(e)
        return F.linear(self.norm(x), self.embed_tokens.weight), balance, chosen


def hf_weights(state):
    """A state dict of DemoModel under Hugging Face's names, one matrix per expert and projection."""
    out = {}
    for name, t in state.items():
        base = "model." + name
        if name.endswith("mlp.gate_up"):
            for e, w in enumerate(t):
                gate, up = w.chunk(2, dim=0)
                stem = base.replace("gate_up", f"experts.{e}.")
                out[stem + "gate_proj.weight"], out[stem + "up_proj.weight"] = gate, up
        elif name.endswith("mlp.down"):
            for e, w in enumerate(t):
                out[base.replace("mlp.down", f"mlp.experts.{e}.down_proj.weight")] = w
        else:
            out[base] = t
    return {k: v.contiguous() for k, v in out.items()}
