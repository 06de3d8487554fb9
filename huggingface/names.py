"""Names of the options of the model in the configurations of `transformers`."""

MODEL = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "head_dim": "head_dim",
    "kv_heads": "num_key_value_heads",
    "mlp": "mlp",
    "mlp_hidden": "intermediate_size",
    "tie_embeddings": "tie_word_embeddings",
    "dropout": "dropout",
    "norm_epsilon": "rms_norm_eps",
    "residual_in_fp32": "residual_in_fp32",
}
