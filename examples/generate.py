"""Generation, token by token, with tenuto as its prefix cache: what was generated is found again in the next turn.

The model is a toy, of one layer: a token's key and value are rows of a table, and it attends to all tokens before.
"""

import numpy as np

import tenuto

PAGE, DIM, VOCABULARY = 16, 32, 500
layout = tenuto.Layout("contiguous", 64, n_layers=1, outer_dim=2, page_tokens=PAGE, inner_dim=DIM, dtype="float32")
memory = np.zeros((64, 1, 2, PAGE, DIM), np.float32)  # blocks lie in it as the layout says: memory[slot]
tables = np.random.default_rng(0).standard_normal((2, VOCABULARY, DIM), np.float32)


def next_token(pages, n_tokens, last):
    """The likeliest token behind `n_tokens`, whose keys and values are in these blocks of the memory."""
    keys, values = memory[pages, 0].swapaxes(0, 1).reshape(2, -1, DIM)[:, :n_tokens]
    scores = np.exp(keys @ tables[0, last] / DIM)
    return int((tables[1] @ (scores / scores.sum() @ values)).argmax())


def generate(cache, prompt, n_new):
    """The prompt with `n_new` tokens behind it, and how many keys and values were computed for that."""
    tokens = list(prompt)
    n_most = len(prompt) + n_new
    with cache.match(prompt[:-1]) as hit, cache.allocate(-(-n_most // PAGE) - len(hit)) as new:
        new.init_sequence(after=hit)  # behind a hit of no block, too
        pages = hit.slots + new.slots
        for at in range(hit.n_tokens, n_most - 1):
            for outer in (0, 1):
                new.view(new.n_complete, 0, outer)[at % PAGE] = tables[outer, tokens[at]]
            new.add_token(tokens[at])
            if at % PAGE == PAGE - 1:
                new.commit()
            if at + 1 == len(tokens):
                tokens.append(next_token(pages, at + 1, tokens[at]))
        new.register(new.n_complete).release()  # the full blocks; the last one, begun, is given up behind `with`
        return tokens, n_most - 1 - hit.n_tokens


if __name__ == "__main__":
    with tenuto.open_cache(layout, model="toy", buffer=memory, settings={"tiers.host.capacity": "8 MiB"}) as cache:
        talk, n_computed = generate(cache, range(40), 60)
        print(f"first turn: {len(talk)} tokens, {n_computed} computed")
        question = [*talk, 7, 8, 9]
        answer, n_computed = generate(cache, question, 20)
        print(f"second turn: {len(answer)} tokens, {n_computed} computed")
        cache.reset()
        assert generate(cache, question, 20) == (answer, len(answer) - 1)  # without a cache: the same tokens
