"""What all commands share: options, output, questions and failures."""
