"""Lengths of prompts and fields that the models of the goldens share."""
LONGER = (70, 650)  # for states that are passed over many borders of 64 positions
LONGEST = (70, 668)  # 700 tokens with those that are decoded
OVER_BORDERS = (5, 140)  # for states that are passed over two borders, in less space
SHORTER = (7, 130)  # for models that need fewer
SHORTEST = (5, 66)  # the second sequence still crosses into a second tile
COMMON = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=True,
              max_position_embeddings=512)
LONG_CONTEXT = {**COMMON, "max_position_embeddings": 1024}
