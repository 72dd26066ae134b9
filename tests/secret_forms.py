"""Forms in which commands are given a secret, here `hush` in each, and arguments that only look like one."""

from __future__ import annotations

SECRET_FORMS: tuple[tuple[str, ...], ...] = (
    ("--password", "hush"), ("--password=hush",), ("--api-key", "hush"), ("--api-key=hush",), ("--token", "hush"),
    ("--token=hush",), ("--hf-token", "hush"), ("--hf_token=hush",), ("--wandb-api-key", "hush"),
    ("--wandb_api_key=hush",), ("--access-key", "hush"), ("--access-key=hush",), ("--secret-access-key", "hush"),
    ("--bearer", "hush"), ("--bearer=hush",), ("--auth-token=hush",), ("--passwd", "hush"), ("--pw", "hush"),
    ("--private-key", "hush"), ("--github-pat", "hush"), ("-token", "hush"), ("--apiKey=hush",),
    ("+wandb.api_key=hush",), ("logger.wandb.api_key=hush",), ("HF_TOKEN=hush",), ("--env=WANDB_API_KEY=hush",),
    ("--config", '{"api_key": "hush", "lr": 1}'), ("api_key: hush",), ("-H", "Authorization: Bearer hush"),
    ("-H", "Authorization:hush"), ("--header=Authorization: Bearer hush",), ("https://me:hush@host/x",),
    ("--data", "postgres://me:hush@db/x"), ("https://host/x?token=hush",), ("--user", "me:hush"),
    ("--blob", "https://a.blob.core/x?sv=1&sig=hush"), ("--login-token", "$hush"), ("--password", "-hush"),
    ("--key", "a1b2c3hushA0B9C8D7E6"),
)  # fmt: skip
HARMLESS_FORMS = (
    "--tokenizer gpt2", "--num-tokens 4096", "--num-tokens=4096", "--tokens-per-sample 512", "--max-token 512",
    "--max_tokens=512", "--pad-token-id 0", "--pad-token '<pad>'", "--mask-token=MASK", "--key-dim 64",
    "--pass-through on", "--n-pass 3", "--num-key-value-heads 8", "--token-dropout 0.1", "--sort-key loss",
    "--use-auth-token True", "--token-file /home/me/token", "--password-file ~/.password", "--image_token_index 32000",
    "--special-tokens a b", "--train-tokens 300B", "--token-budget 4096", "--key model.layers", "--author me",
    "--credentials ~/cloud.json", "--token '${oc.env:HF_TOKEN}'", "--passes=2", "--user 1000:1000", "--patience 3",
    "tokens: 4096", "--monkey 2", "--secret-name wandb", "tests/user_secrets.py:Factory",
)  # fmt: skip
