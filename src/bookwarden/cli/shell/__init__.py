"""The part that all commands share: options, output, questions and failures."""
