"""The trash: what brokers dropped and the sweep has not deleted yet, listed, restored, and let go early."""
