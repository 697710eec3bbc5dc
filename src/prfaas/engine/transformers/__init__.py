"""An engine on Hugging Face transformers: real hybrid models on CPU or GPU. Needs the extra `transformers`."""
