"""The prediction layer of a golden (multi-token prediction of DeepSeek-V3, arXiv 2412.19437, section 2.2).

transformers leaves such layers out. Here the layer is the last decoder layer of a model, taken out, with the parts
around it as the report has them: its input joins the norms of the next token's embedding and of the normed hidden row,
and the head draws the token after the next from its output. It is trained on the greedy answers until a good half of
the guesses is right: then the number of right ones depends on all weights.
"""
import json

import torch
from safetensors.torch import load_file, save_file

STEPS_MOST = 200
GAP_LEAST = 2e-3


def linear(generator, rows, cols):
    return torch.nn.Parameter(torch.randn((rows, cols), generator=generator) / cols**0.5)


class Prediction:
    """Takes the last layer out of a model, which then ends before it."""

    def __init__(self, model, generator):
        self.model, d = model, model.config.hidden_size
        self.layer = model.model.layers[-1]
        model.model.layers = model.model.layers[:-1]
        model.config.num_hidden_layers -= 1
        norm = type(model.model.norm)
        self.norms = {name: norm(d, eps=model.config.rms_norm_eps) for name in ("enorm", "hnorm", "shared_head.norm")}
        for n in self.norms.values():
            n.weight.copy_(1 + 0.4 * torch.randn(d, generator=generator))
        self.join = linear(generator, d, 2 * d)

    def parameters(self):
        return [self.join, *self.layer.parameters(), *(p for n in self.norms.values() for p in n.parameters())]

    def logits(self, ids):
        """Row i: the logits of the token after ids[i + 1]."""
        model = self.model.model
        with torch.no_grad():
            rows = model(torch.tensor([ids[:-1]])).last_hidden_state
            embedded = model.embed_tokens(torch.tensor([ids[1:]]))
        x = torch.cat((self.norms["enorm"](embedded), self.norms["hnorm"](rows)), -1) @ self.join.T
        n = x.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        positions = torch.arange(n)[None]
        x = self.layer(x, attention_mask=mask, position_ids=positions,
                       position_embeddings=model.rotary_emb(x, position_ids=positions))
        x = x[0] if isinstance(x, tuple) else x
        return self.model.lm_head(self.norms["shared_head.norm"](x))[0]

    def count_right(self, goldens):
        """Guesses the answers' tokens from the second on; returns the number of right guesses, and that of all."""
        found = [(g["ids"][len(g["prompt"]) + 1:], self.logits(g["ids"])[len(g["prompt"]) - 1:-1].argmax(-1).tolist())
                 for g in goldens]
        pairs = [pair for wanted, guesses in found for pair in zip(wanted, guesses)]
        return sum(a == b for a, b in pairs), len(pairs)

    def train(self, goldens):
        with torch.enable_grad():
            for p in self.parameters():
                p.requires_grad_(True)
            adam = torch.optim.Adam(self.parameters(), lr=3e-3)
            for _ in range(STEPS_MOST):
                n_right, n = self.count_right(goldens)
                if n_right > 0.6 * n:
                    break
                loss = 0
                for g in goldens:
                    first = len(g["prompt"]) - 1
                    logits = self.logits(g["ids"])[first:-1]
                    loss = loss + torch.nn.functional.cross_entropy(logits, torch.tensor(g["ids"][first + 2:]))
                adam.zero_grad()
                loss.backward()
                adam.step()
            for p in self.parameters():
                p.requires_grad_(False)

    def guess(self, goldens, dtype):
        """Sets the guesses of each golden: of the answer's tokens from the second on. False: two logits are too close, or
        depends_on_all is false.
        """
        for p in self.parameters():
            p.copy_(p.to(dtype).to(torch.float32))
        for g in goldens:
            logits = self.logits(g["ids"])[len(g["prompt"]) - 1:-1]
            best = logits.topk(2, dim=-1).values
            if ((best[:, 0] - best[:, 1]) / logits.abs().max()).min().item() < GAP_LEAST:
                return False
            g["guesses"] = logits.argmax(-1).tolist()
        return self.depends_on_all(goldens)

    def depends_on_all(self, goldens):
        """Whether each part that a runtime may get wrong changes the number of right guesses."""
        n_right = self.count_right(goldens)
        changed = []
        for p in (self.layer.self_attn.o_proj.weight, self.norms["enorm"].weight, self.norms["hnorm"].weight,
                  self.norms["shared_head.norm"].weight, self.layer.mlp.shared_experts.down_proj.weight):
            kept = p.clone()
            p.copy_(torch.zeros_like(p) if p.dim() > 1 else torch.ones_like(p))
            changed.append(self.count_right(goldens) != n_right)
            p.copy_(kept)
        self.join.copy_(self.join.roll(self.join.shape[0], 1))  # the halves in the other order
        changed.append(self.count_right(goldens) != n_right)
        self.join.copy_(self.join.roll(self.join.shape[0], 1))
        return all(changed)

    def put_back(self):
        """For saving the model: its tensors have the published names then."""
        self.model.model.layers.append(self.layer)
        self.model.config.num_hidden_layers += 1

    def publish(self, hf, dtype):
        """Adds the tensors around the layer, the copies of embedding and head too, and corrects config.json."""
        path, config_path = hf / "model.safetensors", hf / "config.json"
        config = json.loads(config_path.read_text())
        config["num_hidden_layers"] -= 1
        config["num_nextn_predict_layers"] = 1
        tensors = load_file(path)
        at = f"model.layers.{config['num_hidden_layers']}."
        for name, norm in self.norms.items():
            tensors[f"{at}{name}.weight"] = norm.weight.detach().to(dtype)
        tensors[at + "eh_proj.weight"] = self.join.detach().to(dtype).contiguous()
        tensors[at + "embed_tokens.weight"] = self.model.model.embed_tokens.weight.detach().to(dtype).clone()
        tensors[at + "shared_head.head.weight"] = self.model.lm_head.weight.detach().to(dtype).clone()
        save_file(tensors, path, metadata={"format": "pt"})
        config_path.write_text(json.dumps(config, indent=2) + "\n")
