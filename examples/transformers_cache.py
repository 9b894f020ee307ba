"""Hugging Face transformers with tenuto as its prefix cache: prompts that begin alike are computed once, ever.

    python transformers_cache.py FOLDER [MODEL]

FOLDER is for the disk tier. MODEL is a name or path that transformers can load; without it, a model of SmolLM2-135M's
shape with random weights is made. Llama-like models, whose layers all attend to everything.
"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

import tenuto

BLOCK_TOKENS = 32


class CachedModel:
    """A model that loads the keys and values of a prompt's blocks which it, or an earlier process, has computed."""

    def __init__(self, model, name, folder, n_blocks=64, host_memory="512 MiB", disk="2 GiB"):
        """`name`: your own for exactly these weights. `n_blocks`: blocks in the model's own memory."""
        config = model.config
        self.model = model.eval()
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.layout = tenuto.Layout(
            "per layer",
            n_blocks,
            n_layers=config.num_hidden_layers,
            outer_dim=2,
            page_tokens=BLOCK_TOKENS,
            inner_dim=config.num_key_value_heads * self.head_dim,
            dtype=str(model.dtype).removeprefix("torch."),
        )
        memory = torch.zeros(self.layout.buffer_bytes, dtype=torch.uint8, device=model.device)
        tiers = {"host.capacity": host_memory, "disk.path": str(folder), "disk.capacity": disk}
        settings = {f"tiers.{key}": value for key, value in tiers.items()}
        self.blocks = tenuto.open_cache(self.layout, model=name, buffer=memory, settings=settings)

    @torch.no_grad()
    def prefill(self, token_ids):
        """(logits of the tokens that were computed, keys and values of all, how many tokens were loaded)."""
        with self.blocks.match(token_ids[:-1]) as hit:  # at least one token is computed: its logits are wanted
            past = self.load(hit)
            rest = torch.tensor([token_ids[hit.n_tokens :]], device=self.model.device)
            logits = self.model(rest, past_key_values=past, use_cache=True).logits
            self.save(token_ids, hit, past)
            return logits, past, hit.n_tokens

    @torch.no_grad()
    def generate(self, token_ids, n_tokens):
        """The most likely next tokens."""
        logits, past, _ = self.prefill(token_ids)
        found = [int(logits[0, -1].argmax())]
        while len(found) < n_tokens:
            last = torch.tensor([found[-1:]], device=self.model.device)
            logits = self.model(last, past_key_values=past, use_cache=True).logits
            found.append(int(logits[0, -1].argmax()))
        return found

    def load(self, hit):
        """The blocks of a hit as transformers' cache: a layer is (1, heads, tokens, head_dim)."""
        past = DynamicCache()
        for layer in range(self.layout.n_layers if len(hit) else 0):
            keys, values = (
                torch.cat([hit.view(block, layer, outer) for block in range(len(hit))])
                .unflatten(1, (-1, self.head_dim))
                .transpose(0, 1)[None]
                for outer in (0, 1)
            )
            past.update(keys, values, layer)
        return past

    def save(self, token_ids, hit, past):
        """Register the whole blocks behind a hit, as many as there is room for beside it."""
        n_new = min(len(token_ids) // BLOCK_TOKENS, self.layout.n_blocks) - len(hit)
        if n_new <= 0:
            return
        with self.blocks.allocate(n_new) as new:
            new.apply(token_ids[hit.n_tokens : hit.n_tokens + n_new * BLOCK_TOKENS], after=hit)
            for block in range(n_new):
                at = hit.n_tokens + block * BLOCK_TOKENS
                for number, layer in enumerate(past.layers):
                    for outer, kept in enumerate((layer.keys, layer.values)):
                        tokens = kept[0, :, at : at + BLOCK_TOKENS].transpose(0, 1)
                        new.view(block, number, outer).copy_(tokens.flatten(1))
            new.register().release()


def load_model(name):
    """A model of transformers, or one of SmolLM2-135M's shape whose weights are always the same."""
    if name:
        return AutoModelForCausalLM.from_pretrained(name, dtype="auto")
    torch.manual_seed(0)
    heads = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    return LlamaForCausalLM(LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, **heads))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    folder, name = sys.argv[1], (sys.argv[2:] or [""])[0]
    model = load_model(name)
    shared = torch.randint(0, model.config.vocab_size, (320,), generator=torch.Generator().manual_seed(1)).tolist()
    prompts = [[*shared, *range(100 * number, 100 * number + 40)] for number in (1, 2)]
    plain = [model(torch.tensor([prompt])).logits for prompt in prompts]
    for _ in range(2):  # the second time as a new process would
        cached = CachedModel(model, name or "random, seed 0", folder)
        for prompt, expected in zip(prompts, plain, strict=True):
            began = time.perf_counter()
            logits, _, n_loaded = cached.prefill(prompt)
            torch.testing.assert_close(logits, expected[:, n_loaded:], rtol=1e-3, atol=1e-3)
            print(f"{n_loaded:3} of {len(prompt)} tokens loaded, {time.perf_counter() - began:.2f} s, equal logits")
        cached.blocks.close()
